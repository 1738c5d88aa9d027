"""Weights for decoding, where reading them takes most of the time: in fewer bytes, and laid out for several rows.

Not used in training. `prepare_for_inference(model, dtype, quantize, rows)` replaces the Linear layers of a model.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Packed(nn.Module):
    """A Linear in float32 with its weight in oneDNN's own layout for products of several rows (x86 processors).

    GPT-2's matrices, milliseconds for 1, 4, 10, 32, 64 rows: 32, 29, 34, 55, 89, against 28, 49, 84, 82, 121 unpacked
    (2 CPU cores, PyTorch 2.13): faster from four rows on. torch.compile uses the same operations.
    """

    ROWS = 16  # that the layout is optimized for; good for all numbers of rows that were tried

    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().float(), self.ROWS), linear.bias

    @staticmethod
    def pays(rows):
        """Whether this is possible here, and faster for this number of rows."""
        return rows >= 4 and torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX")

    def forward(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class Int8(nn.Module):
    """A Linear whose weights are int8, with one scale for each output: a quarter of the bytes of float32.

    On a CPU x is split into two int8 numbers, high + low/127, which keep 14 bits of it, and the products are sums of
    integers (torch._int_mm): exact, so that a row's result does not depend on the other rows. A single row is up to a third
    faster in torch._weight_int8pack_mm, which rounds it to bfloat16, and needs sizes that are multiples of 64. On a GPU the
    weights are converted to x's dtype, exactly, which saves memory but no time.
    """

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.float().abs().amax(dim=1).clamp_min(1e-30) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round_().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias, self.blocks = linear.bias, weight.shape[0] % 64 == weight.shape[1] % 64 == 0

    def forward(self, x):
        if x.device.type != "cpu":
            return self.widened(x)
        rows = x.flatten(0, -2).float()
        if len(rows) == 1 and self.blocks:
            y = torch._weight_int8pack_mm(rows.bfloat16(), self.weight, self.scale.bfloat16()).float()
            y = y if self.bias is None else y.add_(self.bias)
            return y.to(x.dtype).view(*x.shape[:-1], -1)
        unit = rows.abs().amax(dim=-1, keepdim=True).div_(127).add_(1e-30)
        scaled, parts, B = rows / unit, torch.empty(2 * len(rows), rows.shape[1], dtype=torch.int8), len(rows)
        high, low = parts[:B], parts[B:]
        low.copy_(scaled.sub_(high.copy_(scaled)).mul_(127))  # copying to int8 truncates towards 0
        y = torch._int_mm(parts, self.weight.mT).float()
        y = torch.add(y[:B], y[B:], alpha=1 / 127).mul_(unit)
        y = y * self.scale if self.bias is None else torch.addcmul(self.bias.float(), y, self.scale)
        return y.to(x.dtype).view(*x.shape[:-1], -1)

    def widened(self, x):
        """For a GPU: int8 is exact in x's dtype, and the scale is applied after the sum, in float32."""
        y = F.linear(x / 128, self.weight.to(x.dtype)).float()  # keeps sums within float16
        y = y * (128 * self.scale) if self.bias is None else torch.addcmul(self.bias.float(), y, 128 * self.scale)
        return y.to(x.dtype)


def linears(model):
    """(parent module, name, layer) of all layers that multiply by a weight."""
    children = ((parent, name, layer) for parent in model.modules() for name, layer in parent.named_children())
    return [child for child in children if isinstance(child[2], nn.Linear | Packed | Int8)]


@torch.no_grad()
def prepare_for_inference(model, dtype, quantize="none", rows=1):
    """Convert model in place, on its device: parameters to dtype, products to the fastest layout for this number of rows."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    packed = on_cpu and dtype == torch.float32 and Packed.pays(rows)
    swap = Int8 if quantize == "int8" else Packed if packed else None
    for parent, name, layer in linears(model) if swap else ():
        setattr(parent, name, swap(layer))
    for p in model.parameters():  # buffers stay as they are: position tables and int8's scales
        p.data = p.data.to(dtype)
    return model.eval().requires_grad_(False)


def weight_bytes(model):
    """Bytes of all weights that a decoding step reads."""
    return sum(layer.weight.numel() * layer.weight.element_size() for _, _, layer in linears(model))
