"""What is in a registry is tested by being there: whoever adds a mechanism to one of them need not write these tests."""

import contextlib
import inspect
import itertools
import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

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
    softmax,
)
from engine.common.checks import choose
from engine.decoding.compiled import CompiledStep, decode_and_sample
from engine.decoding.quantization import prepare_for_inference
from engine.decoding.sampling import RandomStream, Sampling
from engine.decoding.session import Session, next_token
from engine.training.optimizer import make_optimizer
from engine.weights import checkpoint
from masks import full, mask_of, positions, predicate
from model import GPT, INIT, MLP, MODERN, NORM, POSITION, GPTConfig, NoPosition

REGISTRIES = {
    "normalize": NORMALIZE,
    "score": SCORE,
    "position": POSITION,
    "norm": NORM,
    "mlp": MLP,
    "init": INIT,
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WEIGHTS_AT_HAND = {"normalize", "score"}  # only paths that compute all scores can use another one


def predicates(*numbers):
    """Each predicate as a setting, with these numbers, or with the defaults of its parameters if it has any."""
    for name, make in VISIBLE.items():
        parameters = inspect.signature(make).parameters
        values = ["4" if p == "H" else "" for p in parameters]
        values = [
            value or str(number)
            for value, number in zip(values, itertools.chain(numbers, itertools.repeat(2)))
        ]
        defaults = [p.default for p in parameters.values() if p.default is not p.empty]
        yield (
            name
            if len(defaults) == len(values) and "H" not in parameters
            else f"{name}:{','.join(values)}"
        )


MECHANISMS = [
    *[
        {name: value} | ({"attention": "masked_fill"} if name in WEIGHTS_AT_HAND else {})
        for name, registry in REGISTRIES.items()
        for value in registry
    ],
    *[{"attention": name} for name in [*ATTENTION, *FEATURE]],
    *[{"visible": about} for about in predicates(4, 2, 1)],
    {"qk_norm": True},
    {"qk_norm": "head", "position": "rope"},
    {"position": "rope", "rope_pattern": "RN"},
    {"qk_norm": "width", "norm_after": True, "norm": "rmsnorm_scale"},
    {"head_size": 12, "mlp": "swiglu", "mlp_size": 40, "qkv_bias": True, "bias": False},
]


def new(**mechanism):
    """A small model with the initial weights that its mechanism gives it."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # memory that nothing has filled holds nan
    try:
        model = GPT(
            GPTConfig(
                **dict(block_size=16, vocab_size=33, n_layer=2, n_head=4, n_kv_head=2, n_embd=32)
                | mechanism
            )
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(p.isfinite().all() for p in model.parameters()), (
        "a parameter without an initial value"
    )
    return model.eval()


def tiny(dtype=torch.float64, **mechanism):
    """... with weights so large that each part of it matters."""
    model = new(**mechanism)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".score." not in name:
                p.normal_(std=0.3)
    return model.to(dtype)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_mechanism_in_a_model(mechanism, tmp_path):
    """Catches a mechanism that sees the future or another row, decodes as another function, or is lost in a checkpoint."""
    model, idx, trained = tiny(**mechanism), torch.randint(33, (2, 16)), None
    for training in True, False:  # what training changes, a checkpoint must keep
        whole, loss = model.train(training)(idx, idx)
        assert whole.isfinite().all()
        trained = whole if training else trained
        torch.testing.assert_close(
            trained, whole, rtol=0, atol=1e-12
        )  # without dropout, sampling is what was trained
        for T in range(1, 16):
            other = idx.clone()
            other[:, T:] = (other[:, T:] + 1) % 33
            torch.testing.assert_close(
                model(other, other)[0][:, :T], whole[:, :T], rtol=0, atol=1e-12
            )
        torch.testing.assert_close(model(idx[1:], idx[1:])[0], whole[1:], rtol=0, atol=1e-12)
    cache = model.new_cache(2)
    for start, end in ((0, 5), (5, 6), (6, 13), (13, 16)):
        last, _ = model(idx[:, start:end], cache=cache)
        torch.testing.assert_close(last[:, 0], whole[:, end - 1], rtol=0, atol=1e-12)
    loss.backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None], (
        "without a gradient, also in an unused branch"
    )
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.state_dict().keys() <= {
        "lm_head.weight",
        *dict(model.named_parameters()),
    }  # all that a checkpoint keeps
    folder = checkpoint.save_checkpoint(tmp_path, 1, model, {}, {"kind": "byte"}, {})
    again = GPT.from_checkpoint(folder)
    assert (
        json.loads((folder / "config.json").read_text())["model"]
        == asdict(again.config)
        == asdict(model.config)
    )
    torch.testing.assert_close(again.eval()(idx, idx)[0].double(), whole, rtol=1e-3, atol=1e-3)
    model.crop_block_size(8)
    again = GPT.from_checkpoint(
        checkpoint.save_checkpoint(tmp_path, 2, model, {}, {"kind": "byte"}, {})
    )
    torch.testing.assert_close(
        again.eval()(idx[:, :8], idx[:, :8])[0].double(), whole[:, :8], rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_mechanism_in_a_long_text(mechanism):
    """Catches blocks of positions that are mixed, or that lose their tail; and, as in train.py's own models, no biases, a
    head of its own, and as many key heads as query heads."""
    model = tiny(**MODERN | dict(block_size=300, n_kv_head=0) | mechanism)
    idx, other = torch.randint(33, (1, 300)), torch.randint(33, (1, 300))
    whole, loss = model.train()(idx, idx)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    for T in 1, 64, 127, 128, 255, 256, 300:
        half, same = T // 2, torch.testing.assert_close
        same(model(idx[:, :T], idx[:, :T])[0], whole[:, :T], rtol=0, atol=1e-10)
        changed = torch.cat([idx[:, :half], other[:, half:T]], dim=1)
        same(model(changed, changed)[0][:, :half], whole[:, :half], rtol=0, atol=1e-10)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_mechanism_and_the_seed(mechanism):
    """Catches a mechanism that sets the seed of all that is drawn after it."""
    models, after = [], set()
    for seed in 1, 2:
        torch.manual_seed(seed)
        models.append(
            GPT(
                GPTConfig(block_size=16, vocab_size=33, n_layer=1, n_head=4, n_embd=32, **mechanism)
            )
        )
        after.add(torch.rand(()).item())
    assert len(after) == 2 and not torch.equal(*(model.transformer.wte.weight for model in models))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_the_gradient_of_a_mechanism(mechanism):
    """Catches a part of the gradient that is lost: the slope of the loss in a random direction, by finite differences."""
    model, idx = tiny(**mechanism).train(), torch.randint(33, (2, 16))
    model(idx, idx)[1].backward()
    for module in model.modules():
        for part in module.weight.grad.split(module.parts) if hasattr(module, "parts") else ():
            assert part.norm() > 1e-6 * module.weight.grad.norm(), (
                "queries, keys and values must matter: a mask that shows only one key needs other numbers, as its defaults"
            )
    parameters = list(model.parameters())
    direction = [torch.randn_like(p) for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, direction))
    losses = []
    with torch.no_grad():
        for step in 1e-6, -2e-6:  # ahead, and from there behind
            for p, d in zip(parameters, direction):
                p += step * d
            losses.append(model(idx, idx)[1])
    torch.testing.assert_close((losses[0] - losses[1]) / 2e-6, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("dtype, rows", list(itertools.product(DTYPES, [4, None])))
def test_a_mechanism_with_weights_for_decoding(mechanism, quantize, dtype, rows):
    """Catches a mechanism that takes a Linear's weight without calling it, which sample.py replaces, or that mixes dtypes."""
    model, idx = tiny(torch.float32, **mechanism), torch.randint(33, (4, 16))
    want = model(idx, idx)[0][:, 12:]
    with torch.inference_mode():
        model = prepare_for_inference(model, dtype, quantize, rows)
        cache = model.new_cache(4)
        got = [
            model(idx[:, start:end], cache=cache)[0]
            for start, end in ((0, 13), (13, 14), (14, 15), (15, 16))
        ]
    got = torch.cat(got, dim=1)
    assert (got - want).norm() < (0.05 if dtype == torch.float32 else 0.1) * want.norm()


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mechanism_in_half_precision(mechanism, dtype):
    """Catches a mechanism that overflows, or that does not keep the dtype of its input."""
    model, idx = tiny(torch.float32, **mechanism), torch.randint(33, (2, 16))
    want = model(idx, idx)[0]
    with torch.autocast("cpu", dtype):
        got = model(idx, idx)[0]
    assert got.isfinite().all() and (got.float() - want).norm() < 0.1 * want.norm()
    half = model.to(dtype)(idx, idx)[0]
    assert half.dtype == dtype and half.isfinite().all()


ABOUT = sorted({*predicates(4, 2, 1), *predicates(7, 3, 5), *predicates(1, 1, 1)})


@pytest.mark.parametrize("about", ABOUT)
def test_what_a_predicate_promises(about):
    """Catches a predicate that sees the future or beyond its window, however far, and a bias that depends on the place."""
    visible = predicate(about)
    n_global, far = (
        getattr(visible, "n_global", 0),
        min(4000, max(900, getattr(visible, "window", 0) + 200)),
    )
    window, (i, j) = getattr(visible, "window", far), positions(far, far)
    assert not mask_of(visible, i, j).triu(1).any()
    hidden = (i - j >= window) & (j >= n_global)
    assert not (mask_of(visible, i, j) & hidden).any(), "it shows what its window promises to hide"
    if hasattr(visible, "bias"):  # a constant in each row would be seen in half precision only
        for s in 1, 50, 1000:
            shifted = visible.bias(i + s, j + s)
            torch.testing.assert_close(
                shifted.where(j <= i, 0), visible.bias(i, j).where(j <= i, 0)
            )  # the rest may be nan


@pytest.mark.parametrize("about", ABOUT)
def test_paths_and_a_predicate(about):
    """Catches a path that ignores what a predicate says."""
    for Tq, Tk in (
        (9, 20),
        (1, 300),
        (40, 300),
        (300, 300),
    ):  # where fused skips what a window promises to hide
        q, k, v = (
            torch.randn(2, heads, T, 4).double().requires_grad_()
            for heads, T in ((4, Tq), (2, Tk), (2, Tk))
        )
        results = {}
        for path, function in ATTENTION.items():
            y = function(q, k, v, predicate(about))
            results[path] = (
                y,
                *(torch.autograd.grad(y.square().sum(), (q, k, v)) if Tq < 300 else ()),
            )
        for path, ours in results.items():
            for a, b in zip(ours, results["naive"]):
                torch.testing.assert_close(
                    a, b, rtol=0, atol=1e-11, msg=lambda text: f"{path}: {text}"
                )


@pytest.mark.parametrize("about", [about for about in predicates(4, 2, 1) if about != "causal"])
def test_a_predicate_does_something(about):
    """Catches a bias that is never attached, or that is the same for all keys, and a mask that is causal after all."""
    visible, (i, j) = predicate(about), positions(300, 300)
    bias = visible.bias(i, j) - visible.bias(i, i) if hasattr(visible, "bias") else torch.zeros(1)
    assert (
        not torch.equal(mask_of(visible, i, j), mask_of(causal, i, j))
        or (bias.where(j < i, 0) != 0).any()
    )


NUMBERS = [
    (name, n)
    for name in VISIBLE
    if name != "causal"
    for n in range(len(inspect.signature(VISIBLE[name]).parameters))
]


@pytest.mark.parametrize("name, n", NUMBERS)
def test_each_number_of_a_predicate_does_something(name, n):
    """Catches a parameter that is never used, as the number of heads where a bias beside a mask is never attached."""

    def seen(numbers):
        visible, (i, j) = VISIBLE[name](*numbers), positions(100, 100)
        bias = visible.bias(i, j).where(j <= i, 0) if hasattr(visible, "bias") else torch.zeros(1)
        return mask_of(visible, i, j).tolist(), bias.tolist()

    numbers = [
        {"H": 4}.get(p, 3 + 2 * m)
        for m, p in enumerate(inspect.signature(VISIBLE[name]).parameters)
    ]
    other = [2 * number + 1 if m == n else number for m, number in enumerate(numbers)]
    assert seen(numbers) != seen(other), f"{name} is the same with {numbers} and with {other}"


@pytest.mark.parametrize("position", [name for name in POSITION if name != "none"])
def test_a_position_does_something(position):
    """Catches a table that no token gets, because the method that adds it has another name."""
    model = tiny(position=position)
    x, here = torch.zeros(1, 16, 32, dtype=torch.float64), slice(0, 16)
    assert (
        model.transformer.wpe.rope(here) is not None
        or (model.transformer.wpe.add(x, here) != 0).any()
    )


@pytest.mark.parametrize("score", SCORE)
def test_a_score_of_one_head(score):
    """Catches a score in which heads see each other, as a norm over the wrong dimension."""
    torch.manual_seed(0)
    q, k, score = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 9, 8), SCORE[score](8)
    for head in range(4):
        alone = score(q[1:, head : head + 1], k[1:, head : head + 1])
        torch.testing.assert_close(score(q, k)[1:, head : head + 1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", ATTENTION)
@pytest.mark.parametrize("Tq, Tk", [(1, 9), (90, 9), (9, 90), (300, 300)])
def test_a_path_that_may_see_everything(path, Tq, Tk):
    """Catches a path that takes causality for granted, in spite of its predicate: cross-attention has none."""
    q, k, v = (
        torch.randn(2, heads, T, 4, dtype=torch.float64) for heads, T in ((4, Tq), (2, Tk), (2, Tk))
    )
    torch.testing.assert_close(
        ATTENTION[path](q, k, v, full), naive(q, k, v, full), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("path", ATTENTION)
@pytest.mark.parametrize("Tq", [2100, 700])
def test_a_path_of_a_long_text(path, Tq):
    """Catches blocks that count their queries from the beginning, or that lose what other blocks gave to a gradient."""
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, T, 4).double().requires_grad_()
        for heads, T in ((2, Tq), (1, 2100), (1, 2100))
    )
    results = []
    for function in ATTENTION[path], masked_fill:
        y = function(q, k, v)
        results.append((y, *torch.autograd.grad(y.square().sum(), (q, k, v))))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("about", [*predicates(4, 2, 1)])
def test_paths_of_a_long_text_and_a_predicate(about):
    """Catches large blocks of keys that are skipped although one of the block's queries sees one of them."""
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, T, 4).double() for heads, T in ((4, 2100), (2, 2200), (2, 2200))
    )
    want = masked_fill(q, k, v, predicate(about))
    for path in ATTENTION:
        if path not in ("naive", "masked_fill"):
            torch.testing.assert_close(
                ATTENTION[path](q, k, v, predicate(about)), want, rtol=0, atol=1e-11, msg=path
            )


@pytest.mark.parametrize("path", ATTENTION)
def test_a_path_at_its_limits(path):
    """Catches a hidden key that weighs little in place of nothing, a query that sees nothing, and half precision's range."""

    def blind(i, j):
        return (j <= i) & (i % 5 != 3) & (i // 64 != 2)

    for Tq, Tk in (300, 300), (40, 300), (1, 4):
        q, k, v = (
            torch.randn(2, heads, T, 4).double().requires_grad_()
            for heads, T in ((4, Tq), (2, Tk), (2, Tk))
        )
        y, want = (function(1e6 * q, k, v, blind) for function in (ATTENTION[path], naive))
        torch.testing.assert_close(y, want, rtol=0, atol=1e-9)
        assert (y[:, :, torch.arange(Tk - Tq, Tk) % 5 == 3] == 0).all()
        y.sum().backward()
        assert all(x.grad.isfinite().all() for x in (q, k, v))
    for dtype in torch.float16, torch.bfloat16:
        q, k, v = (300 * torch.randn(1, 2, 70, 64, dtype=dtype) for _ in range(3))
        assert ATTENTION[path](q, k, v).isfinite().all()


@pytest.mark.parametrize("path", ATTENTION)
@pytest.mark.parametrize("lengths", [(3, 200, 90), (200, 3, 90)])
def test_a_path_in_a_long_padded_batch(path, lengths):
    """Catches a block that is skipped for all texts because one of them has only padding there."""
    model = tiny(attention=path, block_size=256)
    session = Session(model, [torch.randint(33, (n,)) for n in lengths], room=4)
    for _ in range(3):
        together = session.logits()
        for row in range(3):
            torch.testing.assert_close(
                together[row], model(session.text(row)[None])[0][0], rtol=0, atol=1e-10
            )
        session.append(torch.randint(33, (3, 1)))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_mechanism_with_a_key_for_each_query_head(mechanism):
    """Catches a mechanism that writes into its input, which shared heads hide as they are copied."""
    model, idx = tiny(n_kv_head=4, **mechanism), torch.randint(33, (2, 16))
    whole, loss = model(idx, idx)
    loss.backward()
    with torch.inference_mode():
        cache = model.new_cache(2)
        for start, end in ((0, 5), (5, 6), (6, 13), (13, 16)):
            last, _ = model(idx[:, start:end], cache=cache)
            torch.testing.assert_close(last[:, 0], whole[:, end - 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "mechanism",
    [m for m in MECHANISMS if m.get("attention") in (None, "fused", "masked_fill")],
    ids=str,
)
def test_a_mechanism_in_a_step_that_can_be_compiled(mechanism):
    """Catches a mechanism that takes its position for a number: torch.compile needs a tensor, whose value may change."""
    model, prompt = tiny(**mechanism), torch.randint(33, (5,))
    one = Session(model, [prompt], 8)
    other = Session(model, [prompt], 8, compiled=CompiledStep(decode_and_sample))
    random = RandomStream([torch.Generator().manual_seed(0)])
    for _ in range(8):
        token, logits = next_token(other, Sampling(), random)
        torch.testing.assert_close(logits, one.logits()[:, -1], rtol=0, atol=1e-12)
        one.append(token[:, None])


@pytest.mark.parametrize(
    "mechanism", [m for m in MECHANISMS if m.keys() <= {"mlp", "norm"}], ids=str
)
def test_a_mechanism_without_biases(mechanism):
    """Catches a layer that ignores --bias=False."""
    assert not [
        name
        for name, _ in new(bias=False, **mechanism).named_parameters()
        if name.endswith(".bias")
    ]


@pytest.mark.parametrize(
    "mechanism", [m for m in MECHANISMS if m.get("attention") not in ("naive", "tiled")], ids=str
)
def test_a_mechanism_on_another_device(mechanism, monkeypatch):
    """Catches a tensor that is made on the CPU, wherever the model is: the meta device computes shapes only."""
    monkeypatch.setattr(
        torch, "autocast", lambda *_, **settings: contextlib.nullcontext()
    )  # it knows no such device
    model, idx = (
        tiny(torch.float32, **mechanism).to("meta"),
        torch.randint(33, (2, 16), device="meta"),
    )
    try:
        assert model(idx, idx)[0].device.type == "meta"
    except NotImplementedError:
        pytest.skip("its shapes depend on data, as those of sparse experts")


@pytest.mark.parametrize("score", SCORE)
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_a_score_and_a_normalizer(score, normalize):
    """Catches a score that is another one for all keys than for those that a query sees, and weights that are not shares."""

    def blind(i, j):  # what stands at position 6 sees nothing
        return (j <= i) & (i != 6)

    def holes(i, j):
        return (j <= i) & (j % 3 != 1)

    score, normalize = SCORE[score](6), NORMALIZE[normalize]
    score = score.double() if isinstance(score, torch.nn.Module) else score
    q, k, v = (torch.randn(1, 2, T, 6, dtype=torch.float64) for T in (130, 257, 257))
    torch.testing.assert_close(
        masked_fill(q, k, v, causal, score, normalize), naive(q, k, v, causal, score, normalize)
    )
    q, k, v = (torch.randn(2, 4, T, 6, dtype=torch.float64) for T in (7, 11, 11))
    for visible in causal, holes, blind:
        want = naive(q, k, v, visible, score, normalize)
        torch.testing.assert_close(
            masked_fill(q, k, v, visible, score, normalize), want, rtol=0, atol=1e-11
        )
    assert (want[:, :, 2] == 0).all()
    weights = attention_weights(q, k, causal, score, normalize)
    assert (weights >= 0).all() and (weights.triu(5) == 0).all()
    shares = "the shares of a query must add up to 1\n{}".format
    torch.testing.assert_close(
        weights.sum(-1), torch.ones(2, 4, 7, dtype=torch.float64), msg=shares
    )


@pytest.mark.parametrize("path", ATTENTION)
@pytest.mark.parametrize("score", SCORE)
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_a_path_and_a_score(path, score, normalize):
    """Catches a path that computes another score or normalizer than it was asked for, in silence."""
    model, idx = (
        tiny(score=score, normalize=normalize, attention="naive"),
        torch.randint(33, (2, 16)),
    )
    try:
        other = GPT(GPTConfig(**asdict(model.config) | {"attention": path})).double().eval()
        other.load_state_dict(model.state_dict())
        got, loss = other(idx, idx)
        loss.backward()
    except ValueError as error:
        assert "softmax of the scaled dot product only" in str(error) or "cannot do" in str(error)
    else:
        want, loss = model(idx, idx)
        loss.backward()
        torch.testing.assert_close(got, want, rtol=0, atol=1e-11)
        for ours, theirs in zip(other.parameters(), model.parameters()):  # also those of a score
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("normalize", NORMALIZE.values(), ids=NORMALIZE)
def test_a_normalizer_of_large_scores(normalize):
    """Catches an exponential that overflows."""
    weights = normalize(
        torch.tensor(
            [[1e4, 1e4 - 1, 0.0, -1e4, float("-inf")], [-1e4, -1e4 - 1, -2e4, -3e4, float("-inf")]]
        )
    )
    assert (weights >= 0).all() and (weights[:, 2:4] < 0.01).all() and (weights[:, 4] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))


def test_a_position_with_several_tables(monkeypatch):
    """Catches a cropped context that cuts a parameter which is as long by chance, or misses one in a module of its own."""

    class Several(NoPosition):
        def __init__(self, config):
            super().__init__()
            self.rows, self.gain = (
                torch.nn.Embedding(config.block_size, 32),
                torch.nn.Parameter(torch.rand(16)),
            )
            self.scale = torch.nn.Parameter(torch.tensor(0.5))

        def add(self, x, index):
            return x + self.scale * self.gain.sum() * self.rows.weight[index]

    monkeypatch.setitem(POSITION, "several", Several)
    model, idx = new(position="several"), torch.randint(33, (2, 8))
    want = model(idx)[0]
    model.crop_block_size(8)
    assert [tuple(p.shape) for p in model.transformer.wpe.parameters()] == [(16,), (), (8, 32)]
    assert torch.equal(model(idx)[0], want)


def test_a_name_that_is_not_there():
    """Catches a KeyError in place of the names that there are."""
    with pytest.raises(ValueError, match="normalize='max' is unknown; choose from .*softmax"):
        choose("normalize", "max", NORMALIZE)
    for wrong, message in (
        ("diagonal", "choose from causal"),
        ("strided", "visible=strided:"),
        ("strided:x", "visible=strided:x"),
        ("strided:0", "stride must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            GPTConfig(visible=wrong)
    assert NORMALIZE["softmax"] is softmax


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize(
    "mechanism", [m for m in MECHANISMS if m.get("attention") not in FEATURE], ids=str
)
def test_a_mechanism_in_a_padded_batch(mechanism, window):
    """Catches positions that count the padding: a text beside a longer one must be the text alone."""
    model = tiny(window=window, **mechanism)
    prompts = [torch.randint(33, (n,)) for n in (3, 9, 6)]
    session = Session(model, prompts, room=4)
    for _ in range(3):
        together = session.logits()
        for row in range(3):
            text = session.text(row)[None]
            torch.testing.assert_close(together[row], model(text)[0][0], rtol=0, atol=1e-12)
        session.append(torch.randint(33, (3, 1)))


def test_a_learned_bias(monkeypatch):
    """Catches a path that computes no gradient for a bias that has one, and a model that would never learn it, in silence."""
    slope = torch.nn.Parameter(torch.ones(4, 1, 1, dtype=torch.float64))

    def visible(i, j):
        return j <= i

    visible.bias = lambda i, j: slope * (j - i)
    q, gradients = torch.randn(1, 4, 6, 8, dtype=torch.float64), []
    for name, path in ATTENTION.items():
        try:
            gradients += torch.autograd.grad(path(q, q, q, visible).square().sum(), slope)
        except ValueError as error:  # as tiled, which has a backward pass of its own
            assert name in str(error) and "learned bias" in str(error)
    for gradient in gradients:
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-12)
    monkeypatch.setitem(VISIBLE, "learned", lambda: visible)
    with pytest.raises(ValueError, match="visible=learned has a learned bias, which no optimizer"):
        new(visible="learned")


@pytest.mark.parametrize("score", SCORE)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_score_of_large_numbers(score, autocast, dtype):
    """Catches a score that half precision makes infinite or 0, also where autocast would undo a cast to float32; and 0/0."""
    torch.manual_seed(0)
    q, k, score = (
        (1e3 * torch.randn(1, 2, 5, 8)).to(dtype),
        (1e3 * torch.randn(1, 2, 5, 8)).to(dtype),
        SCORE[score](8),
    )
    wants = [score(a * q.float(), b * k.float()) for a, b in ((1, 1), (0, 1), (1, 0))]
    score = (
        score.to(torch.float32 if autocast else dtype)
        if isinstance(score, torch.nn.Module)
        else score
    )
    with torch.autocast("cpu", dtype, enabled=autocast):
        for want, (a, b) in zip(wants, ((1, 1), (0, 1), (1, 0))):
            got = score(a * q, b * k)
            assert got.isfinite().all() and (got - want).norm() <= 0.05 * want.norm()


@pytest.mark.parametrize("norm", NORM)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_norm_of_large_numbers(norm, dtype):
    """Catches a square that overflows in half precision, and 0/0."""
    norm, x = NORM[norm](new(norm=norm).config), 400 * torch.randn(9, 32)
    want, got = norm(x), norm.to(dtype)(x.to(dtype))
    assert (got - want).norm() < 0.02 * want.norm() and norm(
        torch.zeros(9, 32, dtype=dtype)
    ).isfinite().all()


@pytest.mark.parametrize("position", POSITION)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_positions_keep_their_digits(position, dtype):
    """Catches rotations and sinusoids of late positions that are rounded with the weights."""
    model, x, all_positions = (
        new(position=position, block_size=1024),
        torch.zeros(1, 1024, 32),
        slice(0, 1024),
    )
    want = [
        model.transformer.wpe.add(x, all_positions),
        *(model.transformer.wpe.rope(all_positions) or ()),
    ]
    wpe = prepare_for_inference(model, dtype, rows=None).transformer.wpe
    got = [wpe.add(x.to(dtype), all_positions), *(wpe.rope(all_positions) or ())]
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 0.01 * b.abs().max(), (
            "large angles are rounded: keep frequencies in a buffer"
        )


@pytest.mark.parametrize("mlp", MLP)
def test_dropout(mlp):
    """Catches an MLP that ignores the setting, one that also forgets at inference, and one that is smaller in training."""
    torch.manual_seed(0)
    mlp, x = MLP[mlp](GPTConfig(n_embd=32, n_head=4, dropout=0.5)), torch.randn(9, 32)
    mean = mlp(x.expand(1000, 9, 32)).mean(0)
    assert not torch.equal(mlp(x), mlp(x)) and torch.equal(mlp.eval()(x), mlp(x))
    assert 0.7 < mean.norm() / mlp(x).norm() < 1.4


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize(
    "shape", [{}, MODERN | dict(n_kv_head=0, init="gpt2")], ids=["gpt2", "modern"]
)
def test_a_mechanism_learns(mechanism, shape):
    """Catches parts that do not add up, a matrix that Muon cannot take, and initial weights from which a part never learns."""
    model, idx = new(**shape | mechanism).train(), torch.randint(33, (8, 16))
    optimizer = make_optimizer(
        model,
        SimpleNamespace(
            optimizer="muon",
            learning_rate=0.02,
            embedding_lr=0.02,
            head_lr=0.01,
            vector_lr=0.01,
            momentum=0.9,
            muon_steps=3,
            weight_decay=0.0,
            beta1=0.8,
            beta2=0.97,
        ),
    )
    losses, before = [], {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(8):
        losses.append(model(idx, idx)[1])
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0] < 2 * math.log(33), "initial weights must not be sure of what comes next"
    assert losses[-1] < 0.96 * losses[0], (
        "the loss hardly falls: are initial weights too small, or too large?"
    )
    for name, p in model.named_parameters():
        parts = getattr(
            model.get_submodule(name.rpartition(".")[0]), "parts", [len(p)] if p.dim() else 0
        )
        parts = parts if name.endswith(".weight") else len(p) if p.dim() else 0
        for now, then in (
            zip(*(x.split(parts) for x in (p, before[name]))) if parts else [(p, before[name])]
        ):
            assert not torch.equal(now, then), f"{name} does not learn, or a part of it"


@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if "init" not in m], ids=str)
def test_a_mechanism_starts_at_the_identity(mechanism):
    """Catches a matrix that writes into the residual stream and is not called c_proj, so that init="zero_out" misses it."""
    model = GPT(
        GPTConfig(
            block_size=16,
            vocab_size=33,
            n_layer=2,
            n_head=4,
            n_embd=32,
            init="zero_out",
            **mechanism,
        )
    )
    torch.manual_seed(0)
    x, blocks = torch.randn(2, 16, 32), model.transformer.h
    with torch.no_grad():
        written = [
            block(x.clone(), model.transformer.wpe.rope(slice(0, 16))) - x for block in blocks
        ]
    assert not torch.stack(written).any(), (
        "a block writes something (its last matrix is c_proj), or changes its input in place"
    )
