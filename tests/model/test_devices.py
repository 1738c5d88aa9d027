"""A model on a GPU, as far as a machine without one can tell: shapes, devices, graphs.

tests/test_gpu.py runs the real thing.
"""

import contextlib
import functools
from pathlib import Path

import pytest
import torch
import torchgen
import yaml
from conftest import ROOT, parametrize
from mechanisms import MECHANISMS, SMALL, NoWaiting, training_step
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from engine.generate import decode_one_token, prefill
from engine.optimizer import make_optimizer
from engine.published import WithoutInit
from engine.sampling import Sampling, sample_next_token
from engine.settings import parse_settings
from model import GPT, MODERN, GPTConfig
from train import TrainConfig

TRAINABLE = {str(m): m for m in MECHANISMS if m.get("attention") not in ("naive", "tiled")}
LONG = MODERN | dict(block_size=400, vocab_size=60, n_layer=2, n_head=4, n_embd=32)
SPARSE = [
    dict(),
    dict(window=30, n_kv_head=2),
    dict(visible="strided:20"),
    dict(visible="local_global:30,3"),
    dict(visible="alibi:4", n_kv_head=2),
    dict(window=30, head_size=5),
]
PRESETS = [path.stem for path in sorted(ROOT.glob("config/*.toml"))]
OLD = dict(position="learned", norm="layernorm", mlp="swiglu", qk_norm="head", bias=True)


@pytest.fixture
def h100(monkeypatch):
    """What asks for a GPU finds an H100, and meta tensors say that they are on one."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: x.is_meta), raising=False)
    # The meta device has no autocast.
    monkeypatch.setattr(torch, "autocast", lambda *_, **settings: contextlib.nullcontext())


@parametrize("shape", [*PRESETS, *TRAINABLE])
def test_a_step_of_shapes_only(shape, h100):
    """Catches a training step, or a token that is decoded, that fails on a GPU, or for which the
    program waits, in sizes that no test could compute.
    """
    config = TrainConfig(batch_size=2)
    if shape in PRESETS:
        config = parse_settings(TrainConfig, [f"{ROOT}/config/{shape}.toml"])
        shape = config.model_config(config.vocab_size or 320)
    else:
        shape = GPTConfig(**SMALL | TRAINABLE[shape])
    with torch.device("meta"), WithoutInit():
        model = GPT(shape)
        idx = torch.zeros(config.batch_size, shape.block_size, dtype=torch.long)
        cache = model.new_cache(config.batch_size)
    positions = None if model.transformer.h[0].attn.feature else idx
    optimizer = make_optimizer(model, config)
    u = torch.rand(len(idx), dtype=torch.float64)
    with NoWaiting():
        training_step(model, [(idx, idx, positions)] * 2, optimizer, grad_clip=1.0)
        with torch.no_grad():
            read_and_sample(model.eval(), idx, cache, u)
    for p, state in optimizer.state.items():
        assert all(tensor.is_meta for tensor in (p, *state.values()))


def test_a_training_step_is_one_graph(monkeypatch):
    """Catches a graph break of loss, half precision, windows or documents, where
    blocks are computed twice; and other numbers, as without a bias.
    """
    monkeypatch.setattr("engine.loss.MAX_LOGITS_CPU", 60 * 250)  # 800 rows in four chunks
    change = dict(visible="alibi:4", window=30, n_kv_head=2, n_layer=1, init="gpt2")
    model = GPT(GPTConfig(**LONG | change))
    model.activation_checkpointing = True
    idx = torch.randint(60, (2, 400))
    positions = torch.arange(400).expand(2, 400) % 37
    results = []
    torch._dynamo.reset()
    for net in model, torch.compile(model, backend="aot_eager", fullgraph=True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(idx, idx, only_loss=True, position_ids=positions)[1]
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for eager, compiled in zip(*results):
        torch.testing.assert_close(compiled, eager, rtol=0.02, atol=0.02 * eager.abs().max().item())


@functools.cache
def operations():
    """PyTorch's own list, from which its code is generated: {name: its kernels, and more}."""
    path = Path(torchgen.__file__).with_name("packaged") / "ATen/native/native_functions.yaml"
    entries = yaml.load(path.read_text(), yaml.CSafeLoader)
    return {entry["func"].partition("(")[0]: entry for entry in entries}


def runs_on_mac(name):
    entry = operations()[name]
    if "structured_delegate" in entry:
        return runs_on_mac(entry["structured_delegate"])
    kernels = ", ".join(entry.get("dispatch", ["Composite"])).split(", ")
    return any(kernel == "MPS" or kernel.startswith("Composite") for kernel in kernels)


class OnMac(TorchDispatchMode):
    """Refuses what a Mac's GPU lacks: float64, and operations for which PyTorch has no kernel."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        y = function(*args, **kwargs or {})
        for x in pytree.tree_leaves(y):
            if isinstance(x, torch.Tensor) and x.is_meta:
                assert x.dtype != torch.float64, function
                name = str(function).removeprefix("aten.").removesuffix(".default")
                assert runs_on_mac(name), function
        return y


def read_and_sample(model, idx, cache, u):
    """Read idx (B, T), its last token as decoding does, and sample in two ways."""
    prefill(model, idx[:, :-1], cache)
    logits = decode_one_token(model, idx[:, -1:], cache)[:, 0]
    for settings in dict(top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=1.2), {}:
        sample_next_token(logits, Sampling(**settings), u, idx)


@parametrize(
    "change, optimizer",
    [*((change, "muon") for change in [*SPARSE, dict(attention="linear")]), (OLD, "adamw")],
    ids=str,
)
def test_training_and_sampling_on_a_mac(change, optimizer, monkeypatch):
    """Catches an operation or a dtype that MPS lacks, where nobody has one to try."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **settings: contextlib.nullcontext())
    with torch.device("meta"), WithoutInit():
        model = GPT(GPTConfig(**LONG | change))
        idx = torch.zeros(2, 400, dtype=torch.long)
        cache = model.new_cache(2)
    steps = make_optimizer(model, TrainConfig(optimizer=optimizer))
    parameters = list(model.parameters())
    u = torch.rand(2, dtype=torch.float64)
    with OnMac():
        model(idx, idx, only_loss=True)[1].backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        steps.step()
        with torch.no_grad():
            read_and_sample(model, idx, cache, u)


@parametrize("change", SPARSE, ids=str)
def test_a_token_waits_for_nothing(change, monkeypatch):
    """Catches positions, padding or chance that each token brings from the CPU."""
    u = torch.rand(2, dtype=torch.float64)
    with torch.device("meta"), WithoutInit():
        model = GPT(GPTConfig(**LONG | change))
        idx = torch.zeros(2, 301, dtype=torch.long)
        cache = model.new_cache(2)
        for layer in cache:
            layer.reset(torch.zeros(2, dtype=torch.long))
    with torch.no_grad():
        monkeypatch.setattr(torch, "tensor", None)  # numbers of Python are moved too
        with NoWaiting():
            read_and_sample(model, idx, cache, u)
