"""Weights for decoding: other bytes and other products, nearly the same numbers."""

import copy

import torch
import torch.nn as nn
from conftest import parametrize
from mechanisms import ids, new_model, random_model

from engine import quantize
from engine.quantize import decoding_dtype, prepare_for_inference
from model import MODERN

LAYERS = [(quantize.Int8, 2**-6)]  # a Linear's replacement, its weights' relative error
if quantize.HAS_FBGEMM:
    LAYERS += [(quantize.Half, 2**-11)]


@parametrize("kind, error", LAYERS)
@parametrize("inputs, outputs, bias", [(300, 500, True), (512, 256, False)])
def test_products(kind, error, inputs, outputs, bias):
    """Catches weights read in another order than laid out, a lost bias, digit, or dtype; a division
    by a scale of zero; and int8 products that read beyond rows of an odd width.
    """
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


@parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 0.005), (torch.float16, 0.001)]
)
def test_int8_on_a_gpu(dtype, tolerance):
    """Catches weights whose scale is rounded with them, and sums too large for float16."""
    layer = quantize.Int8(nn.Linear(700, 50).requires_grad_(False))
    x = 500 * torch.randn(9, 700).to(dtype)
    kept = layer.weight.double() * layer.scale[:, None]
    exact = x.double() @ kept.mT + layer.bias
    y = layer(x)
    assert y.dtype == dtype and (y - exact).norm() < tolerance * exact.norm()


@parametrize("fbgemm", [False, quantize.HAS_FBGEMM])
@parametrize(
    "dtype, weights, tolerance",
    [
        (torch.float32, "none", 1e-5),
        (torch.bfloat16, "none", 0.05),
        (torch.float16, "none", 0.01),
        (torch.float32, "int8", 0.05),
    ],
)
def test_a_prepared_model(dtype, weights, tolerance, fbgemm, monkeypatch):
    """Catches layers that were left out, a tied embedding that is quantized with the head, and
    products of x86 on another processor.
    """
    monkeypatch.setattr(quantize, "HAS_FBGEMM", fbgemm)
    model = random_model(torch.float32, **MODERN | {"tie_weights": True})
    fast = prepare_for_inference(copy.deepcopy(model), dtype, weights)
    idx = ids(6, 16)
    expected = model(idx, idx)[0].softmax(-1)
    assert (fast(idx, idx)[0].float().softmax(-1) - expected).abs().max() < tolerance
    # Either all Linears are replaced and the rest stays float32, or the whole model is converted.
    kept, linears = (
        sum(isinstance(module, nn.Linear) for module in net.modules()) for net in (fast, model)
    )
    assert kept in (0, linears)
    assert fast.transformer.wte.weight.dtype == (dtype if kept else torch.float32)


def test_the_dtype_that_suits_a_model(monkeypatch):
    """Catches a small model that loses digits, and a large one whose weights are all read."""
    model = new_model()
    assert decoding_dtype(model) == "float32"
    monkeypatch.setattr(quantize, "CACHE_BYTES", 0)
    assert decoding_dtype(model) == ("float16" if quantize.HAS_FBGEMM else "float32")
