"""How fast the machine could be: the roof that a run's speed is a share of (model FLOPs utilization, MFU)."""

import re
import time

import torch

# Dense products in bfloat16 or float16, in units of 1e12 operations per second, from NVIDIA's data sheets.
PEAK = {
    "B200": 2250, "H200 NVL": 835, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "A100": 312, "L40S": 362,
    "L4": 121, "A10": 125, "RTX 4090": 165, "RTX 3090": 71, "V100": 125, "T4": 65,
}


def peak_flops(device, dtype):
    """Operations per second that products of this dtype reach: on paper for a known GPU, else the best of a few large ones."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        words = re.split(r"[\s-]", torch.cuda.get_device_name(device))
        emulated = dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
        for name, peak in PEAK.items():
            if all(word in words for word in name.split()) and not {"Laptop", "MIG"} & {*words} and not emulated:
                return peak * 1e12
    roof = 0.0
    for size in (256, 1024) if device.type == "cpu" else (8192,):
        a, left = torch.full((size, size), 0.5, device=device, dtype=dtype), 0.05
        (a @ a)[0, 0].item()  # the first one also starts the library
        while left > 0:
            start = time.perf_counter()
            (a @ a)[0, 0].item()  # waits for the device
            seconds = time.perf_counter() - start
            roof, left = max(roof, 2 * size**3 / seconds), left - seconds
        if roof < 1e10:
            break  # where half precision is emulated, a large product takes seconds
    return roof


def utilization(tokens_per_s, flops_per_token, peak):
    """The share of the roof that a model's own operations take up."""
    return tokens_per_s * flops_per_token / peak
