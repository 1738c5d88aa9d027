"""Weights for decoding, where reading them is what takes the time: in fewer bytes, and for products of few rows.

Training never comes here. `ready(model, dtype, quantize)` swaps the Linear layers of a model for one of these.
"""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class FewRows(nn.Module):
    """A Linear on a CPU in float32: for 5 to 64 rows weight @ x^T, which is up to twice as fast as x @ weight^T.

    GPT-2's matrices, milliseconds for 1, 4, 10, 16, 32, 64 rows: 27, 47, 40, 41, 61, 102, against 27, 48, 79, 62, 78, 109
    (2 CPU cores, PyTorch 2.13).
    """

    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x):
        rows = x.flatten(0, -2)
        if not 5 <= len(rows) <= 64 or self.weight.numel() < 2**17:  # a small matrix stays near the processor anyway
            return F.linear(x, self.weight, self.bias)
        y = self.weight @ rows.mT if self.bias is None else torch.addmm(self.bias[:, None], self.weight, rows.mT)
        return y.mT.contiguous().view(*x.shape[:-1], -1)


class Int8(nn.Module):
    """A Linear whose weights are int8, with one scale for each output: a quarter of the bytes of float32.

    On a CPU x is written as two int8 numbers, high + low/127, which keep 14 bits of it, and the products are sums of integers
    (torch._int_mm): exact, so that a row comes out the same whatever rows stand beside it. A single row is up to a third
    faster in torch._weight_int8pack_mm, which rounds it to bfloat16, and takes whole blocks of 64 only. On a GPU the weights
    become x's dtype on the way, which saves memory and no time.
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
            return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype)[:, None], self.bias)
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


def linears(model):
    """(name of the parent, name, layer) of all layers that multiply by a weight."""
    return [
        (parent, name, layer) for parent in model.modules() for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear | FewRows | Int8)
    ]


@torch.no_grad()
def ready(model, dtype, quantize="none"):
    """Make model fit to decode, in place: its numbers in dtype, its products as fast as they get on its device."""
    model.to(dtype).requires_grad_(False)
    on_cpu = next(model.parameters()).device.type == "cpu"
    if quantize == "int8" or on_cpu and dtype == torch.float32:
        for parent, name, layer in linears(model):
            setattr(parent, name, Int8(layer) if quantize == "int8" else FewRows(layer))
    return model.eval()


@torch.inference_mode()
def read_seconds(model):
    """(bytes, seconds) of all weights of a model in a product with one row each: what a step cannot be faster than."""
    layers = [layer for _, _, layer in linears(model)]
    device, dtype = model.transformer.wte.weight.device, model.transformer.wte.weight.dtype
    inputs = {K: torch.ones(1, K, device=device, dtype=dtype) for K in {layer.weight.shape[1] for layer in layers}}
    seconds = []
    for _ in range(4):
        synchronize(device)
        start = time.perf_counter()
        for layer in layers:
            layer(inputs[layer.weight.shape[1]])
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return sum(layer.weight.nbytes for layer in layers), min(seconds)


def synchronize(device):
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


@torch.inference_mode()
def fastest_dtype(model):
    """The dtype in which a weight of this model meets a vector soonest, and why: bfloat16 on a GPU, on a CPU if measured so."""
    weight = model.lm_head.weight
    if weight.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, " (auto)"
    if weight.device.type != "cpu" or weight.nbytes < 2**24:  # it stays in the processor's own memory
        return torch.float32, " (auto)"
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix, x = weight.to(dtype), torch.ones(1, weight.shape[1], dtype=dtype)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            F.linear(x, matrix)
            times.append(time.perf_counter() - start)
        seconds[dtype] = min(times)
    gain = seconds[torch.float32] / seconds[torch.bfloat16]
    return (torch.bfloat16 if gain > 1.2 else torch.float32), f" (auto: bfloat16 is read {gain:.1f} times as fast)"
