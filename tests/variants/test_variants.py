"""What is added is used, by each tool that reads a model too, or refused in one line."""

import contextlib

import pytest
import torch
import torch._dynamo
from conftest import parametrize, put, refused, save
from mechanisms import ADDED, MECHANISMS, assert_same, ids, random_model

from engine import checkpoint, families, lora
from engine.settings import parse_settings
from model import GPT, MODERN, GPTConfig
from tools import census, export
from tools.shared import live
from tools.shared.inspection import attention_maps
from train import TrainConfig


def test_the_loss_stays_the_cross_entropy():
    """Catches an auxiliary loss that counts as the model's, has no gradient, or acts outside of
    training.
    """
    model = random_model(mlp="experts", balance=0.5)
    idx = ids(4, 16)
    plain = model(idx, idx)[1]
    assert model.auxiliary_loss == 0
    trained = model.train()(idx, idx, only_loss=True)[1]
    assert_same([trained], [plain])
    assert model.auxiliary_loss >= 0.5 * 2  # in two layers; less is impossible
    routers = [block.mlp.router.weight for block in model.transformer.h]
    grads = torch.autograd.grad(trained, routers)
    for grad, other in zip(grads, torch.autograd.grad(model.eval()(idx, idx)[1], routers)):
        assert (grad - other).abs().max() > 1e-4


def test_flops_of_active_weights():
    """Catches a utilization that counts experts which a token does not meet."""
    shape = MODERN | dict(n_layer=1, n_head=2, n_embd=32, vocab_size=64, block_size=8)
    dense = GPT(GPTConfig(**shape)).flops_per_token()
    routed = GPT(GPTConfig(**shape | dict(mlp="experts", experts=4))).flops_per_token()
    assert routed == dense + 6 * 4 * 32  # the router


@parametrize("mechanism", MECHANISMS, ids=str)
def test_what_reads_a_model(mechanism):
    """Catches a tool that ends in a traceback, or computes another model, for what is added."""
    model = random_model(torch.float32, **mechanism)
    idx = ids(16)
    maps, want = attention_maps(model, idx)
    for weights in maps:
        assert_same([weights.sum(-1)], [torch.ones(4, 16)], error=1e-5)
    census.census(model, [idx], chr)
    assert model.flops_per_token() > 0
    with contextlib.suppress(ValueError):
        export.standard(model)
        assert not families.not_standard(model.config), "it can be exported"
    with contextlib.suppress(ValueError):
        live.describe_model(model)
    model.extend_vocab(40)
    assert model(ids(1, 4) + 7)[0].shape[-1] == 40
    logits, _ = model(idx[None], idx[None])
    assert_same([logits[0, :, :33]], [want], error=1e-4)
    lora.attach(model, lora.Adapter(lora_rank=2, lora_targets="c_proj"))
    lora.merge(model)
    assert_same([model(idx[None], idx[None])[0]], [logits], error=1e-4)


def test_settings_of_its_own(tmp_path):
    """Catches a flag that reaches no module, and a fork's checkpoint that is read as another."""
    config = parse_settings(TrainConfig, ["--mlp=experts", "--experts=3"])
    model = GPT(config.model_config(33))
    assert model.transformer.h[0].mlp.router.out_features == 3
    folder = save(tmp_path, model)
    assert GPT.from_pretrained(folder).config.experts == 3
    saved = checkpoint.load_config(folder)
    put(folder / "config.json", saved | {"model": saved["model"] | {"gate_limit": 2.0}})
    with refused("unknown setting 'gate_limit'"):
        GPT.from_pretrained(folder)


def test_what_cannot_be_exported():
    """Catches a run that tells of it only once it has been trained."""
    modern = families.not_standard(GPTConfig(**MODERN))
    assert modern == ["mlp=relu2"]
    settings = dict(mixer="gated", mlp="experts", visible="t5:12")
    want = {f"{name}={value}" for name, value in settings.items()}
    assert {*families.not_standard(GPTConfig(**settings))} == want


def test_layers_without_maps():
    """Catches a picture of other layers than those that attend."""
    model = random_model()
    model.transformer.h[1].attn = torch.nn.Identity()
    model.transformer.h[1].attn.forward = lambda x, rope, cache: x
    with refused("computed 1 attention maps in 2 layers"):
        attention_maps(model, ids(16))


@pytest.mark.slow
@parametrize("added", ADDED, ids=str)
def test_compiled(added):
    """Catches an operation that torch.compile cannot trace, or computes in another way."""
    model = random_model(torch.float32, n_head=2, **added).train()
    model.activation_checkpointing = True
    idx = ids(2, 16)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    grads = []
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        for net in model, compiled:
            loss = net(idx, idx, only_loss=True)[1]
            found = torch.autograd.grad(loss, [*model.parameters()])
            grads.append([loss, *found, torch.as_tensor(model.auxiliary_loss)])
    assert_same(*grads, error=1e-4)
