"""Linear attention: its chunks, its state, its random features, and its sums in half precision."""

import pytest
import torch
from mechanisms import qkv

from attention import FEATURE, CausalSelfAttention, elu1, fused, linear, linear_step
from engine.kernels.autograd import rms_norm
from engine.kernels.linear_attention import positive_random_features


def relative_error(got, want):
    return (got.double() - want.double()).norm() / want.double().norm()


def decoded(layer, x, first):
    """The layer's output from position `first` on, one token at a time after a prefill."""
    state = layer.new_cache(len(x), x.shape[1])
    layer(x[:, :first], cache=state)
    steps = [layer(x[:, t : t + 1], cache=state) for t in range(first, x.shape[1])]
    return torch.cat(steps, dim=1), state


def test_performer_approaches_softmax():
    """Catches random features that do not estimate exp(q·k): more of them must err less."""
    q, k, v = (0.5 * x for x in qkv(2, (2, 2), (40, 40), 16))
    want = fused(q, k, v)
    errors = []
    for count in (16, 256, 4096, 32768):
        y = linear(q, k, v, positive_random_features(16, count))
        errors.append(relative_error(y, want))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.015, errors


def test_the_directions_of_random_features_are_equally_likely():
    """Catches lost signs of the QR decomposition, as heads of two features show."""
    torch.manual_seed(0)
    feature = positive_random_features(2, 20000)
    q, k = torch.randn(2, 100, 2, dtype=torch.float64)
    estimate = (feature(q) * feature(k)).sum(-1)
    want = ((q * k).sum(-1) / 2**0.5).exp()
    assert (estimate / want - 1).abs().median() < 0.03


def test_the_random_matrix_follows_its_module():
    """Catches a matrix that stays on the CPU, is saved, or is drawn anew."""
    layer, again = (CausalSelfAttention(16, 2, attention="performer") for _ in range(2))
    assert torch.equal(layer.feature.directions, again.feature.directions)
    assert layer.feature.directions.shape == (32, 8)
    assert layer.state_dict().keys() == {"c_attn.weight", "c_proj.weight"}
    assert layer.to("meta").feature.directions.device.type == "meta"


def test_linear_state_refuses_what_does_not_fit():
    """Catches a state that broadcasts over another batch, or runs past its length."""
    layer = CausalSelfAttention(16, 2, attention="linear")
    state = layer.new_cache(1, 4)
    layer(torch.randn(1, 3, 16), cache=state)
    with pytest.raises(ValueError, match="B=1"):
        layer(torch.randn(2, 1, 16), cache=state)
    with pytest.raises(ValueError, match="full: 3 of 4"):
        layer(torch.randn(1, 2, 16), cache=state)
    with pytest.raises(ValueError, match="nothing can be removed"):
        state.trim(2)
    assert len(state) == 3


def test_linear_step_refuses_what_does_not_fit():
    """Catches a step of several tokens, which would see their own future."""
    with pytest.raises(ValueError, match="one token"):
        linear_step(*qkv(1, (2, 2), (2, 2), 8), None)


@pytest.mark.parametrize("attention", FEATURE)
@pytest.mark.parametrize(
    "dtype, autocast", [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)]
)
def test_long_texts_in_half_precision(attention, dtype, autocast):
    """Catches running sums in half precision: they overflow, or stop to grow."""
    torch.manual_seed(0)
    layer = CausalSelfAttention(32, 2, attention=attention, qk_norm=rms_norm)
    x = torch.randn(1, 3000, 32)
    with torch.no_grad():
        want = layer(x)
        if not autocast:
            layer, x = layer.to(dtype), x.to(dtype)
        with torch.autocast("cpu", dtype, enabled=autocast):
            assert relative_error(layer(x), want) < 0.02
            last, state = decoded(layer, x, 2995)
            one = torch.ones(1, 1, 1, 4, dtype=dtype)
            assert linear_step(one, one, one, None)[1].dtype == torch.float32
    assert relative_error(last, want[:, 2995:]) < 0.02
    assert state.sum.dtype == torch.float32


@pytest.mark.parametrize("D", [8, 256])
@pytest.mark.parametrize("scale", [1, 100, 1e4])
def test_huge_inputs_of_linear_attention_stay_finite(D, scale):
    """Catches features whose exponential overflows, and 0/0 where all of them vanish."""
    q, k, v = qkv(1, (1, 1), (300, 300), D, torch.float32)
    for feature in elu1, positive_random_features(D, 64):
        assert linear(scale * q, scale * k, v, feature).isfinite().all()
