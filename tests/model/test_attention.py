"""Every path is the same function: naive defines it, hypothesis looks for a case that differs."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import assert_same, cases, qkv, value_and_gradients

import attention
from attention import (
    ATTENTION,
    CausalSelfAttention,
    CrossAttention,
    KVCache,
    SelfAttention,
    dot,
    elu1,
    fused,
    hard,
    linear,
    linear_step,
    masked_fill,
    naive,
    rope_table,
    rotate,
    share_heads,
    sinusoidal,
    sparsemax,
    tiled,
    visible_tiles,
)
from engine.common.hardware import peak_bytes
from engine.kernels import autograd, sdpa
from masks import (
    both,
    causal,
    full,
    local_global,
    positions,
    present,
    same_document,
    sliding_window,
)

OTHER_PATHS = [name for name in ATTENTION if name != "naive"]
every_path = pytest.mark.parametrize("path", ATTENTION.values(), ids=ATTENTION)


# ---- The paths


@settings(max_examples=400, deadline=None)
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
        patch.setattr(sdpa, "BLOCK", tile)
        got = value_and_gradients(ATTENTION[name], *inputs, visible)
    want = value_and_gradients(naive, *inputs, visible)
    for a, b in zip(got, want):
        assert b.isfinite().all()
        relative = 0 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(a, b, rtol=relative, atol=relative or 1e-12)


class Counting:
    """A predicate that counts the pairs it is evaluated for."""

    def __init__(self, visible):
        self.evaluate = visible
        self.pairs = 0
        self.window = visible.window
        self.n_global = getattr(visible, "n_global", 0)

    def __call__(self, i, j):
        self.pairs += torch.broadcast_shapes(i.shape, j.shape).numel()
        return self.evaluate(i, j)


@pytest.mark.parametrize("visible", [sliding_window(32), local_global(32, 4)])
def test_a_window_never_makes_all_pairs(visible):
    """Catches a (T, T) mask behind a window, in training and for a decoded token."""
    for T, dtype in itertools.product((1024, 2048), (torch.float32, torch.bfloat16)):
        q = torch.randn(1, 1, T, 8, dtype=dtype, requires_grad=True)
        counting = Counting(visible)
        fused(q, q, q, counting).sum().backward()
        assert 0 < counting.pairs <= T * 140
    for Tq in (1, 5):
        inputs = qkv(1, (1, 1), (Tq, 2048), 8)
        counting = Counting(visible)
        y = fused(*inputs, counting)
        assert_same([y], [masked_fill(*inputs, visible)])
        assert 0 < counting.pairs <= Tq * (32 + Tq + 4)


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 2**31))
def test_the_future_changes_nothing(case, seed):
    """Catches any leak: no bit of an output may depend on a later key or value."""
    q, k, v, visible = case
    if visible is full:
        return
    torch.manual_seed(seed)
    Tq, Tk = q.shape[2], k.shape[2]
    changed = int(torch.randint(Tk - Tq, Tk, ()))
    other_k, other_v = k.clone(), v.clone()
    other_k[:, :, changed:] = torch.randn_like(k[:, :, changed:])
    other_v[:, :, changed:] = 1e6 * torch.randn_like(v[:, :, changed:])
    before = changed - (Tk - Tq)  # queries that stand before the change
    for name, path in ATTENTION.items():
        y = path(q, k, v, visible)[:, :, :before]
        assert torch.equal(y, path(q, other_k, other_v, visible)[:, :, :before]), name


@every_path
def test_the_lectures_two_tokens(path):
    """Catches a lost scale or a wrong sum: scores 1 and 2 at D = 2 are weights 0.33 and 0.67."""
    q = torch.tensor([[[[1.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 0.0], [2.0, 0.0]]]])
    v = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    first = 1 / (1 + math.exp(1 / math.sqrt(2)))
    assert round(first, 2) == 0.33
    torch.testing.assert_close(path(q, k, v)[0, 0, 0], torch.tensor([10 * first, 10 * (1 - first)]))


# ---- Extremes


@every_path
def test_a_hidden_key_weighs_nothing(path):
    """Catches a mask that adds a large negative number in place of -inf."""

    def blind(i, j):
        return (j <= i) & (i % 5 != 3) & (i // 64 != 2)

    for lengths in (300, 300), (40, 300), (1, 4):
        q, k, v = qkv(2, (4, 2), lengths, 4)
        assert_same([path(1e6 * q, k, v, blind)], [naive(1e6 * q, k, v, blind)], error=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_path
def test_huge_inputs_stay_finite(path, dtype):
    """Catches scores that overflow: ±1e4 in half precision makes products of 1e8."""
    for visible, T in ((causal, 6), (sliding_window(4), 300)):
        q, k, v = (1e4 * x.sign() for x in qkv(1, (2, 2), (T, T), 8, dtype))
        assert path(q, k, v, visible).isfinite().all()


@pytest.mark.parametrize("path", [masked_fill, tiled, fused])
def test_autocast_does_not_cut_what_is_float32_on_purpose(path):
    """Catches sums and large scores that autocast turns back into half precision."""
    q, k, v = qkv(1, (2, 2), (40, 40), 8, torch.float16)
    q, k = 100 * q, 100 * k
    want = path(q.double(), k.double(), v.double())
    with torch.autocast("cpu", torch.float16):
        got = path(q, k, v)
    torch.testing.assert_close(got.double(), want, rtol=5e-3, atol=5e-3)


def test_tiled_never_holds_all_scores(monkeypatch):
    """Catches a tile as large as the sequence, forward or backward."""
    monkeypatch.setattr(attention, "TILE", 32)
    q = torch.randn(1, 1, 512, 8, requires_grad=True)

    def memory(path):
        return peak_bytes(lambda: torch.autograd.grad(path(q, q, q).sum(), q), torch.device("cpu"))

    assert memory(tiled) < memory(masked_fill) / 20


@pytest.mark.parametrize(
    "visible, count", [(full, 100), (causal, 55), (sliding_window(8), 19), (local_global(8, 1), 27)]
)
def test_tiled_skips_what_nobody_sees(monkeypatch, visible, count):
    """Catches tiles above the diagonal, or left of a window, that are computed for nothing."""
    monkeypatch.setattr(attention, "TILE", 8)
    i, j = positions(80, 80)
    assert sum(len(list(visible_tiles(visible, rows, j, 1))) for rows in i.split(8)) == count


# ---- Inputs that are refused


@every_path
@pytest.mark.parametrize(
    "heads, lengths, message",
    [
        ((3, 2), (4, 4), "cannot share"),
        ((2, 2), (5, 4), "Tq must not exceed Tk"),
        ((2, 2), (0, 0), "at least one sequence"),
    ],
)
def test_inputs_that_do_not_fit(path, heads, lengths, message):
    """Catches wrong shapes that are broadcast, and numbers that are converted, in silence."""
    with pytest.raises(ValueError, match=message):
        path(*qkv(1, heads, lengths, 8))
    q, k, v = qkv(1, (2, 2), (4, 4), 8)
    for wrong_k, wrong_v in (k[..., :6], v), (k, v[:, :, :3]):
        with pytest.raises(ValueError, match="attention needs"):
            path(q, wrong_k, wrong_v)
    for other in k.float(), k.to("meta"):
        with pytest.raises(ValueError, match="differ in dtype or device"):
            path(q, other, other)


@every_path
@pytest.mark.parametrize("T", [4, 300])
@pytest.mark.parametrize(
    "visible, message",
    [
        (lambda i, j: (j <= i).float(), "bool tensor"),
        (lambda i, j: (j <= i).numpy(), "bool tensor .* not ndarray"),
        (lambda i, j: 1, "not int"),
        (same_document(torch.zeros(3, dtype=torch.long)), "does not know all"),
        (same_document(torch.zeros(2, 300, dtype=torch.long)), "with B=4 in front, not torch.bool"),
    ],
)
def test_predicates_that_do_not_fit(path, visible, message, T):
    """Catches a predicate that is no mask, or documents of other sequences, applied in silence."""

    def in_window(i, j):
        return visible(i, j)

    in_window.window = T // 5 + 1
    q = torch.randn(4, 1, T, 4)
    for refused in visible, in_window:
        with pytest.raises(ValueError, match=message):
            path(q, q, q, refused)


@pytest.mark.parametrize("path", [tiled, fused])
def test_scores_that_a_path_cannot_compute(path):
    """Catches a path that computes softmax of the scaled dot product in place of another."""
    q = torch.randn(1, 2, 4, 8)
    for other in {"score": dot}, {"normalize": sparsemax}:
        with pytest.raises(ValueError, match=f'"{path.__name__}".*"masked_fill"'):
            path(q, q, q, **other)


@every_path
def test_who_may_look_across(path):
    """Catches more queries than keys where positions matter, however predicates are combined."""
    q, k, v = qkv(1, (1, 1), (6, 4), 4)
    here = present(torch.ones(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="Tq must not exceed Tk"):
        path(q, k, v, both(here, both(here, causal)))
    assert path(q, k, v, both(both(here, full), here)).shape == q.shape


# ---- Positions, normalizers, linear attention


def test_rope_pairs_are_half_split():
    """Catches interleaved pairs, which would read Llama's weights wrongly, and odd heads cut."""
    cos, sin = rope_table(2, 5)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    assert_same([rotate(x, cos[0], sin[0])], [x])  # position 0 does not turn
    want = x.clone()
    for pair, angle in enumerate((1.0, 10000.0 ** (-2 / 5))):
        turned = complex(x[pair], x[pair + 2]) * complex(math.cos(angle), math.sin(angle))
        want[pair], want[pair + 2] = turned.real, turned.imag
    assert_same([rotate(x, cos[1], sin[1])], [want])


def test_rope_stretched_as_llama_3():
    """Catches scaling that bends the fast pairs, or leaves the slow ones: Llama 3.1's formula."""
    cos, sin = rope_table(3, 128, base=500000.0, stretch=8.0, trained=8192)
    for pair in range(64):
        frequency = 500000.0 ** (-2 * pair / 128)
        wavelength = 2 * math.pi / frequency
        if wavelength > 8192:
            frequency /= 8
        elif wavelength > 8192 / 4:
            smooth = (8192 / wavelength - 1) / 3
            frequency = (1 - smooth) * frequency / 8 + smooth * frequency
        assert abs(torch.atan2(sin[1, pair], cos[1, pair]) - frequency) < 1e-12


def test_sinusoidal_is_vaswani():
    """Catches sin and cos swapped or a wrong wavelength."""
    table = sinusoidal(10, 7)
    assert table.shape == (10, 7)
    for p, c in itertools.product(range(10), range(7)):
        angle = p / 10000 ** ((c - c % 2) / 7)
        assert abs(table[p, c] - (math.cos(angle) if c % 2 else math.sin(angle))) < 1e-12


def test_hard_attention_looks_up_one_key():
    """Catches a mean of keys where a dict has one, and a model that would learn nothing."""
    q = torch.eye(3)[None, None]
    y = masked_fill(9 * q, q, q + 1, full, normalize=hard)
    assert torch.equal(y, q + 1)
    with pytest.raises(ValueError, match="no gradient: train with softmax"):
        masked_fill(q.requires_grad_(), q, q, full, normalize=hard)


def test_sparsemax_is_the_projection_onto_the_simplex():
    """Catches a threshold that does not give the nearest point of the simplex, or its gradient."""
    torch.manual_seed(0)
    scores = 2 * torch.randn(50, 7, dtype=torch.float64)
    weights = sparsemax(scores)
    assert (weights >= 0).all() and (weights == 0).any()
    others = torch.softmax(4 * torch.randn(2000, 1, 7, dtype=torch.float64), dim=-1)
    distance = (weights - scores).norm(dim=-1)
    assert (distance <= (others - scores).norm(dim=-1) + 1e-12).all()
    assert torch.autograd.gradcheck(sparsemax, scores.requires_grad_())
    ties = sparsemax(torch.tensor([1.0, 1.0, -5.0]))
    assert_same([ties], [torch.tensor([0.5, 0.5, 0.0])])
    many = torch.randn(4, 5000).bfloat16() / 100  # their sum needs more than half precision
    want = sparsemax(many.double())
    torch.testing.assert_close(sparsemax(many).double(), want, rtol=0.01, atol=1e-4)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_linear_attention_is_its_definition_and_its_recurrence(case):
    """Catches a chunk border, a forgotten past, or a recurrent form that is another function."""
    q, k, v, _ = case
    Tq, Tk = q.shape[2], k.shape[2]

    def definition(q, k, v):
        weights = (elu1(q) @ elu1(share_heads(q, k)).mT).tril(Tk - Tq)
        return weights / weights.sum(-1, keepdim=True) @ share_heads(q, v)

    got = value_and_gradients(lambda q, k, v: linear(q, k, v, chunk=8), q, k, v)
    assert_same(got, value_and_gradients(definition, q, k, v), error=1e-11)
    state = None
    queries = torch.cat([q.new_zeros(*q.shape[:2], Tk - Tq, q.shape[3]), q], dim=2)
    outputs = []
    for t in range(Tk):
        token = (x[:, :, t : t + 1] for x in (queries, k, v))
        y, state = linear_step(*token, state)
        outputs.append(y)
    assert_same([torch.cat(outputs[Tk - Tq :], dim=2)], got[:1])


# ---- Memory


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_chunking_through_the_cache(data):
    """Catches a cache that forgets, reorders or misplaces: chunks must give the whole's output."""
    window = data.draw(st.sampled_from([None, 1, 3, 50]))
    T = data.draw(st.integers(1, 40))
    path = data.draw(st.sampled_from(list(ATTENTION)))
    how = dict(window=window, attention=path, value_size=data.draw(st.sampled_from([None, 3, 7])))
    layer = SelfAttention(24, 4, 2, qk_norm=autograd.rms_norm, **how).double()
    x = torch.randn(2, T, 24, dtype=torch.float64)
    cos, sin = rope_table(T, 6)
    cache = layer.new_cache(2, T)
    outputs = []
    start = 0
    while start < T:
        end = data.draw(st.integers(start + 1, T))
        outputs.append(layer(x[:, start:end], (cos[start:end], sin[start:end]), cache))
        start = end
    assert len(cache) == T
    assert_same([torch.cat(outputs, dim=1)], [layer(x, (cos, sin))])


def test_cache_refuses_what_does_not_fit():
    """Catches a cache that grows, wraps around, broadcasts in silence, or is copied."""
    cache = KVCache(batch_size=2, n_kv_head=1, max_len=3, head_size=4)
    k = torch.randn(2, 1, 2, 4, dtype=torch.float64)
    memory = cache.append(k, k)[0].data_ptr()
    wrong = (
        (k, k, "full: 2 of 3"),
        (k[:1], k[:1], "B=2"),
        (k, k[..., :3], r"Dv=4.*v \(2, 1, 2, 3\)"),
    )
    for k_new, v_new, message in wrong:
        with pytest.raises(ValueError, match=message):
            cache.append(k_new, v_new)
    with pytest.raises(ValueError, match="cannot trim 2 positions to 3"):
        cache.trim(3)
    cache.reset()
    again, _ = cache.append(k, k)
    assert torch.equal(again, k) and again.data_ptr() == memory


# ---- The modules


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"attention": "flash"}, "attention='flash' is unknown; choose from .*naive.*linear"),
        ({"attention": "linear", "window": 4}, "attention='linear' sees all of the past"),
        ({"attention": "performer", "score": "dot"}, "attention='performer' cannot do score='dot'"),
        ({"attention": "tiled", "normalize": "sparsemax"}, "choose attention=masked_fill"),
        ({"attention": "linear", "visible": "full"}, "attention='linear' sees all of the past"),
        ({"visible": "full", "window": 2}, "visible='full' sees all positions: leave window out"),
    ],
)
def test_modules_that_cannot_be(settings, message):
    """Catches a mechanism that is ignored, or refused without a remedy."""
    with pytest.raises(ValueError, match=message):
        CausalSelfAttention(8, 2, **settings)


@pytest.mark.parametrize("attention", ATTENTION)
def test_self_attention_without_a_mask(attention):
    """Catches an encoder that hides the future, and values cut at the width of keys."""
    layer = SelfAttention(12, 3, visible="full", value_size=5, attention=attention).double()
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    parts = layer.c_attn(x).split([12, 12, 15], dim=2)
    q, k, v = (part.unflatten(2, (3, -1)).transpose(1, 2) for part in parts)
    y = torch.softmax(q @ k.mT / 2, -1) @ v
    assert_same([layer(x)], [layer.c_proj(y.transpose(1, 2).flatten(2))])
    with pytest.raises(ValueError, match="there is no cache"):
        layer.new_cache(2, 6)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("T, value_size", [(3, None), (9, 7)])
def test_cross_attention(attention, T, value_size):
    """Catches a lost query, another result of cached keys, and padding that is looked at."""
    layer = CrossAttention(12, 3, value_size=value_size, attention=attention).double()
    x = torch.randn(2, T, 12, dtype=torch.float64)
    memory = torch.randn(2, 6, 12, dtype=torch.float64)
    k, v = layer.project(memory)
    q = layer.c_q(x).unflatten(2, (3, 4)).transpose(1, 2)
    y = torch.softmax(q @ k.mT / 2, -1) @ v
    want = layer.c_proj(y.transpose(1, 2).flatten(2))
    assert_same([layer(x, memory)], [want])
    assert torch.equal(layer(x, memory), layer(x, (k, v)))
    real = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    for visible in (present(real), both(full, present(real))):
        y = layer(x, memory, visible)
        assert_same([y[:1], y[1:]], [layer(x[:1], memory[:1, :4]), layer(x[1:], memory[1:])])
