"""Entries of the registries are tested by being there: a new one needs no tests of its own."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from conftest import save
from mechanisms import (
    MECHANISMS,
    assert_same,
    new_model,
    predicates,
    qkv,
    random_model,
    value_and_gradients,
)

from attention import (
    ATTENTION,
    FEATURE,
    NORMALIZE,
    SCORE,
    VISIBLE,
    attention_weights,
    causal,
    masked_fill,
    naive,
)
from engine.decoding.compiled import CompiledStep, decode_and_sample
from engine.decoding.quantization import prepare_for_inference
from engine.decoding.sampling import Sampler, Sampling
from engine.decoding.session import Session, next_token
from engine.training.optimizer import make_optimizer
from masks import mask_of, positions, predicate
from model import GPT, MLP, MODERN, NORM, POSITION, GPTConfig
from train import TrainConfig

CHUNKS = (0, 5), (5, 6), (6, 13), (13, 16)
HALF = [torch.float16, torch.bfloat16]


def each(mechanisms=MECHANISMS):
    return pytest.mark.parametrize("mechanism", mechanisms, ids=str)


def without_attention(*names):
    return [m for m in MECHANISMS if m.get("attention") not in names]


def ids(*shape):
    return torch.randint(33, shape)


def assert_decodes(model, idx, whole):
    """Any chunks through the cache must give the logits of the whole."""
    cache = model.new_cache(len(idx))
    for start, end in CHUNKS:
        last, _ = model(idx[:, start:end], cache=cache)
        assert_same([last[:, 0]], [whole[:, end - 1]], why="with the cache")


def saved_and_loaded(folder, step, model):
    saved = save(folder, model, step)
    assert json.loads((saved / "config.json").read_text())["model"] == asdict(model.config)
    return GPT.from_checkpoint(saved).eval()


# ---- Each mechanism in a model


@each()
def test_a_mechanism_in_a_model(mechanism, tmp_path):
    """Catches a look at the future or another row, other decoding, a loss in a checkpoint."""
    model, idx = random_model(**mechanism), ids(2, 16)
    trained, _ = model.train()(idx, idx)
    whole, loss = model.eval()(idx, idx)
    assert_same([trained], [whole])  # without dropout
    for T in range(1, 16):
        other = idx.clone()
        other[:, T:] = (other[:, T:] + 1) % 33
        assert_same([model(other, other)[0][:, :T]], [whole[:, :T]], why="it sees the future")
    assert_same([model(idx[1:], idx[1:])[0]], [whole[1:]], why="it sees another row")
    assert_decodes(model, idx, whole)
    loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, f"{name} has no gradient, perhaps in an unused branch"
        assert p.grad.isfinite().all(), name
    assert model.state_dict().keys() <= {"lm_head.weight", *dict(model.named_parameters())}
    again = saved_and_loaded(tmp_path, 1, model)
    assert_same([again(idx, idx)[0].double()], [whole], error=1e-2)
    model.crop_block_size(8)
    again = saved_and_loaded(tmp_path, 2, model)
    idx = idx[:, :8]
    assert_same([again(idx, idx)[0].double()], [whole[:, :8]], error=1e-2)


@each()
def test_a_mechanism_in_a_long_text(mechanism):
    """Catches blocks of positions that are mixed or lose their tail, also in the modern shape."""
    model = random_model(**MODERN | dict(block_size=300, n_kv_head=0) | mechanism)
    idx, other = ids(2, 1, 300)
    whole, loss = model.train()(idx, idx)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    for T in 1, 127, 128, 256, 300:
        half = T // 2
        assert_same([model(idx[:, :T], idx[:, :T])[0]], [whole[:, :T]], error=1e-10)
        changed = torch.cat([idx[:, :half], other[:, half:T]], dim=1)
        y = model(changed, changed)[0][:, :half]
        assert_same([y], [whole[:, :half]], error=1e-10)


@each()
@pytest.mark.parametrize("quantize, dtype", [("none", torch.float16), ("int8", torch.bfloat16)])
def test_a_mechanism_with_weights_for_decoding(mechanism, quantize, dtype):
    """Catches a Linear's weight that is used without calling it, mixed dtypes, and a mechanism that
    writes into its input: heads that share keys get copies, which hide it.
    """
    model, idx = random_model(torch.float32, n_kv_head=4, **mechanism), ids(4, 16)
    want = model(idx, idx)[0]
    with torch.inference_mode():
        model = prepare_for_inference(model, dtype, quantize)
        cache = model.new_cache(4)
        for start, end in (0, 13), (13, 14), (14, 15), (15, 16):
            got = model(idx[:, start:end], cache=cache)[0][:, 0]
            error = (got - want[:, end - 1]).norm() / want[:, end - 1].norm()
            assert error < 0.1, "is a Linear not called?"


@each()
@pytest.mark.parametrize("dtype", HALF)
def test_a_mechanism_in_half_precision(mechanism, dtype):
    """Catches a mechanism that overflows, or that does not keep the dtype of its input."""
    model, idx = random_model(torch.float32, **mechanism), ids(2, 16)
    want = model(idx, idx)[0]
    with torch.autocast("cpu", dtype):
        got = model(idx, idx)[0]
    assert got.isfinite().all() and (got.float() - want).norm() < 0.1 * want.norm()
    half = model.to(dtype)(idx, idx)[0]
    assert half.dtype == dtype and half.isfinite().all()


@each(without_attention("naive", "tiled", *FEATURE))
def test_a_mechanism_in_a_step_that_can_be_compiled(mechanism):
    """Catches a position taken for a number: a compiled step has it as a tensor that changes."""
    model, prompt = random_model(**mechanism), ids(5)
    plain = Session(model, [prompt], 8)
    compiled = Session(model, [prompt], 8, compiled=CompiledStep(decode_and_sample))
    sampler = Sampler(Sampling(), [torch.Generator().manual_seed(0)])
    for _ in range(8):
        token, logits = next_token(compiled, sampler)
        assert_same([logits], [plain.logits()[:, -1]])
        plain.append(token[:, None])


@each(without_attention(*FEATURE))
@pytest.mark.parametrize("window", [0, 5])
def test_a_mechanism_in_a_padded_batch(mechanism, window):
    """Catches positions that count the padding: a text beside a longer one is the text alone."""
    model = random_model(window=window, **mechanism)
    session = Session(model, [ids(n) for n in (3, 9, 6)], room=4)
    for _ in range(3):
        alone = [model(session.text(row)[None])[0][0, 0] for row in range(3)]
        assert_same(session.logits().view(3, -1), alone)
        session.append(ids(3, 1))


@each()
def test_a_mechanism_learns(mechanism):
    """Catches parts that do not add up, or that never learn, and a matrix Muon cannot take."""
    model, idx = new_model(**mechanism).train(), ids(8, 16)
    config = TrainConfig(head_lr=0.01, momentum=0.9, weight_decay=0.0)
    optimizer = make_optimizer(model, config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = []
    for _ in range(8):
        losses.append(model(idx, idx)[1])
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0] < 2 * math.log(33), "initial weights must not be sure of what comes next"
    assert losses[-1] < 0.96 * losses[0], "the loss hardly falls: are initial weights off?"
    for name, p in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        parts = getattr(module, "parts", None) if name.endswith(".weight") else None
        then = before[name]
        pairs = zip(p.split(parts), then.split(parts)) if parts else [(p, then)]
        for n, (now, then) in enumerate(pairs):
            assert not torch.equal(now, then), f"part {n} of {name} does not learn"


@each([m for m in MECHANISMS if "init" not in m])
def test_a_mechanism_starts_at_the_identity(mechanism):
    """Catches a last matrix not called c_proj, so that init="zero_out" misses it."""
    model = new_model(init="zero_out", **mechanism)
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        for block in model.transformer.h:
            written = block(x.clone(), model.transformer.wpe.rope(slice(0, 16))) - x
            assert not written.any(), "the block writes something, or changes its input"


# ---- Predicates

NUMBERS = (4, 2, 1), (70, 75, 3), (1, 1, 1)  # falling, rising beyond a block, and smallest
SPECS = sorted({spec for numbers in NUMBERS for spec in predicates(*numbers)})


@pytest.mark.parametrize("spec", SPECS)
def test_a_predicate_keeps_its_promises(spec):
    """Catches a look at the future or beyond a window, and a bias that depends on the place."""
    visible = predicate(spec)
    far = min(4000, max(900, getattr(visible, "window", 0) + 200))
    i, j = positions(far, far)
    mask = mask_of(visible, i, j)
    assert not mask.triu(1).any(), "it looks at the future"
    hidden = (i - j >= getattr(visible, "window", far)) & (j >= getattr(visible, "n_global", 0))
    assert not (mask & hidden).any(), "it shows what its window promises to hide"
    if getattr(visible, "exact", False):  # all that FlashAttention knows
        assert torch.equal(mask[0], ~hidden & (j <= i)) and not hasattr(visible, "n_global")
    if hasattr(visible, "bias"):  # what it says of the future may be nan
        here = visible.bias(i, j, torch.float64).where(j <= i, 0)
        for shift in 1, 50, 1000:
            shifted = visible.bias(i + shift, j + shift, torch.float64).where(j <= i, 0)
            torch.testing.assert_close(shifted, here)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lengths", [(9, 20), (1, 300), (40, 300), (300, 300)])
def test_paths_and_a_predicate(spec, lengths):
    """Catches a path that ignores a predicate, above all where a window lets it skip keys."""
    inputs = qkv(2, (4, 2), lengths, 4)
    want = value_and_gradients(naive, *inputs, predicate(spec))
    for path in ATTENTION.values():
        assert_same(value_and_gradients(path, *inputs, predicate(spec)), want, error=1e-11)


def test_a_learned_bias(monkeypatch):
    """Catches a bias that gets no gradient, or that no optimizer and no checkpoint knows of."""
    slope = torch.nn.Parameter(torch.ones(4, 1, 1))

    def visible(i, j):
        return j <= i

    visible.bias = lambda i, j, dtype: slope * (j - i)
    inputs = qkv(1, (4, 2), (5, 5), 4)
    (want,) = torch.autograd.grad(naive(*inputs, visible).sin().sum(), slope)
    for name in "masked_fill", "tiled", "fused":
        (found,) = torch.autograd.grad(ATTENTION[name](*inputs, visible).sin().sum(), slope)
        torch.testing.assert_close(found, want)
    monkeypatch.setitem(VISIBLE, "learned", lambda: visible)
    with pytest.raises(ValueError, match="bias is learned"):
        new_model(visible="learned")


# ---- Scores and normalizers


def as_dtype(score, dtype):
    return score.to(dtype) if isinstance(score, torch.nn.Module) else score


@pytest.mark.parametrize("score", SCORE)
def test_a_score_of_one_head(score):
    """Catches a score in which heads see each other, such as a norm over the wrong dimension."""
    torch.manual_seed(0)
    q, k, score = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 9, 8), SCORE[score](8)
    for head in range(4):
        one = slice(head, head + 1)
        alone = score(q[1:, one], k[1:, one])
        torch.testing.assert_close(score(q, k)[1:, one], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", SCORE)
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_a_score_and_a_normalizer(score, normalize):
    """Catches a score of all keys that differs from that of the visible ones, and bad shares."""
    how = as_dtype(SCORE[score](6), torch.float64), NORMALIZE[normalize]

    def blind(i, j):  # position 6 sees nothing
        return (j <= i) & (i != 6)

    def holes(i, j):
        return (j <= i) & (j % 3 != 1)

    inputs = qkv(2, (4, 2), (7, 11), 6)
    for visible in causal, holes, blind:
        want = value_and_gradients(naive, *inputs, visible, *how)
        got = value_and_gradients(masked_fill, *inputs, visible, *how)
        assert_same(got, want, error=1e-11)
    assert (want[0][:, :, 2] == 0).all()
    weights = attention_weights(*inputs[:2], causal, *how)
    assert (weights >= 0).all() and (weights.triu(5) == 0).all()
    assert_same([weights.sum(-1)], [torch.ones_like(weights[..., 0])])


@pytest.mark.parametrize("normalize", NORMALIZE.values(), ids=NORMALIZE)
def test_a_normalizer_of_large_scores(normalize):
    """Catches an exponential that overflows."""
    high = [1e4, 1e4 - 1, 0.0, -1e4, float("-inf")]
    low = [-1e4, -1e4 - 1, -2e4, -3e4, float("-inf")]
    weights = normalize(torch.tensor([high, low]))
    assert (weights >= 0).all() and (weights[:, 2:4] < 0.01).all() and (weights[:, 4] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))


@pytest.mark.parametrize("score", SCORE)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_a_score_of_large_numbers(score, autocast, dtype):
    """Catches a score that half precision makes infinite or 0, also under autocast; and 0/0."""
    torch.manual_seed(0)
    q, k = (1e3 * torch.randn(2, 1, 2, 5, 8)).to(dtype)
    score = SCORE[score](8)
    factors = (1, 1), (0, 1), (1, 0)
    wants = [score(a * q.float(), b * k.float()) for a, b in factors]
    score = as_dtype(score, torch.float32 if autocast else dtype)
    with torch.autocast("cpu", dtype, enabled=autocast):
        for want, (a, b) in zip(wants, factors):
            got = score(a * q, b * k)
            assert got.isfinite().all(), "upcast before squares and sums"
            assert (got - want).norm() <= 0.05 * want.norm()


# ---- Positions, norms, MLPs


@pytest.mark.parametrize("position", POSITION)
@pytest.mark.parametrize("dtype", HALF)
def test_positions_keep_their_digits(position, dtype):
    """Catches late positions that are rounded with the weights, and a table that nobody gets."""

    def tables(wpe, x):
        index = slice(0, 1024)
        return [wpe.add(x, index), *(wpe.rope(index) or ())]

    model = random_model(torch.float32, position=position, block_size=1024)
    x = torch.zeros(1, 1024, 32)
    want = tables(model.transformer.wpe, x)
    assert any(table.any() for table in want) == (position != "none")
    half = prepare_for_inference(model, dtype)
    for a, b in zip(tables(half.transformer.wpe, x.to(dtype)), want):
        assert (a - b).abs().max() <= 0.01 * b.abs().max(), "rounded frequencies, or a change in x"


@pytest.mark.parametrize("norm", NORM)
@pytest.mark.parametrize("dtype", HALF)
def test_a_norm_of_large_numbers(norm, dtype):
    """Catches a square that overflows in half precision, and 0/0."""
    norm, x = NORM[norm](GPTConfig(n_embd=32, n_head=4)), 400 * torch.randn(9, 32)
    want = norm(x)
    got = norm.to(dtype)(x.to(dtype))
    assert (got - want).norm() < 0.02 * want.norm()
    assert norm(torch.zeros(9, 32, dtype=dtype)).isfinite().all()


@pytest.mark.parametrize("mlp", MLP)
def test_dropout(mlp):
    """Catches an MLP that ignores a setting, drops at inference, or is smaller in training."""
    torch.manual_seed(0)
    config = GPTConfig(n_embd=32, n_head=4, dropout=0.5, bias=False, mlp_size=40)
    mlp, x = MLP[mlp](config), torch.randn(9, 32)
    assert mlp.c_proj.in_features == 40, "it ignores mlp_size"
    assert not [name for name, _ in mlp.named_parameters() if name.endswith(".bias")]
    mean = mlp(x.expand(1000, 9, 32)).mean(0)
    assert not torch.equal(mlp(x), mlp(x)) and torch.equal(mlp.eval()(x), mlp(x))
    assert 0.7 < mean.norm() / mlp(x).norm() < 1.4


@pytest.mark.parametrize("setting", ["init", "position", "norm", "mlp"])
def test_names_that_no_registry_has(setting):
    """Catches an unknown name that becomes a KeyError."""
    with pytest.raises(ValueError, match=f"{setting}='x' is unknown; choose from"):
        GPTConfig(**{setting: "x"})


@each()
def test_the_gradient_of_a_mechanism(mechanism):
    """Catches a lost part of the gradient: the loss's slope in a direction must be its own."""
    model, idx = random_model(**mechanism).train(), ids(2, 16)
    model(idx, idx)[1].backward()
    parameters = list(model.parameters())
    direction = [torch.randn_like(p) for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, direction))
    losses = []
    with torch.no_grad():
        for step in 1e-6, -2e-6:  # ahead, and from there behind
            for p, d in zip(parameters, direction):
                p += step * d
            losses.append(model(idx, idx)[1])
    found = (losses[0] - losses[1]) / 2e-6
    assert_same([found], [slope], 1e-4 * slope.abs() + 1e-6, why="float32, or a lost gradient")
