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
from mechanisms import MECHANISMS, new_model
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from engine.decoding.sampling import Sampling, sample_next_token
from engine.decoding.session import Session, decode_one_token, prefill
from engine.kernels import autograd
from engine.training.optimizer import make_optimizer
from model import GPT, MODERN, GPTConfig
from tools.shared.benchmark import SHAPES, model_config
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
OLD = dict(position="learned", norm="layernorm", mlp="swiglu", qk_norm="head", bias=True)


@pytest.mark.parametrize("shape", [*SHAPES, *TRAINABLE])
def test_a_step_of_shapes_only(shape, monkeypatch):
    """Catches a wrong device or shape in a training step, in sizes that no test could compute."""
    # The meta device has no autocast.
    monkeypatch.setattr(torch, "autocast", lambda *_, **settings: contextlib.nullcontext())
    if shape in SHAPES:
        with torch.device("meta"):
            model = GPT(model_config(shape))
    else:
        model = new_model(**TRAINABLE[shape]).to("meta")
    idx = torch.zeros(2, model.config.block_size, dtype=torch.long, device="meta")
    try:
        loss = model(idx, idx, only_loss=True)[1]
    except NotImplementedError:
        pytest.skip("its shapes depend on data, as those of sparse experts")
    loss.backward()
    make_optimizer(model, TrainConfig()).step()
    for p in model.parameters():
        assert p.grad.device.type == "meta" and p.grad.shape == p.shape


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, separator, size",
    [
        ({}, None, None),
        (dict(window=30, n_kv_head=2), 7, None),
        (dict(visible="strided:20"), None, None),
        (dict(position="learned"), None, 100),
        (dict(visible="local_global:30,4"), None, 100),
    ],
)
def test_a_training_step_is_one_graph(change, separator, size, monkeypatch):
    """Catches a graph break of loss, half precision, windows, documents or conversations of this
    size; and other numbers.
    """
    monkeypatch.setattr(autograd, "MAX_LOGITS_CPU", 60 * 250)  # 800 rows in four chunks
    torch.manual_seed(0)
    model = GPT(GPTConfig(**LONG | change | dict(n_layer=1, init="gpt2")))
    model.separator = separator
    idx = torch.randint(60, (2, 400))
    positions = torch.arange(400).expand(2, 400) % size if size else None
    results = []
    torch._dynamo.reset()
    for net in model, torch.compile(model, backend="aot_eager", fullgraph=True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(idx, idx, only_loss=True, positions=positions)[1]
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for eager, compiled in zip(*results):
        error = 0.02 * eager.abs().max().item()
        torch.testing.assert_close(compiled, eager, rtol=0.02, atol=error)


@functools.cache
def operations():
    """PyTorch's own list, from which its code is generated: {name: its kernels, and more}."""
    path = Path(torchgen.__file__).with_name("packaged") / "ATen/native/native_functions.yaml"
    entries = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
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


@pytest.mark.parametrize(
    "change, optimizer",
    [*((change, "muon") for change in [*SPARSE, dict(attention="linear")]), (OLD, "adamw")],
    ids=str,
)
def test_training_and_sampling_on_a_mac(change, optimizer, monkeypatch):
    """Catches an operation or a dtype that MPS lacks, where nobody has one to try."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **settings: contextlib.nullcontext())
    with torch.device("meta"):
        model = GPT(GPTConfig(**LONG | change))
        idx = torch.zeros(2, 400, dtype=torch.long)
    steps = make_optimizer(model, TrainConfig(optimizer=optimizer))
    with OnMac():
        model(idx, idx, only_loss=True)[1].backward()
        gradients = [p.grad for p in model.parameters()]
        norm = torch.nn.utils.get_total_norm(gradients)
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        steps.step()
        with torch.no_grad():
            cache = model.new_cache(2)
            prefill(model, idx[:, :300], cache)
            logits = decode_one_token(model, idx[:, :1], cache)[:, 0]
            u = torch.rand(2, dtype=torch.float64)
            for settings in dict(top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=1.2), {}:
                sample_next_token(logits, Sampling(**settings), u, idx)


class NoWaiting(TorchDispatchMode):
    """Refuses an operation for which a GPU and the program would wait for each other."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        y = function(*args, **kwargs)
        devices = {x.device for x in (*args, y) if isinstance(x, torch.Tensor) and x.dim()}
        assert len(devices) < 2 or kwargs.get("non_blocking"), function
        assert function != torch.ops.aten._local_scalar_dense.default, function
        return y


@pytest.mark.parametrize("change", SPARSE, ids=str)
def test_a_token_waits_for_nothing(change, monkeypatch):
    """Catches positions, padding or chance that each token brings from the CPU."""
    sampling = Sampling(top_k=9, repetition_penalty=1.2)
    u = torch.rand(2, dtype=torch.float64)
    with torch.device("meta"):
        model = GPT(GPTConfig(**LONG | change))
        session = Session(model, [torch.zeros(T, dtype=torch.long) for T in (300, 290)])
        cache = model.new_cache(2)
        for layer in cache:
            layer.reset(torch.zeros(2, dtype=torch.long))
    with torch.no_grad():
        prefill(model, session.ids[:, :300], cache)
        monkeypatch.setattr(torch, "tensor", None)  # numbers of Python are moved too
        with NoWaiting():
            logits = decode_one_token(model, session.ids[:, :1], cache)[:, 0]
            text = session.text_before(300)
            assert sample_next_token(logits, sampling, u, text).shape == (2,)
