"""The transformer: its interface, its two shapes, its start, and generation with a cache."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import TINY, as_flags, parametrize, refused, tiny
from mechanisms import MECHANISMS, assert_same, ids
from torch.utils.flop_counter import FlopCounterMode

from attention import ATTENTION, SelfAttention
from engine.dataset import with_positions
from engine.generate import Session
from engine.published import with_weights
from engine.settings import parse_settings
from model import GPT, MODERN, GPTConfig
from train import TrainConfig

REGISTRIES = "score normalize init position norm mlp".split()


# ---- The architecture


def test_gpt2_has_124_million_parameters():
    """Catches an extra or missing matrix: GPT-2 small has 124,439,808 parameters."""
    with torch.device("meta"):
        model = GPT(GPTConfig(vocab_size=50257))
    assert model.num_params() == 124_439_808


@parametrize(
    "shape",
    [{}, {"n_head": 1}, dict(MODERN, n_kv_head=2, n_layer=4, window=5, window_pattern="SSL")],
)
def test_flops_are_what_torch_counts(shape):
    """Catches an embedding counted as a product, a head forgotten, or hidden pairs counted."""
    # naive makes the products that are needed, and no others.
    model = GPT(GPTConfig(**TINY | shape | dict(attention="naive")))
    idx = ids(1, 16)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx)[1].backward()
    assert model.flops_per_token() * 16 == pytest.approx(counter.get_total_flops(), rel=0.02)


# ---- Initial weights


def test_modern_initial_scales():
    """Catches a nonzero initial output: each block starts as the identity, and the first loss is
    ln(vocab_size), exactly.
    """
    model = GPT(GPTConfig(**TINY | MODERN))
    idx = ids(2, 16)
    assert abs(model(idx, idx)[1].item() - math.log(33)) < 1e-6
    for name, p in model.named_parameters():
        if name.endswith("c_proj.weight"):
            assert not p.any(), name
        if name.endswith(("c_attn.weight", "c_fc.weight")):  # 1 / sqrt(fan_in)
            assert abs(p.std() * 4 - 1) < 0.2, name


def test_gpt2_initial_scales():
    """Catches lost GPT-2 scaling: 0.02, and 0.02/sqrt(2·n_layer) where blocks write; and a score
    that does not start as it was drawn.
    """
    shape = dict(block_size=64, vocab_size=500, n_layer=8, n_head=2, n_embd=64)
    model = GPT(GPTConfig(**shape, attention="masked_fill", score="additive"))
    for name, p in model.named_parameters():
        if ".score." in name:
            assert p.std() > 0.1, name
        elif p.dim() == 2:
            want = 0.02 / 4 if name.endswith("c_proj.weight") else 0.02
            assert abs(p.std() / want - 1) < 0.1, name
    assert model.lm_head.weight is model.transformer.wte.weight


# ---- The interface


def test_interface_is_nanogpts():
    """Catches changed shapes: all logits with targets, the last without; -1 is ignored."""
    model = tiny()
    idx = ids(3, 9)
    targets = idx.clone()
    targets[:, 4:] = -1
    logits, loss = model(idx, targets)
    last, none = model(idx)
    assert logits.shape == (3, 9, 33) and none is None
    torch.testing.assert_close(last, logits[:, -1:])
    want = F.cross_entropy(logits[:, :4].flatten(0, 1), idx[:, :4].flatten())
    torch.testing.assert_close(loss, want)


@parametrize("only_loss", [False, True])
def test_nothing_to_learn(only_loss):
    """Catches 0/0 where all targets are ignored: a loss of NaN, and with it all weights."""
    model = tiny(position="none")
    idx = ids(2, 5)
    loss = model(idx, torch.full_like(idx, -1), only_loss=only_loss)[1]
    loss.backward()
    assert loss == 0 and not any(p.grad.any() for p in model.parameters())


IMPOSSIBLE = {
    "--n_embd=18": "n_embd=18 is not divisible by n_head=4",
    "--n_kv_head=3": "n_head=4 is not divisible by n_kv_head=3",
    "--n_head=0": "n_head=0",
    "--dropout=1.5": "dropout probability .* got 1.5",
    "--n_layer=0": "n_layer=0",
    "--window=-1": "window=-1",
    "--window_pattern=": "window_pattern='' must be made of S and L",
    **{f"--{name}=x": f"{name}='x' is unknown; choose from" for name in REGISTRIES},
    "--attention=flash": "choose from .*naive.*linear",
    "--attention=linear --window=4": "attention='linear' sees all of the past",
    "--attention=linear --visible=full": "attention='linear' sees all of the past",
    "--attention=performer --score=dot": "attention=performer has no other score",
    "--normalize=sparsemax": "choose attention=masked_fill",
    "--visible=diagonal": "choose from causal",
    "--visible=causal:3": "write it as causal$",
    "--visible=strided": "visible=strided: .*; write it as strided:S",
    "--visible=sliding_window:0": "W=0.*at least 1",
    "--visible=local_global:3,-1": "global positions must",
    "--visible=strided:0": "S=0.*at least 1",
    "--visible=alibi:0": "H=0.*at least 1",
    "--visible=alibi:3": "for n_head=4 it must be",
    "--visible=full": "would show a GPT the next token",
    "--visible=two_sided:3,1": "would show a GPT the next token",
}


@parametrize("words", IMPOSSIBLE)
def test_models_that_cannot_be(words):
    """Catches impossible settings that are ignored, or surface later as an error deep inside."""
    with refused(IMPOSSIBLE[words]):
        GPT(parse_settings(GPTConfig, [*as_flags(TINY), *words.split()]))


def test_a_layer_that_cannot_be():
    """Catches a layer that ignores what a model would refuse."""
    with refused("sees all of the past"):
        SelfAttention(8, 2, attention="linear", window=4)


def test_text_longer_than_the_context():
    """Catches positions that run past the end of their table."""
    model = tiny()
    with refused("17 tokens do not fit into block_size=16"):
        model(ids(1, 17))
    with refused("=17 is longer than"):
        model.crop_block_size(17)


# ---- Generation


def test_a_full_context_keeps_its_last_half():
    """Catches a context cropped one token at a time, or one that outgrows block_size."""
    session = Session(tiny(), [torch.zeros(1, dtype=torch.long)], 60)

    def context_start(T):
        session.length = T
        return session.context_starts()[0]

    assert context_start(16) == 0  # everything fits
    for T in range(17, 60):
        start = context_start(T)
        if start == context_start(T - 1):
            assert 8 < T - start <= 16
        else:
            assert T - start == 8  # it has just moved on


def test_what_is_generated():
    """Catches ids beyond the vocabulary, which have no text, a lost prompt, another source of
    chance than the generator, and settings that are not handed on.
    """
    model = tiny()
    idx = torch.zeros(50, 2, dtype=torch.long)

    def generated(**settings):
        generator = torch.Generator().manual_seed(5)
        return model.generate(idx, 8, 5.0, generator=generator, **settings)

    text = generated()
    assert text.shape == (50, 10) and not text[:, :2].any()
    assert text.max() >= 20 > generated(vocab_size=20).max()
    assert not torch.equal(generated(top_k=3), text)


# ---- Loading


def test_a_loaded_model_draws_nothing():
    """Catches random weights drawn for nothing, and a head that is not tied any more."""
    model = tiny(attention="performer")
    weights = {name: p.detach() for name, p in model.named_parameters()}
    before = torch.get_rng_state()
    loaded = with_weights(GPT, dataclasses.asdict(model.config), weights, "x")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.requires_grad for p in loaded.parameters())
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


# ---- Documents of a batch that do not see each other

DOCUMENTS = [m for m in MECHANISMS if m.keys() <= {"position", "visible"}]
DOCUMENTS += [{"window": 7, "position": "rope", "n_kv_head": 2}]


def loss_and_gradients(model, batches):
    """Mean loss over the tokens of all batches, (x, y, positions), and its gradients."""
    model.zero_grad()
    total = sum(model(x, y, position_ids=places)[1] * y.numel() for x, y, places in batches)
    loss = total / sum(y.numel() for _, y, _ in batches)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@parametrize("path", ATTENTION)
@parametrize("change", DOCUMENTS, ids=str)
def test_documents_of_a_batch(path, change):
    """Catches a token that sees another document, or not all of its own, or whose position counts
    what came before its document.
    """
    model = tiny(block_size=24, attention=path, **change).double()
    model.activation_checkpointing = "window" in change
    tokens = torch.randint(1, 33, (2, 25))
    tokens[0, [0, 4, 5, 15, 23]] = 0  # begins each document but a row's first
    tokens[1, [3, 24]] = 0
    x, y = tokens[:, :-1], tokens[:, 1:]
    data = SimpleNamespace(tokenizer=SimpleNamespace(end_of_text=0))
    packed = with_positions((x, y), data, TrainConfig(mask_documents=True))
    together = loss_and_gradients(model, [packed])
    alone = []
    for row, starts in enumerate(([0, 4, 5, 15, 23, 24], [0, 3, 24])):
        for a, b in zip(starts, starts[1:]):
            alone.append((x[row : row + 1, a:b], y[row : row + 1, a:b], None))
    assert_same(together, loss_and_gradients(model, alone), error=1e-11)
