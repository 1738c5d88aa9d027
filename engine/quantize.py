"""Weights for decoding: in fewer bytes, nearly the same numbers.

Training multiplies thousands of rows by a weight: arithmetic takes the time. Decoding multiplies
one row for each text, so reading the weights takes the time: a float32 is four bytes, a float16 or
bfloat16 two, an int8 one. With ten rows both count.

    float16   11 of the 24 bits of each weight; on an x86 CPU inputs, sums and outputs stay float32:
              the default for a large model.
    int8      7 bits of each weight and a scale for each output.

On a CPU only these products change, and all else is computed in float32. Other devices, and
bfloat16, convert the whole model. Not used in training.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from engine.machine import half_dtype

# FBGEMM's matrix products need x86 with AVX2. PyTorch also lists FBGEMM on ARM, without them.
HAS_FBGEMM = (
    "fbgemm" in torch.backends.quantized.supported_engines
    and torch.backends.cpu.get_cpu_capability().startswith("AVX")
)
CACHE_BYTES = 2**25  # a processor's own cache may hold weights up to here
FEW_ROWS = 16  # PyTorch's product of int8 weights on a CPU is faster than float32's up to here


class Half(nn.Module):
    """A Linear whose weights are float16, by FBGEMM: each is widened in a register to float32.

    With AVX512 a row's result doesn't depend on the other rows, bit for bit. With AVX2 one or two
    rows are summed in another order than more rows: a relative difference of about 1e-6.
    """

    def __init__(self, linear):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight, linear.bias)

    def forward(self, x):
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class Int8(nn.Module):
    """A Linear whose weights are int8, with one scale for each output.

    A few rows on a CPU are multiplied in bfloat16. Else the weights are converted to x's dtype,
    exactly: at each step, or within the product where that is compiled for one row.
    """

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.float().abs().amax(dim=1).clamp_min(1e-30) / 127  # (outputs,)
        weight = (linear.weight / scale[:, None]).round()
        self.register_buffer("weight", weight.to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        rows = x.flatten(0, -2)
        # The kernel reads beyond the end of a row whose length isn't a multiple of its vectors.
        if x.device.type == "cpu" and len(rows) <= FEW_ROWS and x.shape[-1] % 32 == 0:
            scale = self.scale.bfloat16()
            y = torch._weight_int8pack_mm(rows.bfloat16(), self.weight, scale).float()
        else:
            y = F.linear(rows / 128, self.weight.to(x.dtype)).float()  # keeps sums within float16
            y = y * (128 * self.scale)
        if self.bias is not None:
            y = y + self.bias.float()
        return y.to(x.dtype).unflatten(0, x.shape[:-1])


def decoding_dtype(model):
    """Return the name of the dtype that suits the model's device, processor and size."""
    device = model.transformer.wte.weight.device
    if device.type == "cuda":
        return half_dtype(device)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    is_large = sum(linear.weight.nbytes for linear in linears) > CACHE_BYTES
    return "float16" if device.type == "cpu" and HAS_FBGEMM and is_large else "float32"


def prepare_for_inference(model, dtype, quantize="none"):
    """Convert a model for decoding, in place on its device; return it.

    Tables of positions keep their dtype. On a CPU with int8 or float16 Linears, so does all else.
    """
    model.eval().requires_grad_(False)
    device = model.transformer.wte.weight.device
    layer = None
    if quantize == "int8":
        layer = Int8
    elif dtype == torch.float16 and device.type == "cpu" and HAS_FBGEMM:
        layer = Half
    if layer:
        for name, module in [*model.named_modules()]:
            if isinstance(module, nn.Linear):
                model.set_submodule(name, layer(module))
    if not layer or device.type != "cpu":
        for p in model.parameters():
            p.data = p.data.to(dtype)
    return model
