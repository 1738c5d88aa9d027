"""Time and peak memory of every attention path as the sequence grows.

    python -m tools.bench_attention [--max_length=2048] [--key=value ...]

Prints tables and leaves attention_<device>.json and .png in out_dir. Ratios are medians over rounds in which the two that
are compared were interleaved, because the speed of a shared machine drifts.
"""

import contextlib
import functools
import itertools
import math
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from tqdm import tqdm

from attention import ATTENTION, FEATURE, CausalSelfAttention, fused, linear, masked_fill, tiled
from engine import benchmark, configure
from engine.checks import at_least
from engine.roofline import machine, machine_line, peak_bytes, seconds_of, take_turns
from masks import VISIBLE, both, causal, full, same_document, sliding_window


@dataclass(kw_only=True)
class AttentionBench(benchmark.Settings):
    name: str = "attention"
    min_length: int = 256
    """The shortest sequence (T); lengths double from there."""
    max_length: int = 16384
    """The longest sequence."""
    batch_size: int = 1
    """Sequences at a time (B)."""
    n_head: int = 8
    """Heads (H)."""
    head_size: int = 64
    """Features of each head (D)."""
    window: int = 256
    """The number that predicates get: the window of sliding_window and local_global, the stride of strided."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of queries, keys and values."""
    limit: float = 10.0
    """Skip what would take more than this many seconds a call."""
    naive_length: int = 512
    """The longest sequence for naive, which is slow on purpose."""
    repeats: int = 9
    """Rounds of each comparison."""

    def __post_init__(self):
        at_least(1, self, "min_length", "batch_size", "n_head", "head_size", "window", "repeats")
        if self.max_length < 2 * self.min_length:
            raise ValueError(f"max_length={self.max_length} must be at least twice min_length={self.min_length}")

    def lengths(self):
        """min_length, doubled until max_length."""
        lengths = [self.min_length]
        while 2 * lengths[-1] <= self.max_length:
            lengths.append(2 * lengths[-1])
        return lengths


def main(config):
    """Measure all paths and predicates, and the ratios that matter; print and store them."""
    device = configure.pick_device(config.device)
    report = {
        "kind": "attention", **machine(device), "settings": vars(config), "rows": measure_paths(config, device),
        "ratios": compare_paths(config, device, *config.lengths()[-2:]),
    }
    print_report(report, config.lengths())
    benchmark.store(report, config.out_dir, config.name, device)


def predicates(config, device, T):
    """name -> predicate for length T: all of VISIBLE, and what a model cannot name in a setting."""
    documents = torch.arange(T, device=device) * 4 // T
    found = benchmark.examples(VISIBLE, config.window, local_global=[config.window, 4], alibi=[config.n_head])
    return found | {"4 documents": both(causal, same_document(documents)), "full": full}


def inputs(config, device, T):
    """q, k, v that require gradients."""
    torch.manual_seed(0)
    shape, dtype = (config.batch_size, config.n_head, T, config.head_size), getattr(torch, config.dtype)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]


def forward(path, *qkv):
    path(*(x.detach() for x in qkv))


def forward_backward(path, q, k, v):
    torch.autograd.grad(path(q, k, v), (q, k, v), q.detach())


def sdpa(q, k, v):
    """The kernel below fused, called directly."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def measure_paths(config, device):
    """A row for each path, predicate, direction and length: seconds and bytes, or why it was skipped."""
    features = {name: functools.partial(linear, feature=make(config.head_size)) for name, make in FEATURE.items()}
    paths = {"SDPA itself": sdpa, **ATTENTION, **features}
    masks = predicates(config, device, 1)
    cases = [("SDPA itself", "causal"), *itertools.product(ATTENTION, masks), *((name, "causal") for name in features)]
    modes, rows = {"forward": forward, "forward + backward": forward_backward}, []
    bar = tqdm(list(itertools.product(cases, modes)), unit="case")
    for (name, about), mode in bar:
        history = []  # (seconds, bytes) of the shorter lengths
        for T in config.lengths():
            bar.set_description(f"{name}, {about}, T = {T}, {mode}")
            row = {"path": name, "predicate": about, "mode": mode, "T": T}
            rows.append(row)
            reason = forecast(history, config.limit, free_bytes(device))
            if name == "naive" and T > config.naive_length:
                reason = "naive_length"
            if reason:
                row["skipped"] = reason
                continue
            path = paths[name]
            if name in ATTENTION:
                path = functools.partial(path, visible=predicates(config, device, T)[about])
            call = functools.partial(modes[mode], path, *inputs(config, device, T))
            row["bytes"] = peak_bytes(call, device)  # also warms up
            times = [seconds_of(call, device)]
            while sum(times) < 1 and len(times) < config.repeats:
                times.append(seconds_of(call, device))
            row["seconds"] = statistics.median(times)
            history.append((row["seconds"], row["bytes"]))
    return rows


def forecast(history, limit, free):
    """Why the next length should be skipped, or None: twice the length costs up to four times as much as the last one."""
    if not history:
        return None
    (seconds, size), growth = history[-1], 4.0
    if len(history) > 1:
        growth = min(4.0, max(2.0, seconds / history[-2][0]))
    if seconds * growth > limit:
        return f"about {seconds * growth:.0f} s"
    if len(history) > 1 and size / history[-2][1] > 3 and size * 4 > 0.8 * free:
        return f"about {size * 4 / 1e9:.0f} GB"
    return None


def free_bytes(device):
    """Memory that is free, where the system says so."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(ValueError):  # macOS has no such number
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf


def compare_paths(config, device, long, longest):
    """What the shortcuts gain at two lengths, and what a token costs late in a text: ratios, each with its target."""
    W, late = config.window, max(long, 2 * config.window)
    windowed, few = functools.partial(fused, visible=sliding_window(W)), min(3, config.repeats)
    qkv, double = inputs(config, device, long), inputs(config, device, longest)

    def memory(*cases):
        return [[peak_bytes(lambda: forward_backward(path, *qkv), device) for path, qkv in cases]]

    def times(a, b, qkv, repeats=config.repeats):
        return take_turns([lambda: forward_backward(a, *qkv), lambda: forward_backward(b, *qkv)], repeats, device)

    comparisons = [  # (what, function that returns rounds of two measurements, target for the first divided by the second)
        (f"memory of masked_fill / tiled, T = {long}", lambda: memory((masked_fill, qkv), (tiled, qkv)), ">= 20"),
        (f"time of fused / SDPA itself, T = {long}", lambda: times(fused, sdpa, qkv), "<= 1.03"),
        (f"time of fused causal / sliding_window({W}), T = {long}", lambda: times(fused, windowed, qkv), ">= 8"),
        (f"memory of fused sliding_window({W}), T = {longest} / {long}",
         lambda: memory((windowed, double), (windowed, qkv)), "<= 2.1"),
        (f"time of fused causal / linear, T = {longest}", lambda: times(fused, linear, double, few), ">= 10"),
        (f"time of a token with linear at position {late} / {2 * W}",
         lambda: decoding(config, device, late, attention="linear"), "about 1"),
        (f"time of a token with sliding_window({W}) at position {late} / {2 * W}",
         lambda: decoding(config, device, late, window=W), "<= 1.2"),
    ]
    needed = 4 * config.batch_size * config.n_head * long**2 * 4  # masked_fill's scores, weights and the gradients of both
    if needed > 0.8 * free_bytes(device):
        print(f"masked_fill would need about {needed / 1e9:.0f} GB at T = {long}: its memory is not compared")
        comparisons.pop(0)
    found = []
    for what, measure, target in tqdm(comparisons, unit="comparison"):
        rounds = measure()
        ratios = [first / second for first, second in rounds]
        over, under = (statistics.median(column) for column in zip(*rounds))
        spread = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        found.append({"what": what, "over": over, "under": under, **spread, "target": target})
    return found


@torch.no_grad()
def decoding(config, device, late, **settings):
    """Median seconds of a decoded token in a layer with these settings: around position late, and around 2·window."""
    width, dtype, side = config.n_head * config.head_size, getattr(torch, config.dtype), config.window // 2 + 1
    layer = CausalSelfAttention(width, config.n_head, **settings).to(device, dtype)
    x = torch.randn(config.batch_size, 1, width, device=device, dtype=dtype)
    cache = layer.new_cache(config.batch_size, late + side)
    times = [seconds_of(lambda: layer(x, cache=cache), device) for _ in range(late + side)]
    return [[statistics.median(times[at - side : at + side]) for at in (late, 2 * config.window)]]


def print_report(report, lengths):
    """The measured rows as a table for each mode, and the ratios."""
    print(machine_line(report))
    for mode in "forward", "forward + backward":
        print(f"\n{mode}: milliseconds and MB of peak memory by sequence length, or (why it was skipped)")
        table = [["path", "predicate", *lengths]]
        rows = [row for row in report["rows"] if row["mode"] == mode]
        for case, group in itertools.groupby(rows, key=lambda row: (row["path"], row["predicate"])):
            cells = [
                f"({row['skipped']})" if "skipped" in row else f"{row['seconds'] * 1e3:.1f}, {row['bytes'] / 1e6:.1f}"
                for row in group
            ]
            table.append([*case, *cells])
        print(benchmark.table(table))
    table = [["", "ratio", "lowest", "highest", "target"]]
    for found in report["ratios"]:
        table.append([found["what"], *(f"{found[key]:.2f}" for key in ("ratio", "lowest", "highest")), found["target"]])
    print(f"\n{benchmark.table(table)}")


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(AttentionBench, sys.argv[1:]))
