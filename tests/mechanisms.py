"""Inputs that several tests share: every mechanism of a model, and random cases of attention."""

import contextlib
import inspect
import itertools

import torch
from conftest import randomized
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attention import ATTENTION, FEATURE, NORMALIZE, SCORE
from engine.optimizer import clip_gradients, loss_divisors
from masks import (
    VISIBLE,
    after_padding,
    alibi,
    both,
    causal,
    full,
    local_global,
    present,
    same_document,
    sliding_window,
    strided,
)
from model import GPT, INIT, MIXER, MLP, NORM, POSITION, GPTConfig


def predicates(*numbers):
    """Each predicate as a setting, with these numbers and 4 heads, or with its defaults."""
    specs = []
    for name, make in VISIBLE.items():
        parameters = inspect.signature(make).parameters.values()
        if all(p.default is not p.empty for p in parameters):
            specs.append(name)
            continue
        rest = itertools.chain(numbers, itertools.repeat(2))
        values = ["4" if p.name == "H" else str(next(rest)) for p in parameters]
        specs.append(f"{name}:{','.join(values)}")
    return specs


def mechanisms():
    """Settings of a model that bring in each entry of each registry, and each option."""
    found = [{"attention": name} for name in [*ATTENTION, *FEATURE]]
    found += [{"visible": spec} for spec in predicates(4, 2, 1)]
    # Only paths that compute all scores can use another score or normalizer.
    found += [{"score": name, "attention": "masked_fill"} for name in SCORE]
    found += [{"normalize": name, "attention": "masked_fill"} for name in NORMALIZE]
    found += [{"position": name} for name in POSITION]
    found += [{"norm": name} for name in NORM]
    found += [{"mlp": name} for name in MLP]
    found += [{"mixer": name} for name in MIXER]
    found += [{"init": name} for name in INIT]
    return found + [
        {"qk_norm": True},
        {"qk_norm": "head", "position": "rope"},
        {"head_size": 12, "mlp": "swiglu", "mlp_size": 40, "qkv_bias": True, "bias": False},
        {"value_size": 6, "attention": "tiled"},
        {"position": "rope", "rope_stretch": 4.0, "rope_trained": 32},
        {"mixer": "latent", "position": "rope", "qk_norm": True, "value_size": 6},
        {"mixer": "differential", "position": "rope", "value_size": 6, "visible": "alibi:4"},
        {"mixer": "gated", "attention": "linear"},
        {"mlp": "experts", "experts": 3, "experts_per_token": 3, "mlp_size": 12},
    ]


MECHANISMS = mechanisms()
ADDED = [{"mixer": name} for name in MIXER] + [{"mlp": "experts"}, {"visible": "t5:2"}]


SMALL = dict(block_size=16, vocab_size=33, n_layer=2, n_head=4, n_kv_head=2, n_embd=32)


def new_model(**settings):
    """A small model with its initial weights."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # memory that nothing has filled holds nan
    try:
        model = GPT(GPTConfig(**SMALL | settings))
    finally:
        torch.use_deterministic_algorithms(False)
    for name, p in model.named_parameters():
        assert p.isfinite().all(), f"{name} has no initial value"
    return model.eval()


def random_model(dtype=torch.float64, **settings):
    """A small model with weights so large that each part of it matters."""
    return randomized(new_model(**settings)).to(dtype)


def ids(*shape):
    return torch.randint(33, shape)


def qkv(B, heads, lengths, D, dtype=torch.float64):
    """Random q (B, H, Tq, D) and k, v (B, G, Tk, D) for heads (H, G) and lengths (Tq, Tk)."""
    torch.manual_seed(sum(lengths))
    H, G = heads
    Tq, Tk = lengths
    shapes = (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, D)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def nobody_before_three(i, j):
    """Queries before position 3 may see nothing at all."""
    return (j <= i) & (i >= 3)


@st.composite
def cases(draw):
    """(q, k, v, visible): any sizes with Tq <= Tk and H % G == 0, any predicate."""
    B = draw(st.integers(1, 3))
    G = draw(st.integers(1, 3))
    H = G * draw(st.integers(1, 3))
    D, Dv = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    Tq = draw(st.integers(1, 12))
    Tk = Tq + draw(st.one_of(st.just(0), st.integers(0, 60)))
    n_global = draw(st.integers(0, 5))
    S = draw(st.integers(1, 9))
    W = draw(st.integers(1, 2 * Tk))
    position = torch.arange(B * Tk).view(B, Tk)
    real = position % (S + 1) > 0
    predicates = [
        causal,
        full,
        sliding_window(W),
        local_global(W, n_global),
        strided(S),
        alibi(H),
        after_padding(sliding_window(W), torch.arange(B) * S),
        after_padding(local_global(W, n_global), torch.arange(B) * S),
    ]
    others = [
        nobody_before_three,
        same_document(torch.arange(Tk) // S),
        same_document(position // S),
        local_global(S, 2),
        both(causal, present(real)),
    ]
    visible = draw(st.sampled_from(predicates))
    if draw(st.booleans()):
        visible = both(visible, draw(st.sampled_from(others)))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    shapes = (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv)
    return *(torch.randn(shape, dtype=torch.float64) for shape in shapes), visible


def training_step(net, batches, optimizer, grad_clip=0.0, autocast=None, scaler=None):
    """Update a model as train.py does, from micro-batches (x, y, position_ids); return the loss."""
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    parts = loss_divisors([y for _, y, _ in batches])
    losses = []
    for (x, y, position_ids), part in zip(batches, parts):
        with autocast or contextlib.nullcontext():
            loss = net(x, y, only_loss=True, position_ids=position_ids)[1] / part
        scaler.scale(loss).backward()
        net.take_auxiliary()
        losses.append(loss.detach())
    scaler.unscale_(optimizer)
    clip_gradients(optimizer, grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return torch.stack(losses).sum()


class NoWaiting(TorchDispatchMode):
    """Refuses an operation for which a GPU and the program would wait for each other."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        y = function(*args, **kwargs)
        devices = {x.device for x in (*args, y) if isinstance(x, torch.Tensor) and x.dim()}
        assert len(devices) < 2 or kwargs.get("non_blocking"), function
        assert function != torch.ops.aten._local_scalar_dense.default, function
        return y


def value_and_gradients(path, q, k, v, *how, learned=()):
    """[y, dq, dk, dv] of a path, for a gradient of y that differs everywhere; and of what it has
    learned.
    """
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    y = path(*inputs, *how)
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    return [y, *torch.autograd.grad((y * dy).sum(), [*inputs, *learned])]


def assert_same(got, want, error=1e-12, why=""):
    """Compare two lists of tensors, such as those of value_and_gradients. why: if they differ."""
    for a, b in zip(got, want, strict=True):
        assert b.isfinite().all()
        torch.testing.assert_close(a, b, rtol=0, atol=error, msg=lambda text: f"{why}\n{text}")
