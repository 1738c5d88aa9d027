"""Linear attention: its chunks, its state, its random features, and its sums in half precision."""

import pytest
import torch

from attention import CausalSelfAttention, elu1, fused, linear, linear_step, share_heads
from engine.kernels.autograd import rms_norm
from engine.kernels.linear_attention import LinearState, positive_random_features


def test_performer_approaches_softmax():
    """Catches random features that do not estimate exp(q·k): the error must fall as their number grows."""
    torch.manual_seed(0)
    q, k, v = (0.5 * torch.randn(2, 2, 40, 16, dtype=torch.float64) for _ in range(3))
    want, errors = fused(q, k, v), []
    for count in (16, 256, 4096, 32768):
        errors.append(
            (linear(q, k, v, positive_random_features(16, count)) - want).norm() / want.norm()
        )
    assert errors[0] > errors[1] > errors[2] > errors[3] and errors[3] < 0.015, errors
    feature = positive_random_features(
        2, 20000
    )  # few features of a head, where directions that are not equally likely show
    q, k = torch.randn(2, 100, 2, dtype=torch.float64)
    estimate = (feature(q) * feature(k)).sum(-1)
    assert (estimate / ((q * k).sum(-1) / 2**0.5).exp() - 1).abs().median() < 0.03


def test_the_random_matrix_follows_its_module():
    """Catches a matrix that is copied to the GPU at each call, one that is saved, and one that is drawn anew."""
    layer, again = (CausalSelfAttention(16, 2, attention="performer") for _ in range(2))
    assert torch.equal(
        layer.feature.directions, again.feature.directions
    ) and layer.feature.directions.shape == (32, 8)
    assert (
        layer.state_dict().keys() == {"c_attn.weight", "c_proj.weight"}
        and len(list(layer.parameters())) == 2
    )
    assert layer.to("meta").feature.directions.device.type == "meta"


def test_linear_state_refuses_what_does_not_fit():
    """Catches a state that broadcasts over another batch, runs past its length, or sees its own future."""
    layer = CausalSelfAttention(16, 2, attention="linear")
    state = layer.new_cache(1, 4)
    layer(torch.randn(1, 3, 16), cache=state)
    with pytest.raises(ValueError, match="B=1"):
        layer(torch.randn(2, 1, 16), cache=state)
    with pytest.raises(ValueError, match="full: 3 of 4"):
        layer(torch.randn(1, 2, 16), cache=state)
    assert len(state) == 3
    with pytest.raises(ValueError, match="B=1, H=2"):
        linear(*(torch.randn(1, 1, 1, 8) for _ in range(3)), memory=state)
    one = torch.randn(3, 2, 1, 8)
    _, three = linear_step(one, one, one, None)
    with pytest.raises(ValueError, match="does not fit"):
        linear_step(one[:1], one[:1], one[:1], three)
    k = torch.randn(1, 2, 2, 8)
    with pytest.raises(ValueError, match="one token"):
        linear_step(k, k, k, None)


@pytest.mark.parametrize("attention", ["linear", "performer"])
def test_linear_decodes_long_texts_in_half_precision(attention):
    """Catches a running sum in bfloat16, which stops to grow after a few hundred tokens."""
    torch.manual_seed(0)
    layer = CausalSelfAttention(32, 2, attention=attention, qk_norm=rms_norm).bfloat16()
    x, state = torch.randn(1, 1500, 32, dtype=torch.bfloat16), layer.new_cache(1, 1500)
    with torch.no_grad():
        want = layer(x)[:, -20:].float()
        layer(x[:, :-20], cache=state)
        got = torch.cat(
            [layer(x[:, t : t + 1], cache=state) for t in range(1480, 1500)], dim=1
        ).float()
    assert (got - want).norm() / want.norm() < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_linear_under_autocast(dtype):
    """Catches running sums that autocast cuts to half precision: they overflow, or stop to grow."""
    torch.manual_seed(0)
    layer = CausalSelfAttention(32, 2, attention="linear", qk_norm=rms_norm)
    x, state = torch.randn(1, 3000, 32), layer.new_cache(1, 3000)
    with torch.no_grad():
        want = layer(x)
        with torch.autocast("cpu", dtype):
            got = layer(x).float()
            layer(x[:, :-5], cache=state)
            last = torch.cat(
                [layer(x[:, t : t + 1], cache=state) for t in range(2995, 3000)], dim=1
            ).float()
            q, steps = torch.randn(1, 1, 1, 4), None
            for _ in range(3000):
                _, steps = linear_step(q, q, q, steps)
    assert (got - want).norm() / want.norm() < 0.02 and (last - want[:, -5:]).norm() / want[
        :, -5:
    ].norm() < 0.02
    assert state.sum.dtype == steps.dtype == torch.float32
    torch.testing.assert_close(steps[0, 0, :, -1], 3000 * elu1(q[0, 0, 0]), rtol=1e-3, atol=0)


def test_linear_of_many_numbers():
    """Catches a large input, which is taken a few heads at a time, whose heads or whose past get mixed up."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 9000, 64) for heads in (4, 2, 2))
    whole, state = linear(q, k, v), LinearState(1, 9000)
    parts = [
        linear(*(x[:, :, half] for x in (q, k, v)), memory=state)
        for half in (slice(0, 8500), slice(8500, 9000))
    ]
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=1e-4, atol=1e-5)
    for h in range(4):
        one = (x[:, h : h + 1] for x in (q, *(share_heads(q, x) for x in (k, v))))
        torch.testing.assert_close(linear(*one), whole[:, h : h + 1], rtol=1e-4, atol=1e-5)


def test_linear_of_features_that_vanish():
    """Catches 0/0: elu + 1 of a very negative number is exactly 0, and a sum of nothing is zeros and not NaN."""
    q = -200 * torch.ones(1, 1, 3, 4)
    y, _ = linear_step(q[:, :, :1], q[:, :, :1], q[:, :, :1], None)
    assert (linear(q, q, q) == 0).all() and (y == 0).all()


def test_linear_memory_does_not_grow():
    """Catches a state that keeps the keys: after 3 tokens and after 300 it must be as large, and know all 300."""
    layer = CausalSelfAttention(16, 2, attention="linear").double()
    x, state, sizes = torch.randn(2, 300, 16, dtype=torch.float64), layer.new_cache(2, 300), []
    for t in range(300):
        y = layer(x[:, t : t + 1], cache=state)
        sizes.append(state.sum.numel())
    assert set(sizes) == {2 * 2 * 8 * 9} and len(state) == 300
    torch.testing.assert_close(y, layer(x)[:, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("D", [8, 64, 256])
def test_huge_inputs_of_linear_attention_stay_finite(D):
    """Catches features whose exponential overflows, and 0/0 where all of them vanish."""
    torch.manual_seed(0)
    for scale in (1, 10, 100, 1e4):
        q, k, v = (torch.randn(1, 1, 300, D) * size for size in (scale, scale, 1))
        features = positive_random_features(D, 64)
        for feature in (elu1, features):
            assert linear(q, k, v, feature).isfinite().all(), (scale, feature)


@pytest.mark.parametrize("B, H", [(1, 3), (3, 2)])
def test_halves(B, H):
    """Catches a CPU's halves of a large batch, or of its heads, that are put together wrong, with and without a memory."""
    T = 2**20 // (B * H * 16) + 5
    q, k, v = (torch.randn(B, H, T, 16) for _ in range(3))
    memory = LinearState(B, 2 * T)
    for _ in range(2):
        y = linear(q, k, v, memory=memory)
    for b, h in ((0, 0), (B - 1, H - 1)):
        part, alone = (slice(b, b + 1), slice(h, h + 1)), LinearState(1, 2 * T)
        for _ in range(2):
            want = linear(q[part], k[part], v[part], memory=alone)
        torch.testing.assert_close(y[part], want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(memory.sum[part], alone.sum, rtol=1e-4, atol=1e-3)
