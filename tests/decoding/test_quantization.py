"""Weights for decoding: other bytes and other products, nearly the same numbers."""

import copy

import pytest
import torch
import torch.nn as nn
from conftest import CPU, parametrize
from hypothesis import example, given
from hypothesis import strategies as st
from mechanisms import ids, new_model, random_model

from engine.common import hardware
from engine.decoding import quantization
from engine.decoding.quantization import best_dtype, prepare_for_inference
from model import MODERN

LAYERS = [(quantization.Int8, 2**-6)]  # a Linear's replacement, its weights' relative error
if quantization.HAS_FBGEMM:
    LAYERS = [(quantization.Half, 2**-11), (quantization.PackedInt8, 2**-6)]
every_layer = parametrize("kind, error", LAYERS)
every_processor = parametrize("fbgemm", [False, quantization.HAS_FBGEMM])


@every_layer
@parametrize("inputs, outputs, bias", [(300, 500, True), (512, 256, False)])
def test_products(kind, error, inputs, outputs, bias):
    """Catches weights read in another order than laid out, a lost bias, digit, or dtype; and a
    division by a scale of zero.
    """
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs, bias=bias)
    linear.weight.data[3] = 0
    layer = kind(linear.requires_grad_(False))
    for rows in 1, 33:
        x = torch.randn(rows, 3, inputs).transpose(0, 1)
        x[0, 0] = 0
        exact = linear(x)
        y = layer(x)
        assert y.shape == exact.shape and y.dtype == torch.float32
        assert (y - exact).norm() <= error * exact.norm()


@every_layer
def test_rows_do_not_see_each_other(kind, error):
    """Catches a scale that rows share, or sums in another order: texts depend on neighbours."""
    exact = kind == quantization.PackedInt8
    if kind == quantization.Half:
        exact = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    for inputs, outputs in (128, 192), (700, 90), (3072, 64):
        layer = kind(nn.Linear(inputs, outputs).requires_grad_(False))
        x = torch.randn(40, inputs)
        x[3] *= 1000
        whole = layer(x)
        for rows in slice(0, 1), slice(3, 5), slice(4, 12), slice(20, 37):
            scale = 0 if exact else 1e-5 * whole[rows].abs().amax()
            assert ((layer(x[rows]) - whole[rows]).abs() <= scale).all()


@pytest.mark.skipif(not quantization.HAS_FBGEMM, reason="inputs are rounded by FBGEMM only")
@given(
    st.sampled_from([127, 63]),
    st.sampled_from([1, 2, 40]),
    st.integers(2, 320),
    st.integers(2, 320),
    st.integers(0, 2**31),
)
@example(127, 40, 58, 58, 799)  # a number just below the middle between two integers
def test_int8(levels, rows, inputs, outputs, seed):
    """Catches weights off by more than half a step, and inputs that are rounded to 8 bits."""
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs)
    x = torch.randn(rows, inputs)
    x[:, 0] *= 100  # an outlier, as real models have: 8 bits for all of x would lose the rest
    layer = quantization.PackedInt8(linear.requires_grad_(False))
    layer.LEVELS = min(levels, layer.LEVELS)  # this processor may not have 127
    scale = linear.weight.abs().amax(1, keepdim=True) / 127
    kept = torch.ops.quantized.linear_unpack(layer.packed)[0].dequantize().double()
    assert ((kept - linear.weight).abs() <= 0.5001 * scale).all()
    exact = x.double() @ kept.mT + linear.bias
    # At most a quarter of a level of a level of the largest number is cut off of each.
    tolerance = x.double().abs().amax(1, keepdim=True) * kept.abs().sum(1)
    tolerance *= 0.26 / layer.LEVELS**2
    assert ((layer(x) - exact).abs() <= tolerance + 1e-4).all()


@parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 0.005), (torch.float16, 0.001)]
)
def test_int8_on_a_gpu(dtype, tolerance):
    """Catches weights whose scale is rounded with them, and sums too large for float16."""
    torch.manual_seed(0)
    layer = quantization.Int8(nn.Linear(700, 50).requires_grad_(False))
    x = 500 * torch.randn(9, 700).to(dtype)
    kept = layer.weight.double() * layer.scale[:, None]
    exact = x.double() @ kept.mT + layer.bias
    y = layer(x)
    assert y.dtype == dtype and (y - exact).norm() < tolerance * exact.norm()


@every_processor
@parametrize(
    "dtype, quantize, texts, tolerance",
    [
        (torch.float32, "none", 1, 1e-5),
        (torch.float32, "none", 4, 1e-5),
        (torch.bfloat16, "none", 2, 0.05),
        (torch.float16, "none", 2, 0.01),
        (torch.float32, "int8", 2, 0.05),
    ],
)
def test_a_prepared_model(dtype, quantize, texts, tolerance, fbgemm, monkeypatch):
    """Catches layers that were left out, a tied embedding that is quantized with the head, and
    products of x86 on another processor.
    """
    monkeypatch.setattr(quantization, "HAS_FBGEMM", fbgemm)
    monkeypatch.setattr(quantization, "CACHE_BYTES", 0)  # a large model
    model = random_model(torch.float32, **MODERN | {"tie_weights": True})
    fast = prepare_for_inference(copy.deepcopy(model), dtype, quantize, texts)
    idx = ids(6, 16)
    expected = model(idx, idx)[0].softmax(-1)
    assert (fast(idx, idx)[0].float().softmax(-1) - expected).abs().max() < tolerance
    # Either all Linears are replaced and the rest stays float32, or the whole model is converted.
    kept = quantization.linears_of(fast)
    assert len(kept) in (0, len(quantization.linears_of(model)))
    whole = kept and not hardware.is_emulated(CPU, dtype)
    assert fast.transformer.wte.weight.dtype == (dtype if whole else torch.float32)


def test_a_dtype_without_units(monkeypatch):
    """Catches products that a processor emulates, six times slower; and weights not rounded."""
    monkeypatch.setattr(hardware, "cpu_flags", lambda: ["avx2"])
    rounded = new_model().bfloat16().float()
    fast = prepare_for_inference(new_model(), torch.bfloat16)
    assert {p.dtype for p in fast.parameters()} == {torch.float32}
    idx = ids(6, 16)
    torch.testing.assert_close(fast(idx), rounded(idx))


def test_the_dtype_that_suits_a_model(monkeypatch):
    """Catches a small model that loses digits, and a short job that waits until weights are laid
    out.
    """
    model = new_model()
    assert best_dtype(model, 128) == "float32"
    monkeypatch.setattr(quantization, "CACHE_BYTES", 0)
    large = "float16" if quantization.HAS_FBGEMM else "float32"
    assert best_dtype(model, 128) == large
    assert best_dtype(model, 127) == "float32"
