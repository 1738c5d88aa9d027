"""Weights for decoding: in fewer bytes, and laid out as the processor reads them fastest.

Training multiplies thousands of rows by a weight: arithmetic takes the time, and any library is
good at it. Decoding multiplies one row for each text, so reading the weights takes the time: a
float32 is four bytes, a float16 or bfloat16 two, an int8 one. With ten rows both count.

    float32   what was trained; of a large model, for several texts, in the layout of oneDNN.
    float16   11 of the 24 bits of each weight; inputs, sums and outputs stay float32. The default
              for a large model and 128 tokens or more.
    int8      7 bits of each weight and a scale for each output; inputs keep 14 bits (13 without
              avx512_vnni), and sums are exact integers.

On an x86 CPU only these products change, and all else is computed in float32. Other devices, and
bfloat16, convert the whole model; where a CPU would emulate that dtype, it rounds the weights to it
and computes in float32. On a GPU int8 saves memory, and time for a single text, whose
compiled step reads the integers themselves. Not used in training.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

from engine.common.hardware import cpu_flags, half_dtype, is_emulated

# FBGEMM's products are here: on x86 with AVX2. PyTorch lists it on ARM too, where they are others.
HAS_FBGEMM = (
    "fbgemm" in torch.backends.quantized.supported_engines
    and torch.backends.cpu.get_cpu_capability().startswith("AVX")
)
TINY = torch.tensor(1e-30)  # against 0/0
CACHE_BYTES = 2**25  # a processor's own cache may hold weights up to here
STEPS_FOR_FLOAT16 = 128  # about where they have saved the time in which weights are laid out


class Packed(nn.Module):
    """A float32 Linear in oneDNN's own layout: ten rows of GPT-2's shape take 0.4 of the time.

    One row or two do not gain, nor do weights that stay in the processor's cache.
    """

    def __init__(self, linear):
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight, 16)  # for a few rows
        self.bias = linear.bias

    def forward(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Half(nn.Module):
    """A Linear whose weights are float16, by FBGEMM: each is widened in a register to float32.

    With AVX512 a row's result is the same, bit for bit, whatever rows stand beside it. With AVX2
    one or two rows are summed in another order than more: about 1e-6 of relative difference.
    """

    def __init__(self, linear):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight, linear.bias)

    def forward(self, x):
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class Int8(nn.Module):
    """A Linear whose weights are int8, with one scale for each output.

    The weights are converted to x's dtype, exactly: at each step, or within the product where that
    is compiled for one row.
    """

    def __init__(self, linear):
        super().__init__()
        weight, scale = round_to_int8(linear.weight)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        y = F.linear(x / 128, self.weight.to(x.dtype)).float()  # keeps sums within float16
        scale = 128 * self.scale
        y = y * scale if self.bias is None else torch.addcmul(self.bias.float(), y, scale)
        return y.to(x.dtype)


class PackedInt8(nn.Module):
    """Int8 on an x86 CPU, by FBGEMM, whose sums are exact: a row's result depends on no other row.

    x is split into two rows of integers, high + low / (2·LEVELS), since real models have outliers
    beside which 8 bits would lose the rest.
    """

    # Older units add pairs of products in 16 bits: 63 levels do not overflow.
    LEVELS = 127 if "avx512_vnni" in cpu_flags() else 63

    def __init__(self, linear):
        super().__init__()
        # A few rows at a time: fresh memory for all of them would take longer than the rounding.
        weight, scale = map(torch.cat, zip(*map(round_to_int8, linear.weight.split(256))))
        zeros = torch.zeros(len(scale), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
        self.packed = torch.ops.quantized.linear_prepack(weight, None)
        self.bias = linear.bias

    def forward(self, x):
        largest = x.abs().amax(dim=-1, keepdim=True)
        unit = torch.add(TINY, largest, alpha=1 / self.LEVELS)
        scaled = x / unit
        high = scaled.round()
        low = scaled.sub_(high).mul_(2 * self.LEVELS)  # the product rounds it
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        y = product(torch.cat([high, low]), 1.0, self.LEVELS + 1, self.packed)
        high, low = y.chunk(2)
        y = torch.add(high, low, alpha=0.5 / self.LEVELS)
        return y.mul_(unit) if self.bias is None else torch.addcmul(self.bias, y, unit)


def round_to_int8(weight):
    """Return weight (outputs, inputs) as int8, and its scales (outputs,)."""
    scale = weight.float().abs().amax(dim=1).clamp_min(1e-30) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def best_dtype(model, steps):
    """Return the name of the dtype that suits the model's device, processor and size.

    steps: how many tokens follow each other.
    """
    device = model.transformer.wte.weight.device
    if device.type == "cuda":
        return half_dtype(device)
    pays = is_large(model) and steps >= STEPS_FOR_FLOAT16
    return "float16" if device.type == "cpu" and HAS_FBGEMM and pays else "float32"


def is_large(model):
    """Return whether a model's weights do not fit into a processor's cache."""
    return sum(linear.weight.nbytes for linear in linears_of(model).values()) > CACHE_BYTES


def linears_of(model):
    """Return {name: module} of all Linears."""
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}


def prepare_for_inference(model, dtype, quantize="none", texts=1):
    """Convert model in place, on its device; return it. Tables of positions keep their dtype.

    Where a CPU gets products of its own, all but the Linears keeps its dtype too. texts: how many
    are written at a time.
    """
    model.eval().requires_grad_(False)
    device = model.transformer.wte.weight.device
    has_products = device.type == "cpu" and HAS_FBGEMM
    layer = None
    if quantize == "int8":
        layer = PackedInt8 if has_products else Int8
    elif has_products and dtype == torch.float16:
        layer = Half
    elif has_products and dtype == torch.float32 and texts > 3 and is_large(model):
        layer = Packed
    elif is_emulated(device, dtype):
        convert(model, dtype)  # rounds the weights; products are faster in float32
        dtype = torch.float32
    if layer:
        replace_linears(model, layer)
    if not layer or device.type != "cpu":
        convert(model, dtype)
    return model


def replace_linears(model, layer):
    """Put layer(linear) in the place of each Linear of a model, several at a time."""
    # The head first: it is the largest, and at the end one thread would work on it alone.
    names = [*reversed(linears_of(model))]
    with warnings.catch_warnings(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")  # PyTorch plans to replace its quantized dtypes
        new = pool.map(lambda name: layer(model.get_submodule(name)), names)
        for name, module in zip(names, new):  # the memory of the others is free at once
            model.set_submodule(name, module)


def convert(model, dtype):
    """Convert all parameters."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
