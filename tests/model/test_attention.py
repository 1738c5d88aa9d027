"""Every path is the same function: naive says which, hypothesis looks for a shape where another path differs."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import (
    ATTENTION,
    SCORE,
    CausalSelfAttention,
    CrossAttention,
    KVCache,
    Tiled,
    alibi,
    attention_weights,
    both,
    causal,
    dot,
    elu1,
    full,
    fused,
    linear,
    linear_step,
    local_global,
    masked_fill,
    naive,
    present,
    rope_table,
    rotate,
    same_document,
    scaled_dot,
    share_heads,
    sinusoidal,
    sliding_window,
    softmax,
    sparsemax,
    strided,
    tiled,
)
from engine.common.hardware import peak_bytes
from engine.kernels import autograd, sdpa

PATHS = [name for name in ATTENTION if name != "naive"]


def past_only_even(i, j):
    """A predicate that no path has a shortcut for, and that hides everything from no one but leaves gaps."""
    return (j <= i) & ((j % 2 == 0) | (j == i))


def nobody_before_three(i, j):
    """Queries before position 3 may see nothing at all."""
    return (j <= i) & (i >= 3)


@st.composite
def cases(draw):
    """(q, k, v, visible): any shape with Tq <= Tk and H % G == 0, any predicate."""
    B, G, D = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    H = G * draw(st.integers(1, 3))
    first, S = draw(st.integers(0, 5)), draw(st.integers(1, 9))
    Tq = draw(st.integers(1, 12))
    Tk = Tq + draw(st.one_of(st.just(0), st.integers(0, 60)))
    W = draw(st.integers(1, 2 * Tk))
    real = (torch.arange(B * Tk) % (S + 1) > 0).view(B, Tk)
    visible = draw(
        st.sampled_from(
            [
                causal,
                full,
                sliding_window(W),
                both(causal, past_only_even),
                both(sliding_window(W), past_only_even),
                both(sliding_window(W), sliding_window(3)),
                nobody_before_three,
                both(sliding_window(W), nobody_before_three),
                local_global(W, first),
                strided(S),
                both(causal, same_document(torch.arange(Tk) // S)),
                both(local_global(W, first), same_document(torch.arange(B * Tk).view(B, Tk) // S)),
                both(local_global(W, first), local_global(S, 2)),
                both(sliding_window(W), local_global(S, 2)),
                both(causal, present(real)),
                both(local_global(W, first), present(real)),
                alibi(H),
                both(alibi(H), sliding_window(W)),
                both(alibi(H), nobody_before_three),
                both(alibi(H), both(causal, present(real))),
            ]
        )
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shapes = (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, D)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q, k, v, visible


def value_and_gradients(path, q, k, v, visible, *score_and_normalizer):
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    y = path(*inputs, visible, *score_and_normalizer)
    return y, torch.autograd.grad(
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum(), inputs
    )


@settings(max_examples=400, deadline=None)
@given(
    cases(),
    st.sampled_from(PATHS),
    st.sampled_from([torch.float64, torch.float32]),
    st.sampled_from([4, 16, 256]),
)
def test_paths_agree_with_naive(case, name, dtype, tile):
    """Catches a mask aligned to the wrong corner, a wrong head shared, a block cut off, NaN in a row that sees nothing."""
    *qkv, visible = case
    q, k, v = (x.to(dtype) for x in qkv)
    want, want_gradients = value_and_gradients(naive, q, k, v, visible)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tiled, "TILE", tile)
        patch.setattr(sdpa, "BLOCK", tile)
        got, gradients = value_and_gradients(ATTENTION[name], q, k, v, visible)
    error = dict(rtol=0, atol=1e-12) if dtype == torch.float64 else dict(rtol=1e-5, atol=1e-5)
    assert want.isfinite().all()
    torch.testing.assert_close(got, want, **error)
    for g, w in zip(gradients, want_gradients):
        torch.testing.assert_close(g, w, **error)


LONG = {
    "sliding_window(1)": sliding_window(1),
    "sliding_window(5)": sliding_window(5),
    "sliding_window(64)": sliding_window(64),
    "sliding_window(65)": sliding_window(65),
    "sliding_window(100)": sliding_window(100),
    "local_global(30, 70)": local_global(30, 70),
    "documents in a window": both(
        sliding_window(90), same_document(torch.arange(2 * 611).view(2, 611) // 37)
    ),
    "blind in a window": both(sliding_window(90), lambda i, j: (i % 7 > 0) & (j >= 0)),
}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("about", LONG)
@pytest.mark.parametrize("Tq", [611, 500])
def test_long_windows_in_blocks(name, about, Tq):
    """Catches block arithmetic that is right for short sequences and wrong where many blocks meet."""
    torch.manual_seed(Tq)
    q, k, v = (
        torch.randn(2, heads, T, 6, dtype=torch.float64)
        for heads, T in ((4, Tq), (2, 611), (2, 611))
    )
    want, want_gradients = value_and_gradients(masked_fill, q, k, v, LONG[about])
    got, gradients = value_and_gradients(ATTENTION[name], q, k, v, LONG[about])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for g, w in zip(gradients, want_gradients):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("about", LONG)
def test_half_precision_windows(about, dtype):
    """Catches the blocks that the kernel gets (on a GPU, and in half precision) going another way than those in float32."""
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, T, 16).to(dtype) for heads, T in ((4, 500), (2, 611), (2, 611))
    )
    want, want_gradients = value_and_gradients(
        masked_fill, *(x.double() for x in (q, k, v)), LONG[about]
    )
    got, gradients = value_and_gradients(fused, q, k, v, LONG[about])
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=0.03, atol=0.03)
    for g, w in zip(gradients, want_gradients):
        torch.testing.assert_close(g.double(), w, rtol=0.06, atol=0.06)


@pytest.mark.parametrize(
    "visible", [sliding_window(32), local_global(32, 4)], ids=["sliding_window", "local_global"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_never_makes_all_pairs(visible, dtype):
    """Catches a (T, T) mask behind a window: the predicate must be asked about O(T·W) pairs only."""
    asked = []

    def spy(i, j):
        asked.append(torch.broadcast_shapes(i.shape, j.shape).numel())
        return visible(i, j)

    spy.window, spy.n_global = visible.window, getattr(visible, "n_global", 0)
    for T in (1024, 2048):
        asked.clear()
        q = torch.randn(1, 1, T, 8, dtype=dtype, requires_grad=True)
        fused(q, q, q, spy).sum().backward()
        assert 0 < sum(asked) <= T * 140, (T, asked)


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 2**31))
def test_the_future_changes_nothing(case, seed):
    """Catches any leak from the future: not one bit of an output may depend on a later key or value."""
    q, k, v, visible = case
    if visible is full:
        return
    Tq, Tk = q.shape[2], k.shape[2]
    generator = torch.Generator().manual_seed(seed)
    first_changed = int(torch.randint(Tk - Tq, Tk, (), generator=generator))
    other_k, other_v = k.clone(), v.clone()
    other_k[:, :, first_changed:] = torch.randn(
        k[:, :, first_changed:].shape, generator=generator, dtype=k.dtype
    )
    other_v[:, :, first_changed:] = 1e6 * torch.randn(
        v[:, :, first_changed:].shape, generator=generator, dtype=k.dtype
    )
    before = first_changed - (Tk - Tq)  # queries that stand before the change
    for name, path in ATTENTION.items():
        same = torch.equal(
            path(q, k, v, visible)[:, :, :before], path(q, other_k, other_v, visible)[:, :, :before]
        )
        assert same, name


def test_a_window_as_long_as_the_text_is_causal():
    """Catches an off-by-one in the window: W counts the token itself."""
    q, k, v = (torch.randn(1, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    for path in ATTENTION.values():
        torch.testing.assert_close(
            path(q, k, v, sliding_window(9)), path(q, k, v, causal), rtol=0, atol=1e-12
        )
        torch.testing.assert_close(path(q, k, v, sliding_window(1)), v, rtol=0, atol=1e-12)


def test_weights_are_a_causal_map():
    """Catches weights that leak above the diagonal, do not sum to one, or are not those that the path used."""
    q, k, v = torch.randn(2, 4, 7, 5), torch.randn(2, 2, 7, 5), torch.randn(2, 2, 7, 5)
    weights = attention_weights(q, k)
    assert weights.shape == (2, 4, 7, 7)
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 7))
    for path in ATTENTION.values():
        torch.testing.assert_close(path(q, k, v), weights @ v.repeat_interleave(2, dim=1))


def test_the_lectures_two_tokens():
    """Catches a lost scale or a wrong sum: scores 1 and 2 at D = 2 are weights 0.33 and 0.67, and that blend of the values."""
    q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [2.0, 0.0]]]])
    v = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    scaled = [1 / math.sqrt(2), 2 / math.sqrt(2)]
    want = math.exp(scaled[0]) / (math.exp(scaled[0]) + math.exp(scaled[1]))
    weights = attention_weights(q, k)[0, 0, 0]
    assert abs(weights[0] - want) < 1e-6 and [round(w, 2) for w in weights.tolist()] == [0.33, 0.67]
    for path in ATTENTION.values():
        torch.testing.assert_close(
            path(q, k, v)[0, 0, 0], torch.tensor([10 * want, 10 * (1 - want)])
        )


@pytest.mark.parametrize("D", [16, 64, 256, 1024])
def test_why_scores_are_scaled(D):
    """Catches a scale that is not 1/sqrt(D): products of unit normals have variance D, scaled ones variance 1."""
    torch.manual_seed(D)
    q, k = (
        torch.randn(20, 1, 64, D, dtype=torch.float64),
        torch.randn(20, 1, 64, D, dtype=torch.float64),
    )
    assert abs(dot(q, k).var() / D - 1) < 0.05
    assert abs(scaled_dot(q, k).var() - 1) < 0.05


def test_softmax_without_the_scale_is_one_hot():
    """Catches the scale applied after softmax, or not at all: at D = 1024 the weights would be one-hot, entropy near 0."""
    torch.manual_seed(0)
    q, k = (
        torch.randn(20, 1, 64, 1024, dtype=torch.float64),
        torch.randn(20, 1, 64, 1024, dtype=torch.float64),
    )

    def entropy(score):
        weights = attention_weights(q, k, full, score)
        return torch.special.entr(weights).sum(-1).mean()

    assert (
        abs(entropy(scaled_dot) - (math.log(64) - 0.5)) < 0.05
    )  # for normal scores of variance 1, nearly uniform
    assert entropy(dot) < 0.3
    assert attention_weights(q, k, full, dot).amax(-1).median() > 0.99


def test_rope_depends_on_distance_alone():
    """Catches angles that do not add up: q·k must be the same wherever the pair stands."""
    cos, sin = rope_table(200, 16)
    q, k = torch.randn(16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    near = [
        rotate(q[None], cos[i : i + 1], sin[i : i + 1])
        @ rotate(k[None], cos[i - 7 : i - 6], sin[i - 7 : i - 6]).T
        for i in (7, 50, 199)
    ]
    assert max(abs(x.item() - near[0].item()) for x in near) < 1e-12


def test_rope_pairs_are_half_split():
    """Catches interleaved pairs, which would read Llama's weights wrongly, and lost features of an odd head."""
    cos, sin = rope_table(2, 5)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]] * 2, dtype=torch.float64)
    y = rotate(x, cos, sin)
    torch.testing.assert_close(y[0], x[0])  # position 0 does not turn
    angle = torch.tensor([1.0, 10000.0 ** (-2 / 5)], dtype=torch.float64)
    want = torch.cat(
        [
            x[1, :2] * angle.cos() - x[1, 2:4] * angle.sin(),
            x[1, 2:4] * angle.cos() + x[1, :2] * angle.sin(),
        ]
    )
    torch.testing.assert_close(y[1], torch.cat([want, x[1, 4:]]))


def test_sinusoidal_is_vaswani():
    """Catches sin and cos swapped or a wrong wavelength."""
    table = sinusoidal(10, 7)
    assert table.shape == (10, 7)
    for p in range(10):
        for c in range(7):
            angle = torch.tensor(p / 10000 ** ((c - c % 2) / 7), dtype=torch.float64)
            assert abs(table[p, c] - (angle.cos() if c % 2 else angle.sin())) < 1e-12


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_chunking_through_the_cache(data):
    """Catches a cache that forgets, reorders or misplaces: any chunks must give the outputs of the whole."""
    window = data.draw(st.sampled_from([None, 1, 3, 50]))
    T = data.draw(st.integers(1, 40))
    path = data.draw(st.sampled_from(list(ATTENTION)))
    layer = CausalSelfAttention(24, 4, 2, qk_norm=autograd.rms_norm, window=window, attention=path)
    layer = layer.double()
    x, (cos, sin) = torch.randn(2, T, 24, dtype=torch.float64), rope_table(T, 6)
    cache, start, outputs = layer.new_cache(2, T), 0, []
    while start < T:
        end = data.draw(st.integers(start + 1, T))
        outputs.append(layer(x[:, start:end], (cos[start:end], sin[start:end]), cache))
        start = end
    assert len(cache) == T
    torch.testing.assert_close(torch.cat(outputs, dim=1), layer(x, (cos, sin)), rtol=0, atol=1e-12)


def test_cache_refuses_what_does_not_fit():
    """Catches a cache that grows, wraps around or broadcasts in silence."""
    cache = KVCache(batch_size=2, n_kv_head=1, max_len=3, head_size=4)
    k = torch.randn(2, 1, 2, 4)
    cache.append(k, k)
    with pytest.raises(ValueError, match="full: 2 of 3"):
        cache.append(k, k)
    with pytest.raises(ValueError, match="B=2"):
        cache.append(k[:1], k[:1])
    assert len(cache) == 2
    cache.reset()
    assert len(cache) == 0
    held, _ = cache.append(k, k)
    assert torch.equal(held, k)


def test_cache_memory_is_allocated_once():
    """Catches a torch.cat per token: what append returns are views of the same memory."""
    cache = KVCache(1, 1, 8, 4)
    one = torch.randn(1, 1, 1, 4)
    first, _ = cache.append(one, one)
    second, _ = cache.append(one, one)
    assert first.data_ptr() == second.data_ptr()


def test_state_dict_is_the_same_for_every_path():
    """Catches masks or tables that sneak into checkpoints."""
    names = [list(CausalSelfAttention(8, 2, attention=path).state_dict()) for path in ATTENTION]
    assert all(n == ["c_attn.weight", "c_proj.weight"] for n in names)


@pytest.mark.parametrize("path", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize(
    "q, k, message",
    [
        ((1, 3, 4, 8), (1, 2, 4, 8), "3 query heads cannot share 2"),
        ((1, 2, 5, 8), (1, 2, 4, 8), "Tq must not exceed Tk"),
        ((1, 2, 4, 8), (1, 2, 4, 6), "attention needs"),
        ((2, 4, 8), (2, 4, 8), "attention needs"),
    ],
)
def test_shapes_that_do_not_fit(path, q, k, message):
    """Catches silent broadcasting of wrong shapes."""
    with pytest.raises(ValueError, match=message):
        path(torch.randn(q), torch.randn(k), torch.randn(k))


def test_other_bad_input():
    """Catches windows that see nothing, mixed dtypes, and predicates that are not masks."""
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="dtype"):
        masked_fill(q, q.double(), q.double())
    with pytest.raises(ValueError, match="bool tensor"):
        masked_fill(q, q, q, visible=lambda i, j: (j <= i).float())
    with pytest.raises(ValueError, match="bool tensor"):
        fused(q, q, q, visible=lambda i, j: j >= 0)
    with pytest.raises(ValueError, match="bool tensor of shape"):
        naive(q, q, q, visible=lambda i, j: torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="not int"):
        fused(q, q, q, visible=lambda i, j: 1)
    with pytest.raises(ValueError, match="device"):
        fused(q, q.to("meta"), q)
    for path in (fused, tiled):
        with pytest.raises(ValueError, match=f'"{path.__name__}".*"masked_fill"'):
            path(q, q, q, score=dot)
        with pytest.raises(ValueError, match=f'"{path.__name__}".*"masked_fill"'):
            path(q, q, q, normalize=sparsemax)
    for wrong, message in (
        ({"attention": "flash"}, "attention='flash' is unknown; choose from .*naive"),
        ({"score": "cosine"}, "score='cosine'"),
        ({"attention": "linear", "window": 4}, "attention='linear' sees all of the past"),
        ({"normalize": "max"}, "normalize='max'"),
        ({"attention": "performer", "score": "dot"}, "attention='performer' cannot do score='dot'"),
    ):
        with pytest.raises(ValueError, match=message):
            CausalSelfAttention(8, 2, **wrong)
    with pytest.raises(ValueError, match="attention='linear' is unknown; choose from .*naive"):
        CrossAttention(8, 2, attention="linear")
    with pytest.raises(ValueError, match="attention='fused' cannot do score='additive'"):
        CrossAttention(8, 2, score="additive")
    with pytest.raises(ValueError, match="n_head=0"):
        CausalSelfAttention(8, 0)
    for path in ATTENTION.values():
        with pytest.raises(ValueError, match="does not know all 4 positions"):
            path(q, q, q, both(causal, same_document(torch.zeros(3, dtype=torch.long))))
        for empty in (q[:0], q[:, :0], q[:, :, :0]):
            with pytest.raises(ValueError, match="at least one sequence"):
                path(empty, empty, empty)
    with pytest.raises(ValueError, match="at least one sequence"):
        linear(q[:, :, :0], q, q)


def test_who_may_look_across():
    """Catches more queries than keys where positions matter, however the predicate was put together."""
    q, k = torch.randn(1, 1, 6, 4), torch.randn(1, 1, 4, 4)
    here = present(torch.ones(4, dtype=torch.bool))
    documents = same_document(torch.zeros(6, dtype=torch.long))
    for visible in (
        causal,
        both(causal, here),
        both(both(causal, documents), here),
        both(here, both(documents, causal)),
    ):
        for path in ATTENTION.values():
            with pytest.raises(ValueError, match="Tq must not exceed Tk"):
                path(q, k, k, visible)
    assert fused(q, k, k, both(both(here, full), here)).shape == q.shape


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_gradients_of_some_inputs_only(wanted):
    """Catches a backward pass that needs all gradients to be asked for."""
    torch.manual_seed(0)
    results = []
    for path in (fused, masked_fill):
        torch.manual_seed(1)
        qkv = [
            torch.randn(1, 2, 200, 4, dtype=torch.float64, requires_grad=n in wanted)
            for n in range(3)
        ]
        results.append(
            torch.autograd.grad(
                path(*qkv, sliding_window(20)).square().sum(), [qkv[n] for n in wanted]
            )
        )
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


# ---- scores, normalizers, linear attention


def test_sparsemax_is_the_projection_onto_the_simplex():
    """Catches a wrong threshold: the result must be the nearest point of the simplex, with an exact gradient."""
    scores = torch.randn(50, 7, dtype=torch.float64) * 2
    weights = sparsemax(scores)
    assert (weights >= 0).all() and (weights == 0).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(50, dtype=torch.float64))
    others = torch.softmax(torch.randn(2000, 1, 7, dtype=torch.float64) * 4, dim=-1)
    assert ((weights - scores).norm(dim=-1) <= (others - scores).norm(dim=-1) + 1e-12).all()
    assert torch.autograd.gradcheck(sparsemax, scores.requires_grad_())
    torch.testing.assert_close(
        sparsemax(torch.tensor([1.0, 1.0, -5.0])), torch.tensor([0.5, 0.5, 0.0])
    )


@settings(max_examples=200, deadline=None)
@given(
    cases(), st.sampled_from(["dot", "general", "additive"]), st.sampled_from([softmax, sparsemax])
)
def test_every_score_and_normalizer(case, name, normalize):
    """Catches a score or normalizer that works on all keys at once and not on those that a query sees."""
    q, k, v, visible = case
    torch.manual_seed(0)
    score = SCORE[name](q.shape[-1])
    score = score.double() if isinstance(score, torch.nn.Module) else score
    want, want_gradients = value_and_gradients(naive, q, k, v, visible, score, normalize)
    got, gradients = value_and_gradients(masked_fill, q, k, v, visible, score, normalize)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-11)
    for g, w in zip(gradients, want_gradients):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["general", "additive"])
def test_learned_scores_learn(name):
    """Catches a parameter that a score uses but does not learn, or whose gradient is not that of the weights."""
    torch.manual_seed(0)
    score = SCORE[name](4).double()
    q, k = (
        torch.randn(1, 2, 5, 4, dtype=torch.float64),
        torch.randn(1, 1, 5, 4, dtype=torch.float64),
    )
    names, values = zip(*score.named_parameters())

    def weights(*values):
        return attention_weights(
            q,
            k,
            causal,
            lambda *qk: torch.func.functional_call(score, dict(zip(names, values)), qk),
        )

    assert torch.autograd.gradcheck(weights, [x.detach().requires_grad_() for x in values])
    gradients = torch.autograd.grad(attention_weights(q, k, causal, score)[..., 0].sum(), values)
    assert all(g.abs().max() > 1e-3 for g in gradients)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_linear_attention_is_its_definition_and_its_recurrence(case):
    """Catches a chunk border, a forgotten past, or a recurrent form that is another function."""
    q, k, v, _ = case
    Tq, Tk = q.shape[2], k.shape[2]

    def definition(q, k, v, _):
        weights = (elu1(q) @ elu1(share_heads(q, k)).mT).tril(Tk - Tq)
        return weights / weights.sum(-1, keepdim=True) @ share_heads(q, v)

    want, want_gradients = value_and_gradients(definition, *case)
    got, gradients = value_and_gradients(lambda q, k, v, _: linear(q, k, v, chunk=8), *case)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for g, w in zip(gradients, want_gradients):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-11)
    state, everyone = None, torch.randn(*q.shape[:2], Tk, q.shape[3], dtype=torch.float64)
    everyone[:, :, Tk - Tq :] = q
    for t in range(Tk):
        y, state = linear_step(
            everyone[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state
        )
        if t >= Tk - Tq:
            torch.testing.assert_close(y[:, :, 0], got[:, :, t - (Tk - Tq)], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "path, visible", [(tiled, causal), (fused, sliding_window(3))], ids=["tiled", "fused"]
)
def test_no_wrong_second_derivative(path, visible):
    """Catches a gradient written by hand that is differentiated again, and silently loses a part."""
    q = torch.randn(1, 1, 300, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative|not implemented"):
        (gradient,) = torch.autograd.grad(
            path(q, q, q, visible).square().sum(), q, create_graph=True
        )
        torch.autograd.grad(gradient.square().sum(), q)


@pytest.mark.parametrize("path", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("W", [2, 200], ids=["window", "all"])
def test_a_predicate_for_another_batch(path, W):
    """Catches documents of two sequences applied to one, or to four, in silence."""
    visible = both(sliding_window(W), same_document(torch.zeros(2, 90, dtype=torch.long)))
    for B in (1, 4):
        q = torch.randn(B, 1, 90, 4)
        with pytest.raises(ValueError, match=f"or with B={B} in front, not torch.bool"):
            path(q, q, q, visible)
    with pytest.raises(ValueError, match="bool tensor of shape"):
        path(q, q, q, lambda i, j: (j <= i)[None, None])


def test_few_queries_reach_few_keys():
    """Catches a decoded token that is compared with all of a long past, though its window is short."""
    asked = []

    def spy(i, j):
        asked.append(torch.broadcast_shapes(i.shape, j.shape).numel())
        return visible(i, j)

    for visible in (sliding_window(32), local_global(32, 4)):
        spy.window, spy.n_global = 32, getattr(visible, "n_global", 0)
        for Tq in (1, 5):
            asked.clear()
            q, k, v = (
                torch.randn(1, 1, Tq, 8),
                torch.randn(1, 1, 2048, 8),
                torch.randn(1, 1, 2048, 8),
            )
            torch.testing.assert_close(fused(q, k, v, spy), masked_fill(q, k, v, visible))
            assert sum(asked) <= Tq * (32 + Tq + 4)


def test_weights_refuse_what_paths_refuse():
    """Catches a picture of attention with positions below zero."""
    with pytest.raises(ValueError, match="Tq must not exceed Tk"):
        attention_weights(torch.randn(1, 1, 5, 4), torch.randn(1, 1, 4, 4))
    with pytest.raises(ValueError, match="evenly"):
        attention_weights(torch.randn(1, 3, 4, 4), torch.randn(1, 2, 4, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("path", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("W", [None, 8], ids=["all", "window"])
def test_a_query_that_sees_nothing(path, dtype, W):
    """Catches NaN from a softmax of nothing: such rows are zeros, and send no gradient to anything."""

    def visible(i, j):
        return (j <= i) & (i % 3 > 0)

    q, k, v = (torch.randn(1, 2, 70, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    y = path(q, k, v, both(visible, sliding_window(W)) if W else visible)
    assert (y[:, :, ::3] == 0).all() and (y[:, :, 1::3] != 0).any()
    dq, dk, dv = torch.autograd.grad(
        y.float().square().sum() + y[:, :, ::3].float().sum(), (q, k, v)
    )
    assert (dq[:, :, ::3] == 0).all() and all(d.isfinite().all() for d in (dq, dk, dv))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("path", ATTENTION.values(), ids=ATTENTION)
def test_huge_inputs_stay_finite(path, dtype):
    """Catches scores that overflow: ±1e4 in half precision makes products of 1e8."""
    for visible, T in ((causal, 6), (sliding_window(4), 300)):
        q, k, v = (torch.randn(1, 2, T, 8).sign().mul(1e4).to(dtype) for _ in range(3))
        assert path(q, k, v, visible).isfinite().all()
        for name, normalize in itertools.product(
            SCORE if path in (naive, masked_fill) else (), (softmax, sparsemax)
        ):
            score = SCORE[name](8)
            score = score.to(dtype) if isinstance(score, torch.nn.Module) else score
            assert path(q, k, v, visible, score, normalize).isfinite().all(), (name, normalize)
            sums = attention_weights(q, k, visible, score, normalize).sum(-1)
            torch.testing.assert_close(sums.float(), torch.ones(sums.shape), rtol=0, atol=0.02)


def test_sparsemax_in_half_precision():
    """Catches a running sum of 5,000 halves: the weights must be those of float64, but for the last rounding."""
    torch.manual_seed(0)
    scores = torch.randn(4, 5000).bfloat16() / 100
    torch.testing.assert_close(
        sparsemax(scores).double(), sparsemax(scores.double()), rtol=0.01, atol=1e-4
    )


def test_tiled_never_holds_all_scores(monkeypatch):
    """Catches a tile as large as the sequence: with tiles of 8, many meet, with the same result."""
    monkeypatch.setattr(Tiled, "TILE", 8)
    torch.manual_seed(1)
    q, k, v = (
        torch.randn(2, heads, T, 5, dtype=torch.float64) for heads, T in ((4, 50), (2, 61), (2, 61))
    )
    for visible in (causal, full, local_global(7, 3), nobody_before_three):
        want, want_gradients = value_and_gradients(naive, q, k, v, visible)
        got, gradients = value_and_gradients(tiled, q, k, v, visible)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        for g, w in zip(gradients, want_gradients):
            torch.testing.assert_close(g, w, rtol=0, atol=1e-12)
    monkeypatch.setattr(Tiled, "TILE", 32)
    sizes = {}
    for path in (tiled, masked_fill):
        q = torch.randn(1, 1, 512, 8, requires_grad=True)
        sizes[path] = peak_bytes(
            lambda path=path: torch.autograd.grad(path(q, q, q).sum(), q), torch.device("cpu")
        )
    assert sizes[tiled] < sizes[masked_fill] / 20


def test_tiled_skips_what_nobody_sees(monkeypatch):
    """Catches tiles above the diagonal, or left of a window, that are computed and thrown away."""
    monkeypatch.setattr(Tiled, "TILE", 8)
    q = torch.empty(1, 1, 80, 4)
    for visible, count in (
        (full, 100),
        (causal, 55),
        (sliding_window(8), 10 + 9),
        (local_global(8, 1), 10 + 9 + 8),
    ):
        assert len(list(Tiled.tiles(q, q, visible))) == count


@pytest.mark.parametrize("path", [masked_fill, tiled, fused])
def test_autocast_does_not_cut_what_is_float32_on_purpose(path):
    """Catches sums and large scores that autocast turns back into half precision."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 8).mul(scale).half() for scale in (100, 100, 1))
    want = path(*(x.double() for x in (q, k, v)))
    with torch.autocast("cpu", torch.float16):
        got = path(q, k, v)
    torch.testing.assert_close(got.double(), want, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("attention", ATTENTION)
def test_cross_attention(attention):
    """Catches cross-attention that needs as many keys as queries, or whose cached keys differ."""
    layer = CrossAttention(12, 3, attention=attention).double()
    x, memory = (
        torch.randn(2, 9, 12, dtype=torch.float64),
        torch.randn(2, 4, 12, dtype=torch.float64),
    )
    y = layer(x, memory)
    assert torch.equal(y, layer(x, layer.project(memory)))
    torch.testing.assert_close(
        y[:, 3:5], layer(x[:, 3:5], memory), rtol=0, atol=1e-12
    )  # each query by itself
    k, v = layer.project(memory)
    q = layer.c_q(x).unflatten(2, (3, 4)).transpose(1, 2)
    want = layer.c_proj((torch.softmax(q @ k.mT / 2, -1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(y, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("T", [3, 9])
def test_cross_attention_to_a_padded_batch(attention, T):
    """Catches padding that is looked at, or a batch that is refused because it has more queries than keys."""
    layer = CrossAttention(12, 3, attention=attention).double()
    x, memory = (
        torch.randn(2, T, 12, dtype=torch.float64),
        torch.randn(2, 6, 12, dtype=torch.float64),
    )
    real = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    for visible in (present(real), both(full, present(real))):
        y = layer(x, memory, visible)
        torch.testing.assert_close(y[:1], layer(x[:1], memory[:1, :4]), rtol=0, atol=1e-12)
        torch.testing.assert_close(y[1:], layer(x[1:], memory[1:]), rtol=0, atol=1e-12)


def test_a_cache_takes_the_dtype_of_its_keys():
    """Catches keys that are rounded in silence, and autocast that fails because the cache has another dtype."""
    cache = KVCache(1, 1, 8, 4)
    k = torch.randn(1, 1, 2, 4, dtype=torch.float64)
    assert torch.equal(cache.append(k, k)[0], k)
    with pytest.raises(ValueError, match="holds torch.float64 on cpu, not torch.float32"):
        cache.append(k.float(), k.float())


def test_rope_stretched_as_llama_3():
    """Catches scaling that bends the fast pairs, or leaves the slow ones: Llama 3.1's own formula, pair by pair."""
    cos, sin = rope_table(3, 128, base=500000.0, stretch=8.0, trained=8192)
    for pair in range(64):
        frequency = 500000.0 ** (-2 * pair / 128)
        wavelength = 2 * torch.pi / frequency
        if wavelength > 8192 / 1:
            frequency /= 8
        elif wavelength > 8192 / 4:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            frequency = (1 - smooth) * frequency / 8 + smooth * frequency
        assert abs(torch.atan2(sin[1, pair], cos[1, pair]).item() - frequency) < 1e-12
