"""Seconds and bytes of a call, and how fast a device multiplies matrices."""

import itertools
import os
import time

import torch

from engine.machine import peak_flops

# Otherwise PyTorch's profiler prints messages about its own start and end.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def synchronize(device):
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def measure_seconds(function, device):
    """Return the seconds that function() takes until the device has finished."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def peak_bytes(function, device):
    """Return the most memory that a call holds, beyond what was allocated before."""
    if device.type == "cuda":
        function()  # what is allocated once is not counted
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type == "mps":  # it counts no peak, but its pool keeps what was freed
        torch.mps.empty_cache()
        before = torch.mps.driver_allocated_memory()
        function()
        return torch.mps.driver_allocated_memory() - before
    of_cpu = [torch.profiler.ProfilerActivity.CPU]  # or it would start CUDA too
    with torch.profiler.profile(activities=of_cpu, profile_memory=True) as profiler:
        function()
    events = profiler.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(itertools.accumulate(sizes, initial=0))


def measure_flops(device, dtype):
    """Return the FLOP/s of matrix products: NVIDIA's peak for a known GPU, else the best of five.

    The product is large enough for the device to reach its peak. On a CPU it is smaller, because
    a larger one takes seconds where half precision is emulated.
    """
    if known := peak_flops(device, dtype):
        return known
    size = 512 if device.type == "cpu" else 8192
    matrix = torch.full((size, size), 0.5, device=device, dtype=dtype)
    matrix @ matrix  # the first product also starts the library
    return 2 * size**3 / min(measure_seconds(lambda: matrix @ matrix, device) for _ in range(5))
