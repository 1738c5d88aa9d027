"""Time and peak memory of every attention path as the sequence grows: python -m benchmarks.attention [--max_length=2048] ...

Leaves attention_<device>.json and .png in out_dir. Ratios are medians over rounds in which both took turns.
"""

import functools
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Literal

import torch
from tqdm import tqdm

from attention import ATTENTION, FEATURE, fused, linear, masked_fill, tiled
from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.hardware import machine_report, measure_seconds, peak_bytes, time_interleaved
from engine.common.settings import parse_settings
from masks import VISIBLE, sliding_window
from tools.shared import benchmark

B, H, D = 1, 8, 64  # sequences, heads, features of each
LIMIT, ROUNDS = 10.0, 9  # seconds, what would take longer is skipped; and rounds of each comparison
NAIVE_LENGTH = 512  # the longest sequence for naive, whose many small tensors would fill the memory of the profiler


@dataclass(kw_only=True)
class AttentionBench(benchmark.BenchmarkSettings):
    name: str = "attention"
    min_length: int = 256
    """The shortest sequence (T); lengths double from there."""
    max_length: int = 16384
    """The longest sequence."""
    window: int = 256
    """The number that predicates get: the window of sliding_window and local_global, the stride of strided."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of queries, keys and values."""

    def __post_init__(self):
        if not 2 <= 2 * self.min_length <= self.max_length:
            raise ValueError(
                f"min_length={self.min_length} must be at least 1, max_length={self.max_length} twice that"
            )

    def lengths(self):
        """min_length, doubled until max_length."""
        return [
            self.min_length << n for n in range((self.max_length // self.min_length).bit_length())
        ]


def main(config):
    """Measure all paths and predicates, and the ratios that matter; print and store them."""
    device = pick_device(config.device)
    settings = vars(config) | {"batch_size": B, "n_head": H, "head_size": D}
    report = {"kind": "attention", **machine_report(device), "settings": settings}
    report |= {"rows": measure_paths(config, device), "ratios": compare_paths(config, device)}
    benchmark.write_report(report, config, [report["rows"], report["ratios"]], device)


def call_of(path, config, device, T):
    """A function that calls a path forward and backward for random inputs of length T."""
    torch.manual_seed(0)
    shape, dtype = (B, H, T, D), getattr(torch, config.dtype)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    return lambda: torch.autograd.grad(path(q, k, v), (q, k, v), q.detach())


def half_memory(device):
    """Bytes that a measurement may take: half of what the device has."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2


def measure_paths(config, device):
    """A row for each path, predicate and length: seconds and bytes, or why it was skipped."""
    cases, rows = (
        {
            (name, "causal"): functools.partial(linear, feature=make(D))
            for name, make in FEATURE.items()
        },
        [],
    )
    for about, visible in benchmark.mechanism_examples(VISIBLE, config.window, H).items():
        cases |= {
            (name, about): functools.partial(path, visible=visible)
            for name, path in ATTENTION.items()
        }
    for (name, about), path in tqdm(cases.items(), unit="case"):
        seconds = size = (
            0.0  # of the length before; twice the length takes up to four times as much
        )
        for T in config.lengths():
            row = {"path": name, "predicate": about, "mode": "forward + backward", "T": T}
            rows.append(row)
            if 4 * seconds > LIMIT or (name == "naive" and T > NAIVE_LENGTH):
                row["skipped"] = "time"
            elif 4 * size > half_memory(device):
                row["skipped"] = "memory"
            else:
                call = call_of(path, config, device, T)
                size = row["bytes"] = peak_bytes(call, device)  # also warms up
                seconds = row["seconds"] = statistics.median(
                    measure_seconds(call, device) for _ in range(3)
                )
    return rows


def compare_paths(config, device):
    """What the shortcuts gain at the two longest lengths: ratios of two figures."""
    long, longest = config.lengths()[-2:]
    windowed = functools.partial(fused, visible=sliding_window(config.window))

    def times(first, second, T):
        return time_interleaved(
            [call_of(path, config, device, T) for path in (first, second)], ROUNDS, device
        )

    rounds = {
        f"time of fused / sliding_window({config.window}), T = {long}": times(
            fused, windowed, long
        ),
        f"time of fused / linear, T = {longest}": times(fused, linear, longest),
    }
    if 4 * 4 * B * H * long**2 < half_memory(
        device
    ):  # masked_fill's scores, weights and the gradients of both
        memory = [
            peak_bytes(call_of(path, config, device, long), device) for path in (masked_fill, tiled)
        ]
        rounds[f"memory of masked_fill / tiled, T = {long}"] = [memory]
    found = []
    for what, pairs in rounds.items():
        ratios = [first / second for first, second in pairs]
        found.append(
            {
                "what": what,
                "ratio": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
            }
        )
    return found


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(AttentionBench, sys.argv[1:]))
