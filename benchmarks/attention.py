"""Time and peak memory of every attention path as the sequence grows.

    python -m benchmarks.attention [--max_length=2048] [--window=256] [--dtype=bfloat16]

Leaves attention_<device>.json and .png in out_dir.
"""

import functools
import math
import os
import statistics
from dataclasses import dataclass
from typing import Literal

import torch
from tqdm import tqdm

from attention import ATTENTION, FEATURE, linear
from engine.errors import at_least
from masks import VISIBLE
from tools.shared import benchmark
from tools.shared.measure import measure_seconds, peak_bytes
from tools.shared.settings import run

B, H, D = 1, 8, 64  # sequences, heads, head size
SHORTEST = 256  # sequence; lengths double from there
LIMIT = 10.0  # seconds; what would take longer is skipped
NAIVE_LENGTH = 512  # naive's many small tensors would fill the memory of the profiler


@dataclass
class AttentionBench(benchmark.BenchmarkSettings):
    name: str = "attention"
    max_length: int = 16384
    """The longest sequence (T)."""
    window: int = 256
    """The predicates' number: the window of sliding_window and local_global, strided's stride."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """The dtype of queries, keys and values."""

    def __post_init__(self):
        at_least(2 * SHORTEST, self, "max_length")
        at_least(1, self, "window")

    def lengths(self):
        """SHORTEST, doubled until max_length."""
        doublings = (self.max_length // SHORTEST).bit_length()
        return [SHORTEST << n for n in range(doublings)]


def main(config):
    """Measure all paths and predicates; print and store them."""
    device, report = benchmark.new_report("attention", config)
    report["settings"] |= {"batch_size": B, "n_head": H, "head_size": D}
    report["rows"] = measure_paths(config, device)
    benchmark.write_report(report, config, [report["rows"]], device)


def call_of(path, config, device, T):
    """Return a function that calls a path forward and backward for random inputs of length T."""
    torch.manual_seed(0)
    inputs = dict(device=device, dtype=getattr(torch, config.dtype), requires_grad=True)
    q, k, v = (torch.randn(B, H, T, D, **inputs) for _ in range(3))
    return lambda: torch.autograd.grad(path(q, k, v), (q, k, v), q.detach())


def memory_bytes(device):
    """Return the bytes of memory that a device has, or None if the system does not say (Windows).

    A Mac's GPU shares the processor's.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def measure_paths(config, device):
    """Measure each path, predicate and length: a row with seconds and bytes, or "skipped"."""
    cases = {}
    for name, make in FEATURE.items():
        cases[name, "causal"] = functools.partial(linear, feature=make(D))
    for about, visible in benchmark.mechanism_examples(VISIBLE, config.window, H).items():
        for name, path in ATTENTION.items():
            cases[name, about] = functools.partial(path, visible=visible)

    most = (memory_bytes(device) or math.inf) / 2
    rows = []
    for (name, about), path in tqdm(cases.items(), unit="case"):
        seconds = size = 0.0  # of the length before; twice the length takes up to four times that
        for T in config.lengths():
            row = {"path": name, "predicate": about, "T": T}
            rows.append(row)
            if 4 * seconds > LIMIT or (name == "naive" and T > NAIVE_LENGTH):
                row["skipped"] = "time"
            elif 4 * size > most:
                row["skipped"] = "memory"
            else:
                call = call_of(path, config, device, T)
                size = peak_bytes(call, device)  # also warms up
                times = [measure_seconds(call, device) for _ in range(3)]
                seconds = statistics.median(times)
                row |= {"seconds": seconds, "bytes": size}
    return rows


if __name__ == "__main__":
    run(main, AttentionBench)
