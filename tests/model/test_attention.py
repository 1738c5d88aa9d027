"""Every path is the same function: naive defines it, hypothesis looks for a case that differs."""

import functools
import itertools
import math

import pytest
import torch
from conftest import CPU, parametrize, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import assert_same, cases, qkv, value_and_gradients

import attention
from attention import (
    ATTENTION,
    CrossAttention,
    SelfAttention,
    dot,
    elu1,
    fused,
    linear,
    linear_step,
    masked_fill,
    naive,
    share_heads,
    sinusoidal,
    sparsemax,
    tiled,
)
from engine import linear_attention, sdpa
from masks import (
    both,
    causal,
    full,
    local_global,
    mask_of,
    positions,
    predicate,
    present,
    same_document,
    sliding_window,
    two_sided,
)
from tools.shared.measure import peak_bytes

OTHER_PATHS = [name for name in ATTENTION if name != "naive"]
every_path = parametrize("path", ATTENTION.values(), ids=ATTENTION)


# ---- The paths


@settings(max_examples=250)
@given(
    cases(),
    st.sampled_from(OTHER_PATHS),
    st.sampled_from([torch.float64, torch.float32]),
    st.sampled_from([4, 16, 256]),
)
def test_paths_agree_with_naive(case, name, dtype, tile):
    """Catches a mask at the wrong corner, a wrong head, a lost block, NaN where nothing is seen."""
    *inputs, visible = case
    inputs = [x.to(dtype) for x in inputs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "TILE", tile)
        patch.setattr(sdpa, "BLOCK", tile // 2)  # small, as these texts are
        got = value_and_gradients(ATTENTION[name], *inputs, visible)
    want = value_and_gradients(naive, *inputs, visible)
    for a, b in zip(got, want):
        assert b.isfinite().all()
        relative = 0 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(a, b, rtol=relative, atol=relative or 1e-12)


@parametrize("visible", [sliding_window(32), local_global(32, 4)])
def test_a_window_never_makes_all_pairs(visible):
    """Catches a (T, T) mask behind a window, in training and for a decoded token."""
    for Tq, most in (2048, 140), (5, 41), (1, 37):  # pairs for a query
        pairs = []

        def counted(i, j):
            seen = visible(i, j)
            pairs.append(seen.numel())
            return seen

        vars(counted).update(vars(visible), exact=False)  # the pairs are asked for
        inputs = qkv(1, (1, 1), (Tq, 2048), 8)
        assert_same([fused(*inputs, counted)], [masked_fill(*inputs, visible)])
        assert 0 < sum(pairs) <= most * Tq


# ---- Extremes


@every_path
def test_a_hidden_key_weighs_nothing(path):
    """Catches a mask that adds a large negative number in place of -inf."""

    def blind(i, j):
        return (j <= i) & (i % 5 != 3) & (i // 64 != 2)

    for Tq in 300, 40, 1:
        q, k, v = qkv(2, (4, 2), (Tq, 300), 4)
        assert_same([path(1e6 * q, k, v, blind)], [naive(1e6 * q, k, v, blind)], error=1e-9)


@every_path
@parametrize("autocast", [False, True])
def test_scores_that_half_precision_cannot_hold(path, autocast):
    """Catches scores above 65504 that overflow, and those that autocast rounds again."""
    for visible, T in (causal, 40), (sliding_window(4), 300):
        q, k, v = qkv(1, (2, 2), (T, T), 8, torch.float16)
        q, k = 300 * q, 100 * k
        want = path(q.double(), k.double(), v.double(), visible)
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            got = path(q, k, v, visible)
        torch.testing.assert_close(got.double(), want, rtol=5e-3, atol=5e-3)


def test_tiled_never_holds_all_scores(monkeypatch):
    """Catches a tile as large as the sequence, forward or backward."""
    monkeypatch.setattr(attention, "TILE", 32)
    q = torch.randn(1, 1, 512, 8, requires_grad=True)
    memory = []
    for path in tiled, masked_fill:
        call = functools.partial(lambda path: torch.autograd.grad(path(q, q, q).sum(), q), path)
        memory.append(peak_bytes(call, CPU))
    assert memory[0] < memory[1] / 10


@parametrize("visible, count", [(causal, 55), (sliding_window(8), 19), (local_global(8, 1), 27)])
def test_tiled_skips_what_nobody_sees(monkeypatch, visible, count):
    """Catches tiles above the diagonal, or left of a window, that are computed for nothing."""
    monkeypatch.setattr(attention, "TILE", 8)
    tiles = []
    monkeypatch.setattr(attention, "bias_of", lambda *inputs: tiles.append(inputs))
    tiled(*qkv(1, (1, 1), (80, 80), 8), visible)
    assert len(tiles) == count


# ---- Inputs that are refused


@every_path
def test_inputs_that_do_not_fit(path):
    """Catches wrong shapes that are broadcast in silence."""
    q, k, v = qkv(1, (3, 3), (4, 4), 8)
    for *inputs, message in (
        (q, k[:, :2], v[:, :2], "where G divides H"),
        (q, k[:, :, :3], v[:, :, :3], "Tq must not exceed Tk"),
        (q, k[..., :6], v, "attention needs"),
        (q, k, v[:, :, :3], "attention needs"),
    ):
        with refused(message):
            path(*inputs)


@every_path
@parametrize(
    "visible, message",
    [
        (lambda i, j: (j <= i).float(), "bool tensor"),
        (same_document(torch.zeros(2, 600, dtype=torch.long)), "with B=4 in front, not torch.bool"),
    ],
)
@parametrize("window", [100, 600])
def test_predicates_that_do_not_fit(path, visible, message, window):
    """Catches a predicate that is no mask, or documents of other sequences, applied in silence."""

    def seen(i, j):
        return visible(i, j)

    seen.window = window
    q = torch.randn(4, 1, 600, 4)
    with refused(message):
        path(q, q, q, seen)


@parametrize("path", [tiled, fused])
def test_scores_that_a_path_cannot_compute(path):
    """Catches a path that computes softmax of the scaled dot product in place of another."""
    q = torch.randn(1, 2, 4, 8)
    for other in {"score": dot}, {"normalize": sparsemax}:
        with refused(f"attention={path.__name__} .* choose attention=masked_fill"):
            path(q, q, q, **other)


# ---- Positions, normalizers, linear attention


def test_sinusoidal_is_vaswani():
    """Catches sin and cos swapped or a wrong wavelength."""
    table = sinusoidal(10, 7)
    assert table.shape == (10, 7)
    for p, c in itertools.product(range(10), range(7)):
        angle = p / 10000 ** ((c - c % 2) / 7)
        assert abs(table[p, c] - (math.cos(angle) if c % 2 else math.sin(angle))) < 1e-12


def test_sparsemax_is_the_projection_onto_the_simplex():
    """Catches a threshold that does not give the nearest point of the simplex, or its gradient."""
    scores = 2 * torch.randn(50, 7, dtype=torch.float64)
    weights = sparsemax(scores)
    # The nearest point: one threshold for all, and weights that sum to 1.
    threshold = (scores - weights).masked_fill(weights == 0, -math.inf).amax(-1, keepdim=True)
    assert_same([weights], [(scores - threshold).clamp_min(0)])
    assert_same([weights.sum(-1)], [torch.ones(50, dtype=torch.float64)])
    assert torch.autograd.gradcheck(sparsemax, scores.requires_grad_())
    many = torch.randn(4, 5000).bfloat16() / 100  # their sum needs more than half precision
    want = sparsemax(many.double())
    torch.testing.assert_close(sparsemax(many).double(), want, rtol=0.01, atol=1e-4)


@given(cases())
def test_linear_attention_is_its_definition_and_its_recurrence(case):
    """Catches a chunk border, a forgotten past, or a recurrent form that is another function."""
    q, k, v, _ = case
    Tq, Tk = q.shape[2], k.shape[2]

    def definition(q, k, v):
        weights = (elu1(q) @ elu1(share_heads(q, k)).mT).tril(Tk - Tq)
        return weights / weights.sum(-1, keepdim=True) @ share_heads(q, v)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_attention, "CHUNK", 8)
        got = value_and_gradients(linear, q, k, v)
    assert_same(got, value_and_gradients(definition, q, k, v), error=1e-11)
    state = None
    for token in zip(k.split(1, dim=2), v.split(1, dim=2)):
        y, state = linear_step(q[:, :, -1:], *token, state)
    assert_same([y], [got[0][:, :, -1:]])


# ---- The modules


@parametrize("visible", ["full", "causal", "two_sided:2,1"])
@parametrize("value_size", [None, 5])
def test_layers(visible, value_size):
    """Catches values cut at the width of keys, also in the cache, an encoder with a mask, and cross
    attention that is another function.
    """
    layer = SelfAttention(12, 3, visible=visible, value_size=value_size).double()
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    q, k, v = layer.c_attn(x).split(layer.c_attn.parts, dim=2)
    q, k, v = (part.unflatten(2, (3, -1)).transpose(1, 2) for part in (q, k, v))
    y = naive(q, k, v, predicate(visible)).transpose(1, 2)
    assert_same([layer(x)], [layer.c_proj(y.flatten(2))])
    if visible == "causal":
        cache = layer.new_cache(2, 6)
        chunks = [layer(part, cache=cache) for part in x.split([3, 1, 2], dim=1)]
        assert_same([torch.cat(chunks, dim=1)], [layer(x)])
        return
    with refused("there is no cache"):
        layer.new_cache(2, 6)
    if visible == "two_sided:2,1":
        narrow = SelfAttention(12, 3, visible="full", window=2).visible
        assert_same([mask_of(narrow, *positions(6, 6))], [mask_of(two_sided(2), *positions(6, 6))])
        return
    cross = CrossAttention(12, 3, value_size=value_size).double()
    weights = layer.c_attn.weight.data
    cross.c_q.weight.data, cross.c_kv.weight.data = weights.split([12, len(weights) - 12])
    cross.c_proj = layer.c_proj
    assert_same([cross(x, x)], [layer(x)])


def test_cross_attention():
    """Catches a lost query, another result of cached keys, and padding that is looked at."""
    layer = CrossAttention(12, 3, head_size=5).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    memory = torch.randn(2, 6, 12, dtype=torch.float64)
    want = layer(x, memory)
    assert_same([layer(x[:, 4:], layer.project(memory))], [want[:, 4:]])
    real = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    y = layer(x, memory, both(full, present(real)))
    assert_same([y[:1], y[1:]], [layer(x[:1], memory[:1, :4]), want[1:]])
