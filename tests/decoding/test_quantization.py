"""Weights for decoding: other bytes and other products, nearly the same numbers."""

import copy
import functools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.decoding import quantization
from model import GPT, MODERN, GPTConfig

WAYS = {  # how a CPU multiplies: (layer of a Linear, relative error of its weights)
    "float32": (quantization.Packed, 1e-6, quantization.HAS_ONEDNN),
    "float16": (quantization.Half, 2**-11, quantization.HAS_FBGEMM),
    "bfloat16": (
        functools.partial(quantization.Packed, dtype=torch.bfloat16),
        2**-7,
        quantization.HAS_BFLOAT16,
    ),
    "int8": (quantization.Int8, 2**-6, True),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 32, 33, 600])
@pytest.mark.parametrize(
    "inputs, outputs, bias", [(300, 500, True), (512, 256, False), (7, 9, True)]
)
def test_ways_to_multiply(name, rows, inputs, outputs, bias):
    """Catches a weight that is read in another order than it was laid out in, a lost bias, a lost digit, or a lost dtype."""
    way, error, possible = WAYS[name]
    if not possible:
        pytest.skip("this processor has no such product")
    torch.manual_seed(0)
    linear, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(rows, 3, inputs).transpose(0, 1)
    layer, exact = way(copy.deepcopy(linear)), linear(x)
    y = layer(x)
    assert y.shape == (3, rows, outputs) and y.dtype == torch.float32
    assert (y - exact).norm() <= error * exact.norm()
    assert layer.nbytes == inputs * outputs * getattr(torch, name).itemsize


@pytest.mark.parametrize("value", [1e5, math.inf, math.nan])
@pytest.mark.skipif(
    not quantization.HAS_FBGEMM, reason="only FBGEMM would change such a weight without a word"
)
def test_a_weight_that_float16_cannot_hold(value):
    """Catches a model whose largest weights are cut off in silence."""
    linear = nn.Linear(3, 4)
    linear.weight.data[2, 1] = value
    with pytest.raises(ValueError, match="--dtype=float32"):
        quantization.Half(linear)


def test_a_model_that_float16_cannot_hold():
    """Catches a weight that becomes infinite where the whole model is converted, as on a GPU."""
    model = GPT(GPTConfig(block_size=16, vocab_size=64, n_layer=1, n_head=2, n_embd=32))
    model.transformer.wpe.weight.data[2, 1] = 1e5
    with pytest.raises(ValueError, match="--dtype=float32"):
        quantization.prepare_for_inference(model, torch.float16, rows=None)


def test_the_dtype_on_a_gpu(monkeypatch):
    """Catches float32 on a GPU that has units for float16 but none for bfloat16: half of its speed."""
    weight = SimpleNamespace(device=torch.device("cuda:0"))
    model = SimpleNamespace(transformer=SimpleNamespace(wte=SimpleNamespace(weight=weight)))
    for capability, expected in ((8, 0), "bfloat16"), ((7, 5), "float16"):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        assert quantization.best_dtype(model) == expected


@pytest.mark.parametrize("name", ["float16", "int8"])
def test_rows_do_not_see_each_other(name):
    """Catches a scale that rows share, or sums in another order: a text would depend on its neighbours."""
    way, _, possible = WAYS[name]
    if not possible:
        pytest.skip("this processor has no such product")
    for inputs, outputs in (128, 192), (700, 90), (3072, 64):
        layer, x = way(nn.Linear(inputs, outputs)), torch.randn(40, inputs)
        x[3] *= 1000
        whole = layer(x)
        for rows in (
            slice(0, 1),
            slice(0, 2),
            slice(0, 5),
            slice(3, 6),
            slice(4, 12),
            slice(2, 9),
            slice(20, 37),
        ):
            assert torch.equal(layer(x[rows]), whole[rows])


def weights_of(layer):
    """What an Int8 multiplies by, in float64."""
    if layer.packed is None:
        return layer.weight.double() * layer.scale.double()[:, None]
    return torch.ops.quantized.linear_unpack(layer.packed)[0].dequantize().double()


@pytest.mark.parametrize("levels", [127, 63])
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 5, 40]),
    *[st.one_of(st.integers(2, 300), st.sampled_from([64, 128, 320]))] * 2,
    st.booleans(),
    st.integers(0, 2**31),
)
@example(40, 58, 58, True, 799)  # a number just below the middle between two integers
def test_int8(levels, rows, inputs, outputs, bias, seed):
    """Catches weights off by more than half a step of their scale, and activations that are rounded to 8 bits with them."""
    torch.manual_seed(seed)
    linear, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(rows, inputs)
    x[:, 0] *= 100  # an outlier, as real models have: 8 bits for all of x would lose the rest
    layer = quantization.Int8(linear)
    layer.LEVELS = min(levels, layer.LEVELS)
    scale, kept = linear.weight.abs().amax(1, keepdim=True) / 127, weights_of(layer)
    assert ((kept - linear.weight).abs() <= 0.5001 * scale).all()
    exact = x.double() @ kept.mT + (linear.bias.double() if bias else 0)
    # what is cut off of each number is a quarter of a level of a level of the largest
    tolerance = 0.26 / levels**2 * x.double().abs().amax(1, keepdim=True) * kept.abs().sum(1)
    assert ((layer(x) - exact).abs() <= tolerance + 1e-4).all()


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 0.005), (torch.float16, 0.001)]
)
def test_int8_as_on_a_gpu(dtype, tolerance):
    """Catches weights whose scale is rounded with them, and sums too large for float16."""
    torch.manual_seed(0)
    layer, x = (
        quantization.Int8(nn.Linear(700, 50), packed=False),
        500 * torch.randn(9, 700).to(dtype),
    )
    exact = x.double() @ weights_of(layer).mT + layer.bias.double()
    got = layer.widened(x)
    assert got.dtype == dtype and ((got - exact).norm() < tolerance * exact.norm())


def test_zeros_stay_zeros():
    """Catches a division by a scale of zero."""
    linear = nn.Linear(8, 8)
    with torch.no_grad():
        linear.weight.zero_()
    for rows in (1, 9):
        assert torch.equal(
            quantization.Int8(linear)(torch.zeros(rows, 8)), linear.bias.expand(rows, -1)
        )


@pytest.mark.parametrize("shape", [{}, MODERN])
@pytest.mark.parametrize("rows", [1, 10, None])
@pytest.mark.parametrize(
    "dtype, how, tolerance",
    [
        (torch.float32, "none", 1e-5),
        (torch.bfloat16, "none", 0.05),
        (torch.float16, "none", 0.01),
        (torch.float32, "int8", 0.05),
        (torch.bfloat16, "int8", 0.1),
    ],
)
def test_a_model_made_ready(shape, dtype, how, tolerance, rows):
    """Catches layers that were left out, or a tied embedding that is quantized with the head."""
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(block_size=16, vocab_size=64, n_layer=2, n_head=2, n_embd=32, **shape)
    ).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.2)
    fast, idx = (
        quantization.prepare_for_inference(copy.deepcopy(model), dtype, how, rows),
        torch.randint(64, (6, 16)),
    )
    theirs, mine = model(idx, idx)[0].softmax(-1), fast(idx, idx)[0].float().softmax(-1)
    assert (theirs - mine).abs().max() < tolerance
    assert fast.transformer.wte.weight.dtype == (
        dtype if rows is None or not quantization.HAS_FBGEMM else torch.float32
    )
    size = quantization.weight_bytes(fast)
    matrices = (
        sum(p.numel() for p in model.transformer.h.parameters() if p.dim() == 2)
        + model.lm_head.weight.numel()
    )
    assert size == matrices * (1 if how == "int8" else dtype.itemsize)


def test_int8_costs_little():
    """Catches a quantized model that has forgotten something: a trained one's loss moves by less than half a percent."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=2, n_embd=64, **MODERN))
    idx = torch.randint(32, (64, 17))
    idx[:, 1::2] = (idx[:, :-1:2] * 3 + 1) % 32  # every other token follows from the one before
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = model(idx[:, :-1], idx[:, 1:])[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    before = model(idx[:, :-1], idx[:, 1:])[1].item()
    after = quantization.prepare_for_inference(model, torch.float32, "int8")(
        idx[:, :-1], idx[:, 1:]
    )[1].item()
    assert before < 2.6 and abs(after / before - 1) < 0.005


def test_the_dtype_that_suits_a_model(monkeypatch):
    """Catches a small model that loses digits for nothing, and weights that torch.compile cannot read."""
    model = GPT(GPTConfig(block_size=16, vocab_size=64, n_layer=1, n_head=2, n_embd=32))
    assert quantization.best_dtype(model) == "float32"
    monkeypatch.setattr(quantization, "CACHE_BYTES", 0)
    large = "float16" if quantization.HAS_FBGEMM else "float32"
    assert quantization.best_dtype(model) == quantization.best_dtype(model, 20) == large
    assert quantization.best_dtype(model, None) == "float32"
