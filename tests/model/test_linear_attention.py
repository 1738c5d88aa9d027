"""Linear attention: its state, its random features, and its sums in half precision."""

import torch
from conftest import CPU, parametrize, refused
from mechanisms import qkv

from attention import FEATURE, CausalSelfAttention, elu1, linear, linear_step
from model import RMSNorm
from tools.shared.measure import peak_bytes
from variants.performer import positive_random_features


def test_random_features_estimate_exp():
    """Catches features that do not estimate exp(q·k), and lost signs of the QR decomposition: heads
    of two features show them.
    """
    feature = positive_random_features(2, 20000)
    q, k = torch.randn(2, 100, 2, dtype=torch.float64)
    estimate = (feature(q) * feature(k)).sum(-1)
    want = ((q * k).sum(-1) / 2**0.5).exp()
    assert (estimate / want - 1).abs().median() < 0.03


def test_linear_attention_refuses_what_does_not_fit():
    """Catches a state that runs past its length, or whose sum has padding; and a step of several
    tokens, which would see their own future.
    """
    layer = CausalSelfAttention(16, 2, attention="linear")
    state = layer.new_cache(1, 4)
    layer(torch.randn(1, 3, 16), cache=state)
    with refused("full: 3 of 4"):
        state.index(2)
    with refused("one length"):
        state.reset(padding=torch.zeros(1))
    assert state.length == 3
    with refused("one token"):
        linear_step(*qkv(1, (2, 2), (2, 2), 8), None)


@parametrize("attention", FEATURE)
@parametrize(
    "dtype, autocast", [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)]
)
@torch.no_grad()
def test_long_texts_in_half_precision(attention, dtype, autocast):
    """Catches running sums in half precision: they overflow, or stop to grow."""
    layer = CausalSelfAttention(32, 2, attention=attention, qk_norm=RMSNorm())
    x = torch.randn(1, 3000, 32)
    want = layer(x)[:, 2995:]
    if not autocast:
        layer.to(dtype)
        x = x.to(dtype)
    state = layer.new_cache(1, 3000)
    with torch.autocast("cpu", dtype, enabled=autocast):
        parts = [layer(part, cache=state) for part in x.split([2995, 1, 1, 1, 2], dim=1)]
        one = torch.ones(1, 1, 1, 4, dtype=dtype)
        assert linear_step(one, one, one, None)[1].dtype == state.sum.dtype == torch.float32
    assert (torch.cat(parts[1:], dim=1) - want).norm() < 0.02 * want.norm()


def test_the_memory_of_linear_attention():
    """Catches all pairs at once: T x T of them, where T x 128 are compared."""
    inputs = qkv(1, (1, 1), (4096, 4096), 8, torch.float32)
    assert peak_bytes(lambda: linear(*inputs), CPU) < 4 * 4096 * 128 * 2


@parametrize("D", [8, 256])
@parametrize("scale", [1, 100, 1e4])
def test_huge_inputs_of_linear_attention_stay_finite(D, scale):
    """Catches features whose exponential overflows, and 0/0 where all of them vanish."""
    q, k, v = qkv(1, (1, 1), (300, 300), D, torch.float32)
    for feature in elu1, positive_random_features(D, 64):
        assert linear(scale * q, scale * k, v, feature).isfinite().all()
