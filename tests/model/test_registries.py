"""Entries of the registries are tested by being there: a new one needs no tests of its own."""

import copy
import math
import re
from pathlib import Path

import torch
from conftest import parametrize, refused, save
from mechanisms import (
    MECHANISMS,
    assert_same,
    ids,
    new_model,
    predicates,
    qkv,
    random_model,
    value_and_gradients,
)

import attention
import masks
import model
from attention import ATTENTION, FEATURE, NORMALIZE, SCORE, attention_weights, masked_fill, naive
from engine.generate import CompiledStep, Session, decode_and_sample, stream
from engine.optimizer import make_optimizer
from engine.quantize import prepare_for_inference
from engine.sampling import Sampling
from masks import positions, predicate
from model import GPT, MIXER, MLP, NORM, POSITION, GPTConfig
from train import TrainConfig

CHUNKS = (0, 5), (5, 6), (6, 13), (13, 16)
HALF = [torch.float16, torch.bfloat16]


def each(mechanisms=MECHANISMS):
    return parametrize("mechanism", mechanisms, ids=str)


# ---- Each mechanism in a model


@each()
def test_a_mechanism_in_a_model(mechanism, tmp_path):
    """Catches a look at the future or another row, other decoding, a loss in a checkpoint."""
    model = random_model(**mechanism)
    idx = ids(2, 16)
    trained, _ = model.train()(idx, idx)
    whole, _ = model.eval()(idx, idx)
    assert_same([trained], [whole])  # without dropout
    for T in range(1, 16):
        other = idx.clone()
        other[:, T:] = (other[:, T:] + 1) % 33
        assert_same([model(other, other)[0][:, :T]], [whole[:, :T]], why="it sees the future")
    assert_same([model(idx[1:], idx[1:])[0]], [whole[1:]], why="it sees another row")
    cache = model.new_cache(2, max_len=99)
    for start, end in CHUNKS:
        last, _ = model(idx[:, start:end], cache=cache)
        assert_same([last[:, 0]], [whole[:, end - 1]], why="with the cache")
    with refused("the cache is full: 16 of 16"):
        model(idx[:, :1], cache=cache)
    assert model.state_dict().keys() <= {"lm_head.weight", *dict(model.named_parameters())}
    for T in 16, 8:
        model.crop_block_size(T)
        again = GPT.from_pretrained(save(tmp_path, model, T)).eval()
        assert again.config == model.config
        logits, _ = again(idx[:, :T], idx[:, :T])
        assert_same([logits.double()], [whole[:, :T]], error=1e-2)


IN_THE_DOCS = [
    {"score": "cosine", "attention": "masked_fill"},
    {"visible": "dilated:4"},
    {"mlp": "geglu"},
    {"mixer": "value_gate"},
    {"mixer": "growing", "window": 3},
    {"mixer": "values"},
    {"position": "slope"},
]


def test_the_examples_of_the_docs(monkeypatch, tmp_path_factory):
    """Catches an example in docs/hacking.md that does not run, sees the future or is not cached."""
    known = {masks: ["VISIBLE"], attention: ["SCORE"], model: ["MLP", "MIXER", "POSITION"]}
    for module, registries in known.items():
        for registry in registries:
            monkeypatch.setattr(module, registry, {**getattr(module, registry)})
    namespace = vars(attention) | vars(masks) | vars(model)
    text = Path("docs/hacking.md").read_text()
    for code in re.findall(r"```python\n((?:def|class|MIXER).*?)```", text, re.DOTALL):
        exec(code, namespace)
    hidden = GPT.hidden

    def hidden_with_ids(self, idx, *rest):
        for block in self.transformer.h:
            block.attn.ids = idx
        return hidden(self, idx, *rest)

    monkeypatch.setattr(GPT, "hidden", hidden_with_ids)
    monkeypatch.setattr(GPTConfig, "streams", 3, raising=False)
    for mechanism in [*IN_THE_DOCS, {}]:
        if not mechanism:
            monkeypatch.setattr(model, "Block", namespace["HyperBlock"])
        test_a_mechanism_in_a_model(mechanism, tmp_path_factory.mktemp("saved"))
        test_a_mechanism_learns(mechanism)


@each()
@parametrize("quantize, dtype", [("none", torch.float16), ("int8", torch.bfloat16)])
def test_a_mechanism_in_half_precision(mechanism, quantize, dtype):
    """Catches a mechanism that overflows or does not keep the dtype of its input, a Linear's weight
    that is used without calling it, and a mechanism that writes into its input: heads that share
    keys get copies, which hide it.
    """
    model = random_model(torch.float32, n_kv_head=4, **mechanism)
    idx = ids(4, 16)
    want = model(idx, idx)[0]
    with torch.autocast("cpu", dtype):
        got = model(idx, idx)[0]
    assert (got.float() - want).norm() < 0.1 * want.norm()
    half = copy.deepcopy(model).to(dtype)(idx, idx)[0]
    assert half.dtype == dtype and half.isfinite().all()
    with torch.inference_mode():
        model = prepare_for_inference(model, dtype, quantize)
        cache = model.new_cache(4)
        for start, end in (0, 13), (13, 14), (14, 15), (15, 16):
            got = model(idx[:, start:end], cache=cache)[0][:, 0]
            last = want[:, end - 1]
            assert (got - last).norm() < 0.1 * last.norm(), "is a Linear not called?"


@each([m for m in MECHANISMS if m.get("attention") not in FEATURE])
@parametrize("window", [0, 5])
def test_a_mechanism_in_a_padded_batch(mechanism, window):
    """Catches positions that count the padding, or that are taken for numbers: a compiled step has
    them as tensors that change. A text beside a longer one is the text alone.
    """
    model = random_model(window=window, **mechanism)
    prompts = [ids(T) for T in (3, 9, 6)]
    plain = Session(model, prompts, 4)
    step = CompiledStep(decode_and_sample)
    compiled = Session(model, prompts, 4, compiled=step)
    steps = stream(compiled, Sampling(), [None] * 3)
    for _ in range(3):
        alone = [
            model(plain.ids[row : row + 1, plain.begin[row] : plain.length])[0][0, 0]
            for row in range(3)
        ]
        assert_same(plain.logits()[:, 0], alone, why="it sees the padding, or the future")
        token, logits = next(steps)
        assert_same(logits, alone, why="in a compiled step")
        plain.ids[:, plain.length] = token
        plain.length += 1


@each()
def test_a_mechanism_learns(mechanism):
    """Catches parts that do not add up, a matrix that Muon cannot take, and wrong initial sizes."""
    model = new_model(**mechanism).train()
    idx = ids(8, 16)
    config = TrainConfig(head_lr=0.01, momentum=0.9, weight_decay=0.0)
    optimizer = make_optimizer(model, config)
    losses = []
    for _ in range(8):
        losses.append(model(idx, idx)[1])
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0] < 2 * math.log(33), "initial weights must not be sure of what comes next"
    assert losses[-1] < 0.96 * losses[0], "the loss hardly falls: are initial weights off?"


@parametrize("window", [0, 5])
def test_a_copy_is_apart(window):
    """Catches a copy, as for an average of the weights, that has the original's learned bias."""
    model = random_model(visible="t5:4", window=window)
    idx = ids(2, 16)
    other = copy.deepcopy(model)
    want = model(idx, idx)[0]
    for block in other.transformer.h:
        block.attn.mask.weight.data += torch.arange(32)
    assert_same([model(idx, idx)[0]], [want])
    assert (other(idx, idx)[0] - want).abs().max() > 1e-3


@parametrize("mixer", MIXER)
def test_what_a_cache_offers(mixer):
    """Catches a cache that a session cannot use: what it counts, forgets and picks; one that wraps
    around, or whose memory moves.
    """
    model = random_model(mixer=mixer)
    idx = ids(3, 9)
    layer = model.new_cache(3)[0]
    layer.reset()
    assert len(layer) == 0 and layer.index(4) == slice(0, 4)
    assert layer.visible(predicate("causal")) is predicate("causal")
    cache = model.new_cache(3)
    want = [model(idx, cache=cache)[0]]
    again = [layer.select([2, 0]) for layer in cache]
    for layer in (*cache, *again):
        layer.trim(8)
        assert len(layer) == 8
        with refused("cannot trim 8 positions to 9"):
            layer.trim(9)
    memory = cache[0].k.data_ptr()
    assert_same([model(idx[:, 8:], cache=cache)[0]], want)
    assert_same([model(idx[[2, 0], 8:], cache=again)[0]], [want[0][[2, 0]]])
    with refused("cache is full"):
        model(ids(3, 8), cache=cache)
    for layer in cache:
        layer.reset()
    assert_same([model(idx, cache=cache)[0]], want)
    assert cache[0].k.data_ptr() == memory


# ---- Predicates

NUMBERS = (4, 2, 1), (70, 75, 3), (1, 1, 1)  # falling, rising beyond a block, and smallest
SPECS = sorted({spec for numbers in NUMBERS for spec in predicates(*numbers)})


@parametrize("spec", SPECS)
@parametrize("B, Tq, Tk", [(2, 9, 20), (1, 1, 300), (2, 40, 300), (1, 300, 300)])
def test_paths_and_a_predicate(spec, B, Tq, Tk):
    """Catches a path that ignores a predicate, above all where a window lets it skip keys, and a
    predicate that does not keep what it promises.
    """
    inputs = qkv(B, (4, 2), (Tq, Tk), 4)
    visible = predicate(spec)
    learned = [*visible.double().parameters()] if isinstance(visible, torch.nn.Module) else []
    for p in learned:
        p.data.normal_()
    want = value_and_gradients(naive, *inputs, visible, learned=learned)
    for name, path in ATTENTION.items():
        found = value_and_gradients(path, *inputs, visible, learned=learned)
        assert_same(found, want, error=1e-11, why=f"{name} is not naive")


# ---- Scores and normalizers


def test_scores_are_their_formulas():
    """Catches W on the keys' side, another activation, and a part of a pair that is left out."""
    q, k, _ = qkv(1, (1, 1), (1, 1), 6)
    one, other = q.flatten(), k.flatten()
    general, additive, mlp = (SCORE[name](6).double() for name in ("general", "additive", "mlp"))
    hidden = [one @ score.W1 + other @ score.W2 for score in (additive, mlp)]
    expected = [one @ general.W @ other, hidden[0].tanh() @ additive.v, hidden[1].relu() @ mlp.v]
    found = [score(q, k).flatten() for score in (general, additive, mlp)]
    torch.testing.assert_close(torch.cat(found), torch.stack(expected))


@parametrize("score", SCORE)
@parametrize("normalize", NORMALIZE)
def test_a_score_and_a_normalizer(score, normalize):
    """Catches a score of all keys that differs from that of the visible ones, bad shares, and heads
    that see each other, as by a norm over the wrong dimension.
    """
    score = SCORE[score](6)
    if isinstance(score, torch.nn.Module):
        score.double()

    def holes(i, j):  # position 6 sees nothing
        return (j <= i) & (j % 3 != 1) & (i != 6)

    inputs = qkv(2, (4, 2), (7, 11), 6)
    how = holes, score, NORMALIZE[normalize]
    want = value_and_gradients(naive, *inputs, *how)
    assert_same(value_and_gradients(masked_fill, *inputs, *how), want, error=1e-11)
    first = [x[:1, :1] for x in (*inputs, want[0])]
    assert_same([masked_fill(*first[:3], *how)], first[3:], why="another head or row matters")
    weights = attention_weights(*inputs[:2], *how)
    seen = holes(*positions(7, 11))
    assert (weights >= 0).all() and not (weights * ~seen).any()
    assert_same([weights.sum(-1)], [seen.any(-1).double().expand(2, 4, 7)])


@parametrize("normalize", NORMALIZE.values(), ids=NORMALIZE)
def test_a_normalizer_of_large_scores(normalize):
    """Catches an exponential that overflows."""
    for largest in 1e4, -1e4:
        scores = torch.tensor([0, -1, -1e4, -2e4, -math.inf]) + largest
        weights = normalize(scores)
        assert (weights >= 0).all() and (weights[2:] < 0.01).all() and weights[4] == 0
        assert abs(weights.sum() - 1) < 1e-6


@parametrize("score", SCORE)
@parametrize("autocast", [False, True])
@parametrize("dtype", HALF)
def test_a_score_of_large_numbers(score, autocast, dtype):
    """Catches a score that half precision makes infinite or 0, also under autocast; and 0/0."""
    q, k, _ = (1e3 * x for x in qkv(1, (2, 2), (5, 5), 8, dtype))
    score = SCORE[score](8)
    for q, k in (q, k), (0 * q, k), (q, 0 * k):
        want = score(q.float(), k.float())
        half = score
        if isinstance(score, torch.nn.Module) and not autocast:
            half = copy.deepcopy(score).to(dtype)
        with torch.autocast("cpu", dtype, enabled=autocast):
            got = half(q, k)
        assert got.isfinite().all(), "upcast before squares and sums"
        assert (got - want).norm() <= 0.05 * want.norm()


# ---- Positions, norms, MLPs


@parametrize("position", POSITION)
def test_positions_keep_their_digits(position):
    """Catches late positions that are rounded with the weights: bfloat16 has no 257."""
    model = random_model(torch.float32, position=position, block_size=1024)

    def tables(dtype):
        wpe = model.transformer.wpe
        x = torch.zeros(1, 1024, 32, dtype=dtype)
        return [wpe.add(x, slice(0, 1024)), *(wpe.rope(slice(0, 1024)) or ())]

    want = tables(torch.float32)
    prepare_for_inference(model, torch.bfloat16)
    for a, b in zip(tables(torch.bfloat16), want):
        assert (a - b).abs().max() <= 0.01 * b.abs().max(), "rounded frequencies, or a change in x"


@parametrize("norm", NORM)
@parametrize("dtype", HALF)
def test_a_norm_of_large_numbers(norm, dtype):
    """Catches a square that overflows in half precision, and 0/0."""
    norm = NORM[norm](GPTConfig(n_embd=32, n_head=4))
    x = 400 * torch.randn(9, 32)
    want = norm(x)
    norm.to(dtype)
    assert (norm(x.to(dtype)) - want).norm() < 0.02 * want.norm()
    assert norm(torch.zeros(9, 32, dtype=dtype)).isfinite().all()


@parametrize("mlp", MLP)
def test_dropout(mlp):
    """Catches an MLP that ignores a setting, or drops at inference."""
    mlp = MLP[mlp](GPTConfig(n_embd=32, n_head=4, dropout=0.5, bias=False, mlp_size=40), 0)
    x = torch.randn(1, 9, 32)
    assert hasattr(mlp, "c_proj"), "call its output matrix c_proj, as the initial weights expect"
    mlp.c_proj.weight.data.normal_()
    assert mlp.c_proj.weight.shape[1] == 40, "it ignores mlp_size"
    assert all(p.dim() == 2 for p in mlp.parameters()), "it ignores bias"
    assert not torch.equal(mlp(x), mlp(x))
    assert torch.equal(mlp.eval()(x), mlp(x))


@each()
def test_the_gradient_of_a_mechanism(mechanism):
    """Catches a lost part of the gradient, and a parameter in an unused branch: the loss's slope in
    a direction must be its own.
    """
    model = random_model(**mechanism).train()
    idx = ids(2, 16)

    def loss():
        return model(idx, idx)[1] + model.auxiliary_loss

    loss().backward()
    direction = [torch.randn_like(p) for p in model.parameters()]
    slope = sum((p.grad * d).sum() for p, d in zip(model.parameters(), direction))
    losses = []
    for step in 1e-6, -2e-6:  # ahead, and from there behind
        for p, d in zip(model.parameters(), direction):
            p.data += step * d
        losses.append(loss())
    found = (losses[0] - losses[1]) / 2e-6
    assert abs(found - slope) < 1e-4 * abs(slope) + 1e-6, "float32, or a lost gradient"
