"""The transformer: its interface, its two shapes, its start, and generation with a cache."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import TINY, hugging_face_folder, tiny
from mechanisms import assert_same
from torch.utils.flop_counter import FlopCounterMode

from attention import ATTENTION, rope_table
from engine.training.batches import with_positions
from model import GPT, MODERN, POSITION, GPTConfig
from train import TrainConfig


def ids(*shape):
    return torch.randint(33, shape)


# ---- The architecture


def test_defaults_are_gpt2(tmp_path):
    """Catches a change of the default architecture: logits must be GPT-2's, by transformers."""
    transformers = pytest.importorskip("transformers")
    model = tiny()
    idx = ids(2, 11)
    hugging_face_folder(tmp_path, model)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).double().eval()
    assert_same([model.double()(idx, idx)[0]], [theirs(idx).logits], error=1e-10)


def modern_logits(weights, idx, n_head, n_kv_head, windows):
    """The modern shape in plain functions and loops: an independent oracle."""
    T = idx.shape[1]
    x = weights["transformer.wte.weight"][idx]
    D = x.shape[2] // n_head
    frequency = 10000.0 ** (-2 * torch.arange(D // 2, dtype=x.dtype) / D)
    turn = torch.polar(torch.ones(T, D // 2).to(x), torch.arange(T).to(x)[:, None] * frequency)

    def norm(x):
        return x / x.square().mean(-1, keepdim=True).sqrt()

    def rotate(x):  # (B, T, D): pair p of position t by t * 10000^(-2p/D)
        pairs = torch.stack(x.chunk(2, dim=-1), dim=-1).contiguous()
        turned = torch.view_as_complex(pairs) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    def attention(q, k, v, window):  # (B, T, D), one head
        rows = []
        for t in range(T):
            seen = slice(max(0, t - window + 1), t + 1)
            scores = (k[:, seen] @ q[:, t, :, None]) / math.sqrt(D)  # (B, seen, 1)
            rows.append((torch.softmax(scores, dim=1) * v[:, seen]).sum(1))
        return torch.stack(rows, dim=1)

    for n, window in enumerate(windows):
        block = f"transformer.h.{n}."
        heads = (norm(x) @ weights[block + "attn.c_attn.weight"].T).split(D, dim=-1)
        out = []
        for h in range(n_head):
            shared = n_head + h // (n_head // n_kv_head)
            q, k, v = heads[h], heads[shared], heads[shared + n_kv_head]
            out.append(attention(rotate(norm(q)), rotate(norm(k)), v, window))
        x = x + torch.cat(out, dim=-1) @ weights[block + "attn.c_proj.weight"].T
        hidden = torch.relu(norm(x) @ weights[block + "mlp.c_fc.weight"].T)
        x = x + hidden.square() @ weights[block + "mlp.c_proj.weight"].T
    return norm(x) @ weights["lm_head.weight"].T


def with_exact_rotations(model):
    """Give a float64 model tables of float64, since rounded ones are not quite rotations."""
    wpe = model.transformer.wpe
    wpe.cos, wpe.sin = rope_table(model.config.block_size, model.config.D)
    return model


def test_modern_is_modern():
    """Catches any ingredient of the modern shape that is in the config and not in the model."""
    shape = MODERN | dict(n_layer=3, n_kv_head=2, window=5, window_pattern="SL")
    model, idx = with_exact_rotations(tiny(**shape).double()), ids(2, 14)
    want = modern_logits(model.state_dict(), idx, 4, 2, windows=(5, 14, 5))
    assert_same([model(idx, idx)[0]], [want], error=1e-10)


def test_gpt2_has_124_million_parameters():
    """Catches an extra or missing matrix: GPT-2 small has 124,439,808 parameters."""
    with torch.device("meta"):
        model = GPT(GPTConfig(vocab_size=50257))
    assert model.num_params() == 124_439_808


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"n_head": 1},
        {**MODERN, "n_kv_head": 2},
        dict(n_layer=4, n_embd=32, window=5, window_pattern="SSL", mlp="relu2", bias=False),
    ],
)
def test_flops_are_what_torch_counts(shape):
    """Catches an embedding counted as a product, a head forgotten, or hidden pairs counted."""
    # naive makes the products that are needed, and no others.
    model, idx = GPT(GPTConfig(**TINY | shape | dict(attention="naive"))), ids(1, 16)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx)[1].backward()
    assert model.flops_per_token() * 16 == pytest.approx(counter.get_total_flops(), rel=0.02)


# ---- Initial weights


def test_the_modern_model_starts_at_the_identity():
    """Catches a nonzero initial output: the first loss is ln(vocab_size), exactly."""
    model, idx = GPT(GPTConfig(**TINY | MODERN)), ids(2, 16)
    assert abs(model(idx, idx)[1].item() - math.log(33)) < 1e-6
    for name, p in model.named_parameters():
        if name.endswith(("c_attn.weight", "c_fc.weight")):  # 1 / sqrt(fan_in)
            assert abs(p.std().item() * 4 - 1) < 0.2, name


def test_gpt2_initial_scales():
    """Catches lost GPT-2 scaling: 0.02, and 0.02/sqrt(2·n_layer) where blocks write."""
    model = GPT(GPTConfig(block_size=64, vocab_size=500, n_layer=8, n_head=2, n_embd=64))
    for name, p in model.named_parameters():
        want = 0.02 / math.sqrt(16) if name.endswith("c_proj.weight") else 0.02
        if p.dim() == 2:
            assert abs(p.std().item() / want - 1) < 0.1, name
    assert model.lm_head.weight is model.transformer.wte.weight


def test_learned_scores_start_as_they_were_drawn():
    """Catches an additive score whose output vector is taken for a bias and starts at zero."""
    model = GPT(GPTConfig(**TINY, attention="masked_fill", score="additive"))
    assert all(p.std() > 0.1 for name, p in model.named_parameters() if ".score." in name)


# ---- The interface


def test_interface_is_nanogpts():
    """Catches changed shapes: all logits with targets, the last without; -1 is ignored."""
    model, idx = tiny(), ids(3, 9)
    logits, loss = model(idx, idx)
    last, none = model(idx)
    assert logits.shape == (3, 9, 33) and last.shape == (3, 1, 33)
    assert none is None and loss.dim() == 0
    torch.testing.assert_close(last[:, 0], logits[:, -1])
    targets = idx.clone()
    targets[:, 4:] = -1
    want = F.cross_entropy(logits[:, :4].flatten(0, 1), idx[:, :4].flatten())
    torch.testing.assert_close(model(idx, targets)[1], want)


@pytest.mark.parametrize("only_loss", [False, True])
def test_nothing_to_learn(only_loss):
    """Catches 0/0 where all targets are ignored: a loss of NaN, and with it all weights."""
    model = tiny()
    idx = ids(2, 5)
    loss = model(idx, torch.full_like(idx, -1), only_loss=only_loss)[1]
    loss.backward()
    assert loss == 0 and not any(p.grad.any() for p in model.parameters() if p.grad is not None)


def test_dropout_acts_in_training_only():
    """Catches dropout that is missing, or that stays on in evaluation."""
    model, idx = tiny(dropout=0.5), ids(2, 8)
    assert torch.equal(model(idx)[0], model(idx)[0])
    model.train()
    assert not torch.equal(model(idx)[0], model(idx)[0])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_embd": 18}, "n_embd=18 is not divisible by n_head=4"),
        ({"n_kv_head": 3}, "n_head=4 is not divisible by n_kv_head=3"),
        ({"n_head": 0}, "n_head=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"n_layer": 0}, "n_layer=0"),
        ({"window": -1}, "window=-1"),
        ({"window_pattern": ""}, "window_pattern='' must be made of S and L"),
        ({"score": "additive"}, "attention='fused' cannot do score='additive'"),
        ({"visible": "alibi:3"}, "for n_head=4 it must be"),
        ({"visible": "full"}, "would show a GPT the next token"),
    ],
)
def test_models_that_cannot_be(change, message):
    """Catches impossible settings that surface later as a shape error deep inside."""
    with pytest.raises(ValueError, match=message):
        GPT(GPTConfig(**TINY | change))


def test_text_longer_than_the_context():
    """Catches positions that run past the end of their table."""
    model = tiny()
    with pytest.raises(ValueError, match="17 tokens do not fit into block_size=16"):
        model(ids(1, 17))
    with pytest.raises(ValueError, match="=17 is longer than"):
        model.crop_block_size(17)
    cache = model.new_cache(1)
    model(ids(1, 16), cache=cache)
    with pytest.raises(ValueError, match="the cache is full: 16 of 16"):
        model(ids(1, 1), cache=cache)


# ---- Generation


@pytest.mark.parametrize("position", POSITION)
@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("prompt", [1, 23])
def test_cached_generation_equals_uncached(position, window, prompt):
    """Catches a cache that drifts, above all when the context is full and moves on."""
    model, idx = tiny(position=position, window=window, n_kv_head=2), ids(3, prompt)
    texts = []
    for use_cache in True, False:
        generator = torch.Generator().manual_seed(5)
        how = dict(temperature=0.9, top_k=10, use_cache=use_cache, generator=generator)
        texts.append(model.generate(idx, 60, **how))
    assert texts[0].shape == (3, prompt + 60)
    assert torch.equal(*texts) and torch.equal(texts[0][:, :prompt], idx)


def test_a_full_context_keeps_its_last_half():
    """Catches a context cropped one token at a time, or one that outgrows block_size."""
    model, idx = tiny(), ids(1, 5)
    starts = {T: model.context_start(T) for T in range(1, 60)}
    for T in range(2, 60):
        length = T - starts[T]
        if T <= 16:
            assert starts[T] == 0  # everything fits
        elif starts[T] == starts[T - 1]:
            assert 8 < length <= 16
        else:
            assert length == 8  # it has just moved on
    once = model.generate(idx, 50, 0)
    twice = model.generate(model.generate(idx, 20, 0), 30, 0)
    assert torch.equal(once, twice)  # going on later is the same as never having stopped


def test_padded_ids_are_never_generated():
    """Catches ids beyond the vocabulary, which have no text."""
    model, idx = tiny(), torch.zeros(50, 1, dtype=torch.long)
    assert model.generate(idx, 8, temperature=5.0, vocab_size=20).max() < 20
    assert model.generate(idx, 8, temperature=5.0).max() >= 20


# ---- Loading


@pytest.mark.parametrize("position", POSITION)
@pytest.mark.parametrize("attention", ["fused", "performer"])
def test_a_loaded_model_draws_nothing_and_copies_nothing(position, attention):
    """Catches random weights drawn for nothing, weights held twice, and tables left empty."""
    model, idx = tiny(position=position, attention=attention), ids(2, 9)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    before = torch.get_rng_state()
    loaded = GPT.from_weights(dataclasses.asdict(model.config), weights, "x").eval()
    assert torch.equal(torch.get_rng_state(), before)
    for name, p in loaded.named_parameters():
        assert p.data_ptr() == weights[name].data_ptr() and p.requires_grad
    assert torch.equal(loaded(idx)[0], model(idx)[0])
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


# ---- Documents of a batch that do not see each other


def packed(**change):
    """A model, and a batch: id 0 begins each document but a row's first."""
    torch.manual_seed(0)
    shape = dict(block_size=48, vocab_size=20, position="rope", n_head=2)
    model = GPT(GPTConfig(**TINY | shape | change)).double()
    if model.config.position == "rope":
        with_exact_rotations(model)
    tokens = torch.randint(1, 20, (2, 49))
    tokens[0, [0, 9, 10, 30, 47]] = 0
    tokens[1, [5, 48]] = 0
    return model, tokens[:, :-1], tokens[:, 1:]


def loss_and_gradients(model, batches):
    """Mean loss over the tokens of all batches, (x, y, positions), and its gradients."""
    model.zero_grad()
    total = sum(model(x, y, positions=places)[1] * y.numel() for x, y, places in batches)
    loss = total / sum(y.numel() for _, y, _ in batches)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("path", ATTENTION)
@pytest.mark.parametrize(
    "change",
    [{"window": 7}, {"visible": "alibi:2"}, {"position": "none"}, {"recompute": True}],
    ids=str,
)
def test_documents_of_a_batch(path, change):
    """Catches a token that sees another document, or not all of its own."""
    settings = {key: value for key, value in change.items() if key != "recompute"}
    model, x, y = packed(attention=path, **settings)
    model.activation_checkpointing = "recompute" in change
    data = SimpleNamespace(tokenizer=SimpleNamespace(end_of_text=0))
    packed_batch = with_positions((x, y), data, TrainConfig(mask_documents=True))
    together = loss_and_gradients(model, [packed_batch])
    alone = []
    for row, targets in zip(x, y):
        starts = [0, *(n for n in range(1, 48) if row[n] == 0), 48]
        for a, b in zip(starts, starts[1:]):
            alone.append((row[None, a:b], targets[None, a:b], None))
    assert len(alone) == 7
    assert_same(together, loss_and_gradients(model, alone))
    assert abs(loss_and_gradients(model, [(x, y, None)])[0] - together[0]) > 1e-6  # they matter
