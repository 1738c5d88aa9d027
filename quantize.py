"""Weights for decoding, where reading them is what takes the time: in fewer bytes, and laid out for several rows.

Training never comes here. `ready(model, dtype, quantize, rows)` swaps the Linear layers of a model for one of these.
"""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

FEW, ENOUGH = 2**24, 2**26  # bytes of weights that stay in a processor's own memory, and that tell how fast more are read


class Packed(nn.Module):
    """A Linear in float32 whose weight oneDNN has laid out as its products of several rows read it (x86 processors).

    GPT-2's matrices, milliseconds for 1, 4, 10, 32, 64 rows: 32, 29, 34, 55, 89, against 28, 49, 84, 82, 121 as they are
    (2 CPU cores, PyTorch 2.13): worth it from four rows on. These are the operations that torch.compile puts in.
    """

    ROWS = 16  # what the layout is made for: good for all that were tried

    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().float(), self.ROWS), linear.bias

    @staticmethod
    def pays(rows):
        """Whether so many rows at a time make it worth while, where it is possible."""
        return rows >= 4 and torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX")

    def forward(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class Int8(nn.Module):
    """A Linear whose weights are int8, with one scale for each output: a quarter of the bytes of float32.

    On a CPU x is written as two int8 numbers, high + low/127, which keep 14 bits of it, and the products are sums of integers
    (torch._int_mm): exact, so that a row comes out the same whatever rows stand beside it. A single row is up to a third
    faster in torch._weight_int8pack_mm, which rounds it to bfloat16, and takes whole blocks of 64 only. On a GPU the weights
    become x's dtype on the way, exactly, which saves memory and not time.
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
        low.copy_(scaled.sub_(high.copy_(scaled)).mul_(127))  # copying to int8 cuts off what comes after the point
        y = torch._int_mm(parts, self.weight.mT).float()
        y = torch.add(y[:B], y[B:], alpha=1 / 127).mul_(unit)
        y = y * self.scale if self.bias is None else torch.addcmul(self.bias.float(), y, self.scale)
        return y.to(x.dtype).view(*x.shape[:-1], -1)

    def widened(self, x):
        """For a GPU: int8 fits into x's dtype as it is, and the scale comes after the sum, in float32."""
        y = F.linear(x / 128, self.weight.to(x.dtype)).float()  # sums no larger than x, for float16
        y = y * (128 * self.scale) if self.bias is None else torch.addcmul(self.bias.float(), y, 128 * self.scale)
        return y.to(x.dtype)


def linears(model):
    """(name of the parent, name, layer) of all layers that multiply by a weight."""
    return [
        (parent, name, layer) for parent in model.modules() for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear | Packed | Int8)
    ]


@torch.no_grad()
def ready(model, dtype, quantize="none", rows=1):
    """Make model fit to decode, in place: its numbers in dtype, its products fast for so many rows at a time, on its device."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    packed = on_cpu and dtype == torch.float32 and Packed.pays(rows)
    swap = Int8 if quantize == "int8" else Packed if packed else None
    for parent, name, layer in linears(model) if swap else ():
        setattr(parent, name, swap(layer))
    for p in model.parameters():  # and not the tables of positions, nor int8's scales
        p.data = p.data.to(dtype)
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def read_seconds(model):
    """(bytes, seconds) of all weights of a model in a product with one row each: what a step cannot be faster than.

    On a GPU, where starting a product takes as long as reading a small weight, at the speed of a large copy.
    """
    layers = [layer for _, _, layer in linears(model)]
    size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    device, dtype = model.transformer.wte.weight.device, model.transformer.wte.weight.dtype
    if device.type != "cpu":
        memory, copy = torch.zeros(2, 2**28, dtype=torch.uint8, device=device)
        return size, size / (2 * memory.nbytes) * least_seconds(lambda: copy.copy_(memory), device)
    inputs = {K: torch.ones(1, K, device=device, dtype=dtype) for K in {layer.weight.shape[1] for layer in layers}}

    def read():
        for layer in layers:
            layer(inputs[layer.weight.shape[1]])

    return size, least_seconds(read, device)


def least_seconds(function, device, times=4):
    """The shortest time of several calls."""
    seconds = []
    for _ in range(times):
        synchronize(device)
        start = time.perf_counter()
        function()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def synchronize(device):
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@torch.inference_mode()
def fastest_dtype(model):
    """The dtype in which this model's weights are read soonest, and why; bfloat16 on a CPU only if measured so.

    Measured with one row and with many: what a text is written in must not depend on how many there are.
    """
    device, some, size = model.lm_head.weight.device, [], 0
    for _, _, layer in linears(model):
        if size < ENOUGH:
            some.append(layer)
            size += layer.weight.nbytes
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, " (auto)"
    if device.type != "cpu" or size < FEW:
        return torch.float32, " (auto)"
    gains = []
    for rows in 1, Packed.ROWS:
        wide = [(Packed(layer) if Packed.pays(rows) else layer, torch.ones(rows, layer.weight.shape[1])) for layer in some]
        half = [(layer.weight.bfloat16(), x.bfloat16()) for layer, (_, x) in zip(some, wide)]
        in_wide = least_seconds(lambda: [layer(x) for layer, x in wide], device)
        gains.append(in_wide / least_seconds(lambda: [F.linear(x, weight) for weight, x in half], device))
    gain = min(gains)
    return (torch.bfloat16 if gain > 1.2 else torch.float32), f" (auto: bfloat16 would be {gain:.1f} times as fast)"
