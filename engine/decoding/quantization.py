"""Weights for decoding: in fewer bytes, and laid out as the processor reads them fastest.

Why is there more than one way to multiply? Training multiplies thousands of rows by a weight: arithmetic takes the time, and
any library is good at it. Decoding multiplies one row for each text, so that reading the weights takes the time: a float32
is four bytes, a float16 or bfloat16 two, an int8 one. With ten rows both count, and with narrow weights only the calls.

    float32      what was trained. oneDNN's own layout is faster for several rows, and on AMD, where MKL is slow, for one.
    float16      11 of the 24 bits of each weight; inputs, sums and outputs stay float32. The default for a large model.
    bfloat16     8 bits of weights and inputs: for many rows on a processor with units for it.
    int8         7 bits of each weight and a scale for each output; inputs keep 14 bits, and sums are exact integers.

On a CPU only these products change, and all else is computed in float32. A GPU has units for half precision, so there the whole
model is converted; int8 saves memory, and time for a single text, whose compiled step reads the integers themselves. Not used
in training: `prepare_for_inference` replaces a model's Linears.
"""

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

from engine.common.hardware import cpu_flags, half_dtype

HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability().startswith("AVX")
)
HAS_FBGEMM = (
    "fbgemm" in torch.backends.quantized.supported_engines and HAS_ONEDNN
)  # x86 processors with AVX2
HAS_BFLOAT16 = HAS_ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()
TINY = torch.tensor(1e-30)  # against 0/0
CACHE_BYTES = 2**25  # a processor's own cache may hold weights up to here


class Packed(nn.Module):
    """A Linear in float32 or bfloat16 with its weight in oneDNN's own layout for products of several rows."""

    ROWS = 16  # that the layout is optimized for; good for all numbers of rows that were tried

    def __init__(self, linear, dtype=torch.float32):
        super().__init__()
        self.dtype, self.nbytes = dtype, linear.weight.numel() * dtype.itemsize
        self.weight = torch.ops.mkldnn._reorder_linear_weight(
            linear.weight.detach().to(dtype), self.ROWS
        )
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    @staticmethod
    def pays(rows):
        """Whether this is possible here and, in float32, faster than F.linear for this number of rows."""
        return HAS_ONEDNN and (rows >= 4 or "AuthenticAMD" in cpu_flags())

    def forward(self, x):
        return torch.ops.mkldnn._linear_pointwise(
            x.to(self.dtype), self.weight, self.bias, "none", [], ""
        ).to(x.dtype)


def check_range(weight):
    """ValueError if float16 cannot hold a weight, which would become infinite."""
    if not weight.abs().max() <= torch.finfo(torch.float16).max:
        raise ValueError("a weight is not finite, or too large for float16: try --dtype=float32")


class Half(nn.Module):
    """A Linear whose weights are float16, by FBGEMM: each is widened in a register, and the arithmetic is float32.

    A row's result is the same, bit for bit, whatever rows stand beside it.
    """

    def __init__(self, linear):
        super().__init__()
        weight, bias = (
            linear.weight.detach().float(),
            None if linear.bias is None else linear.bias.detach(),
        )
        check_range(weight)
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        self.nbytes = 2 * linear.weight.numel()

    def forward(self, x):
        return torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed).to(x.dtype)


class Int8(nn.Module):
    """A Linear whose weights are int8, with one scale for each output: a quarter of the bytes of float32.

    On a CPU x is split into two rows of integers, high + low / (2·LEVELS), since real models have outliers beside which 8
    bits would lose the rest. The products are exact, so that a row's result does not depend on the other rows. Elsewhere
    the weights are converted to x's dtype, exactly: at each step, or within the product where that is compiled for one row.
    """

    LEVELS = (
        127 if "avx512_vnni" in cpu_flags() else 63
    )  # older units add pairs of products in 16 bits: no overflow

    def __init__(self, linear, packed=True):
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.float().abs().amax(dim=1).clamp_min(1e-30) / 127
        weight = (weight / scale[:, None]).round_().to(torch.int8)
        self.bias, self.nbytes, self.packed = linear.bias, weight.nbytes, None
        if packed and weight.device.type == "cpu" and HAS_FBGEMM:
            zeros = torch.zeros(len(scale), dtype=torch.long)
            weight = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            self.packed = torch.ops.quantized.linear_prepack(weight, None)
        else:
            self.register_buffer("weight", weight)
            self.register_buffer("scale", scale)

    def forward(self, x):
        if self.packed is None:
            return self.widened(x)
        dtype, x = x.dtype, x.float()
        unit = torch.add(
            TINY,
            torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True),
            alpha=1 / self.LEVELS,
        )
        scaled = x / unit
        high = scaled.round()
        parts = torch.cat(
            [high, scaled.sub_(high).mul_(2 * self.LEVELS)]
        )  # the product rounds the second half
        y = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            parts, 1.0, self.LEVELS + 1, self.packed
        )
        high, low = y.chunk(2)
        y = torch.add(high, low, alpha=0.5 / self.LEVELS)
        return (y.mul_(unit) if self.bias is None else torch.addcmul(self.bias, y, unit)).to(dtype)

    def widened(self, x):
        """int8 is exact in x's dtype, and the scale is applied after the sum, in float32."""
        y = F.linear(x / 128, self.weight.to(x.dtype)).float()  # keeps sums within float16
        y = (
            y * (128 * self.scale)
            if self.bias is None
            else torch.addcmul(self.bias.float(), y, 128 * self.scale)
        )
        return y.to(x.dtype)


def linears(model):
    """(parent module, name, layer) of all layers that multiply by a weight."""
    children = (
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
    )
    return [child for child in children if isinstance(child[2], nn.Linear | Packed | Half | Int8)]


def best_dtype(model, rows=1):
    """The name of the dtype that suits the model's device, processor and size. rows as in prepare_for_inference."""
    device = model.transformer.wte.weight.device
    if device.type == "cuda":
        return half_dtype(device)
    packed = device.type == "cpu" and rows is not None and HAS_FBGEMM
    return "float16" if packed and weight_bytes(model) > CACHE_BYTES else "float32"


@torch.no_grad()
def prepare_for_inference(model, dtype, quantize="none", rows=1):
    """Convert model in place, on its device, for products of this number of rows (None: as torch.compile can read them).

    Tables of positions keep their dtype. Where a CPU multiplies in its own way, so does all but the Linears.
    """
    packed = model.transformer.wte.weight.device.type == "cpu" and rows is not None
    ways = {
        torch.float32: Packed if packed and Packed.pays(rows) else None,
        torch.float16: Half if packed and HAS_FBGEMM else None,
        torch.bfloat16: functools.partial(Packed, dtype=torch.bfloat16)
        if packed and HAS_BFLOAT16
        else None,
    }
    way = functools.partial(Int8, packed=packed) if quantize == "int8" else ways[dtype]
    found = linears(model) if way else []
    with (
        warnings.catch_warnings(),
        ThreadPoolExecutor(torch.get_num_threads()) as pool,
    ):  # a layer is packed by one thread
        warnings.simplefilter(
            "ignore"
        )  # PyTorch means to replace its quantized dtypes (its issue 184982)
        for (parent, name, _), layer in zip(found, pool.map(way, [layer for _, _, layer in found])):
            setattr(parent, name, layer)
    for p in model.parameters() if not (packed and way) else ():
        if dtype == torch.float16:
            check_range(p)
        p.data = p.data.to(dtype)
    return model.eval().requires_grad_(False)


def weight_bytes(model):
    """Bytes of all weights that a decoding step reads."""
    return sum(
        (layer.weight if isinstance(layer, nn.Linear) else layer).nbytes
        for _, _, layer in linears(model)
    )
