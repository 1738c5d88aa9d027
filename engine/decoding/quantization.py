"""Weights for decoding: in fewer bytes, and laid out as the processor reads them fastest.

Training multiplies thousands of rows by a weight: arithmetic takes the time, and any library is
good at it. Decoding multiplies one row for each text, so reading the weights takes the time: a
float32 is four bytes, a float16 or bfloat16 two, an int8 one. With ten rows both count.

    float32   what was trained. For a large model oneDNN's layout is faster for several rows, and on
              some processors for one: prepare_for_inference tries it.
    float16   11 of the 24 bits of each weight; inputs, sums and outputs stay float32. The default
              for a large model and 128 tokens or more.
    int8      7 bits of each weight and a scale for each output; inputs keep 14 bits (13 without
              avx512_vnni), and sums are exact integers.

On an x86 CPU only these products change, and all else is computed in float32. Other devices, and
bfloat16, convert the whole model; where a CPU would emulate that dtype, it rounds the weights to it
and computes in float32. On a GPU int8 saves memory, and time for a single text, whose
compiled step reads the integers themselves. Not used in training.
"""

import itertools
import math
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

from engine.common.hardware import cpu_flags, half_dtype, is_emulated, time_interleaved


def products_of_x86():
    """Return whether oneDNN's products are here, and whether FBGEMM's are."""
    avx = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    onednn = torch.backends.mkldnn.is_available() and avx
    # PyTorch lists FBGEMM on ARM too, where its products are others: x86 with AVX2 only.
    return onednn, onednn and "fbgemm" in torch.backends.quantized.supported_engines


HAS_ONEDNN, HAS_FBGEMM = products_of_x86()
TINY = torch.tensor(1e-30)  # against 0/0
CACHE_BYTES = 2**25  # a processor's own cache may hold weights up to here
STEPS_FOR_FLOAT16 = 128  # about where they have saved the time in which weights are laid out


class PackedLinear(nn.Module):
    """A Linear with a packed weight, which torch.compile calls as one custom operator."""

    def __init__(self, linear):
        super().__init__()
        self.outputs = linear.out_features
        self.number = next(NUMBERS)
        PACKED_LINEARS[self.number] = self

    def forward(self, x):
        """Return the product of x (..., inputs), or have a compiled step call it."""
        if torch.compiler.is_compiling():
            return torch.ops.lookback.packed_linear(x, self.number)
        return self.product(x)


NUMBERS = itertools.count()
PACKED_LINEARS = weakref.WeakValueDictionary()  # by number: an operator takes no modules

# torch.library.custom_op would check more, and take 4 % of a step.
torch.library.define("lookback::packed_linear", "(Tensor x, int number) -> Tensor")


@torch.library.impl("lookback::packed_linear", "cpu")
def packed_linear(x, number):
    return PACKED_LINEARS[number].product(x)


@torch.library.register_fake("lookback::packed_linear")
def output_of_packed_linear(x, number):
    return x.new_empty(*x.shape[:-1], PACKED_LINEARS[number].outputs)


class Packed(PackedLinear):
    """A float32 Linear with its weight in oneDNN's own layout."""

    ROWS = 16  # that the layout is optimized for; good for all numbers of rows that were tried

    def __init__(self, linear):
        super().__init__(linear)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight, self.ROWS)
        self.bias = linear.bias

    def product(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class Half(PackedLinear):
    """A Linear whose weights are float16, by FBGEMM: each is widened in a register to float32.

    With AVX512 a row's result is the same, bit for bit, whatever rows stand beside it. With AVX2
    one or two rows are summed in another order than more: about 1e-6 of relative difference.
    """

    def __init__(self, linear):
        super().__init__(linear)
        check_range(linear.weight)
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight, linear.bias)

    def product(self, x):
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def check_range(weight):
    """ValueError if float16 cannot hold a weight: it would become infinite."""
    if not weight.abs().max() <= torch.finfo(torch.float16).max:
        raise ValueError("a weight is not finite, or too large for float16: try --dtype=float32")


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


class PackedInt8(PackedLinear):
    """Int8 on an x86 CPU, by FBGEMM, whose sums are exact: a row's result depends on no other row.

    x is split into two rows of integers, high + low / (2·LEVELS), since real models have outliers
    beside which 8 bits would lose the rest.
    """

    # Older units add pairs of products in 16 bits: 63 levels do not overflow.
    LEVELS = 127 if "avx512_vnni" in cpu_flags() else 63

    def __init__(self, linear):
        super().__init__(linear)
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
        high, low = super().forward(torch.cat([high, low])).chunk(2)
        y = torch.add(high, low, alpha=0.5 / self.LEVELS)
        return y.mul_(unit) if self.bias is None else torch.addcmul(self.bias, y, unit)

    def product(self, x):
        """Return the product of integers x (..., inputs), from -LEVELS to LEVELS."""
        return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x, 1.0, self.LEVELS + 1, self.packed
        )


def round_to_int8(weight):
    """Return weight (outputs, inputs) as int8, and its scales (outputs,)."""
    scale = weight.float().abs().amax(dim=1).clamp_min(1e-30) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def best_dtype(model, rows=1, steps=math.inf):
    """Return the name of the dtype that suits the model's device, processor and size.

    rows: as in prepare_for_inference. steps: how many tokens follow each other.
    """
    device = model.transformer.wte.weight.device
    if device.type == "cuda":
        return half_dtype(device)
    packed = device.type == "cpu" and rows is not None and HAS_FBGEMM
    nbytes = sum(linear.weight.nbytes for linear in linears_of(model).values())
    pays = nbytes > CACHE_BYTES and steps >= STEPS_FOR_FLOAT16
    return "float16" if packed and pays else "float32"


def linears_of(model):
    """Return {name: module} of all Linears."""
    modules = model.named_modules()
    return {name: module for name, module in modules if isinstance(module, nn.Linear)}


def packed_is_faster(linears, rows):
    """Return whether oneDNN's layout is faster for so many rows: both are tried here and now.

    On the first layers, more than a processor's cache holds; False for a model that it may hold,
    where the layout gains nothing, and whose text must not depend on chance.
    """
    plain = []
    nbytes = 0
    for linear in linears:
        if nbytes <= CACHE_BYTES:
            plain.append(linear)
            nbytes += linear.weight.nbytes
    if nbytes <= CACHE_BYTES:
        return False

    def read(layers):
        for layer, linear in zip(layers, plain):
            layer(torch.ones(rows, linear.in_features))

    both = partial(read, plain), partial(read, [*map(Packed, plain)])
    seconds, of_packed = map(min, zip(*time_interleaved(both, 10, torch.device("cpu"))))
    return of_packed < 0.9 * seconds  # clearly, so that the next start says the same


def layer_for(model, dtype, quantize, rows):
    """Return the module that replaces a Linear, or None if nothing does."""
    device = model.transformer.wte.weight.device
    on_cpu = device.type == "cpu" and rows is not None
    if quantize == "int8":
        return PackedInt8 if on_cpu and HAS_FBGEMM else Int8
    if on_cpu and dtype == torch.float16 and HAS_FBGEMM:
        return Half
    if on_cpu and dtype == torch.float32 and HAS_ONEDNN:
        return Packed if packed_is_faster(linears_of(model).values(), rows) else None
    return None


def prepare_for_inference(model, dtype, quantize="none", rows=1):
    """Convert model in place, on its device, for products of this number of rows.

    rows=None: in a form that torch.compile can read. Tables of positions keep their dtype. Where a
    CPU has its own products, all but the Linears keeps its dtype too.
    """
    model.eval().requires_grad_(False)
    device = model.transformer.wte.weight.device
    layer = layer_for(model, dtype, quantize, rows)
    if not layer and is_emulated(device, dtype):
        convert(model, dtype)  # rounds the weights; products are faster in float32
        dtype = torch.float32
        convert(model, dtype)
        layer = layer_for(model, dtype, quantize, rows)
    if layer:
        # The largest first, or at the end one thread would work on it alone.
        linears = dict(
            sorted(linears_of(model).items(), key=lambda item: item[1].weight.nbytes, reverse=True)
        )
        with warnings.catch_warnings(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
            warnings.simplefilter("ignore")  # PyTorch plans to replace its quantized dtypes
            for name, new in zip(linears, pool.map(layer, linears.values())):
                model.set_submodule(name, new)
    if not layer or device.type != "cpu" or rows is None:
        convert(model, dtype)
    return model


def convert(model, dtype):
    """Convert all parameters; ValueError if float16 cannot hold one."""
    for p in model.parameters():
        if dtype == torch.float16:
            check_range(p)
        p.data = p.data.to(dtype)
