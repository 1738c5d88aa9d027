"""Measurements: python bench.py attention|train|sample|ablations [--key=value ...]

A benchmark prints its tables and leaves <name>_<device>.json and .png, or <name>.md, in benchmarks/, with the machine, the
command and the date. Ratios are between things that took turns in one run, and medians; whole processes of minutes ran once.
"""

import contextlib
import copy
import datetime
import functools
import importlib.util
import itertools
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

import checkpoint
import configure
import dataset
import decode
import meter
import quantize
import tokenizer as tokenizers
from attention import (
    ATTENTION, CausalSelfAttention, both, causal, cost, everything, fused, linear, linear_step, local_global,
    masked_fill, positive_random_features, same_document, sliding_window, strided, tiled,
)
from model import GPT, GPTConfig
from muon import Muon, make_optimizer
from quantize import synchronize


@dataclass(kw_only=True)
class AttentionBench:
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
    """What sliding_window and local_global see."""
    dtype: str = "float32"
    """float32, float16 or bfloat16."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    limit: float = 10.0
    """Skip what would take more than this many seconds a call."""
    naive_length: int = 512
    """The longest sequence for naive, which is slow on purpose."""
    repeats: int = 9
    """Turns that each takes when two are compared."""
    out_dir: str = "benchmarks"
    """Where the figures and the plot go."""

    def __post_init__(self):
        for name in ("min_length", "batch_size", "n_head", "head_size", "window", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.max_length < 2 * self.min_length:
            raise ValueError(f"max_length={self.max_length} must be at least twice min_length={self.min_length}")
        if self.dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype={self.dtype} is unknown: choose float32, float16 or bfloat16")


# ---- measuring


def seconds(function, device):
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def take_turns(functions, repeats, device):
    """Seconds of each in rounds, [[first, second, ...], ...], one after the other; a first round does not count."""
    return [[seconds(function, device) for function in functions] for _ in range(repeats + 1)][1:]


def peak_bytes(function, device):
    """The most memory that a call holds beyond what was there before."""
    if device.type == "cuda":
        function()  # what is made once is not counted
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    return cost(function)[1] if device.type == "cpu" else float("nan")


def free_bytes(device):
    """Memory that is free, where the system says so."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(ValueError):  # macOS has no such number
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf


def machine(device):
    """What the figures were measured on."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
        name = f"{found[0]}, {os.cpu_count()} cores" if found else name
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "device": name, "threads": torch.get_num_threads(), "torch": torch.__version__, "python": platform.python_version(),
        "date": datetime.date.today().isoformat(), "command": shlex.join(["python", *sys.argv]),
    }


def print_machine(report):
    print(f"{report['device']}, {report['threads']} threads, torch {report['torch']}, {report['date']}: {report['command']}")


def store(report, name, device):
    """Write the figures to <name>_<device>.json; returns where their plot goes."""
    where = "cpu" if device.type == "cpu" else "".join(c if c.isalnum() else "_" for c in report["device"].lower())
    path = Path(report["settings"]["out_dir"]) / f"{name}_{where}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{path} written")
    return path.with_suffix(".png")


# ---- python bench.py attention


def attention(config):
    """Time and peak memory of each path and predicate as the sequence grows, and the ratios that matter."""
    device = configure.pick_device(config.device)
    lengths = [config.min_length]
    while 2 * lengths[-1] <= config.max_length:
        lengths.append(2 * lengths[-1])
    report = {
        **machine(device), "settings": vars(config), "rows": measure_paths(config, device, lengths),
        "ratios": compare_paths(config, device, *lengths[-2:]),
    }
    print_attention(report, lengths)
    plot_attention(report, lengths, store(report, "attention", device))


def inputs(config, device, T):
    """q, k, v that want gradients."""
    torch.manual_seed(0)
    shape = config.batch_size, config.n_head, T, config.head_size
    dtype = getattr(torch, config.dtype)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]


def forward(path, *qkv):
    path(*(x.detach() for x in qkv))


def forward_backward(path, q, k, v):
    torch.autograd.grad(path(q, k, v), (q, k, v), q.detach())


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def measure_paths(config, device, lengths):
    """A row for each path, predicate, direction and length: seconds and bytes, or why it was skipped."""
    W = config.window
    predicates = {
        "causal": lambda T: causal, "everything": lambda T: everything, f"sliding_window({W})": lambda T: sliding_window(W),
        f"local_global({W}, 4)": lambda T: local_global(W, 4), "strided(sqrt T)": lambda T: strided(round(T**0.5)),
        "4 documents": lambda T: both(causal, same_document(torch.arange(T, device=device) * 4 // T)),
    }
    performer = positive_random_features(config.head_size, 4 * config.head_size)
    cases = {("SDPA itself", "causal"): lambda T: sdpa}
    for (name, path), (about, predicate) in itertools.product(ATTENTION.items(), predicates.items()):
        cases[name, about] = lambda T, path=path, predicate=predicate: lambda q, k, v: path(q, k, v, predicate(T))
    cases["linear", "causal"] = lambda T: linear
    cases["performer", "causal"] = lambda T: lambda q, k, v: linear(q, k, v, performer)
    modes = {"forward": forward, "forward + backward": forward_backward}

    rows = []
    bar = tqdm(total=len(cases) * len(modes) * len(lengths), unit="case")
    for ((name, about), make), (mode, run) in itertools.product(cases.items(), modes.items()):
        history = []  # (seconds, bytes) at the lengths before
        for T in lengths:
            bar.update()
            bar.set_description(f"{name}, {about}, T = {T}, {mode}")
            rows.append(row := {"path": name, "predicate": about, "mode": mode, "T": T})
            reason = forecast(history, config.limit, free_bytes(device))
            if name == "naive" and T > config.naive_length:
                reason = "naive loops over queries; see naive_length"
            if reason:
                row["skipped"] = reason
                continue
            call = functools.partial(run, make(T), *inputs(config, device, T))
            row["bytes"] = peak_bytes(call, device)  # also warms up
            times = [seconds(call, device)]
            while sum(times) < 1 and len(times) < config.repeats:
                times.append(seconds(call, device))
            row["seconds"] = statistics.median(times)
            history.append((row["seconds"], row["bytes"]))
    bar.close()
    return rows


def compare_paths(config, device, long, longest):
    """What the shortcuts gain at two lengths, and what a token costs late in a text: ratios, each with the target for it.

    A ratio of times is the median of the ratios in each round, which a slow minute of the machine leaves alone.
    """
    W, found = config.window, []

    def windowed(q, k, v):
        return fused(q, k, v, sliding_window(W))

    def memory(path, qkv):
        return peak_bytes(lambda: forward_backward(path, *qkv), device)

    def times(a, b, qkv, repeats=config.repeats):
        return take_turns([lambda: forward_backward(a, *qkv), lambda: forward_backward(b, *qkv)], repeats, device)

    with tqdm(total=7, unit="comparison") as bar:

        def note(what, rounds, target):
            over, under = (statistics.median(column) for column in zip(*rounds))
            ratios = sorted(over / under for over, under in rounds)
            middle = {"ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}
            found.append({"what": what, "over": over, "under": under, **middle, "target": target})
            bar.update()

        qkv, double = inputs(config, device, long), inputs(config, device, longest)
        scores = config.batch_size * config.n_head * long**2 * 4
        if scores * 4 < 0.8 * free_bytes(device):  # scores, weights, and gradients of both
            note(f"memory of masked_fill / tiled, T = {long}", [(memory(masked_fill, qkv), memory(tiled, qkv))], ">= 20")
        else:
            print(f"masked_fill would need about {scores * 4 / 1e9:.0f} GB at T = {long}: its memory is not compared")
        note(f"time of fused / SDPA itself, T = {long}", times(fused, sdpa, qkv), "<= 1.03")
        note(f"time of fused causal / sliding_window({W}), T = {long}", times(fused, windowed, qkv), ">= 8")
        what = f"memory of fused sliding_window({W}), T = {longest} / {long}"
        note(what, [(memory(windowed, double), memory(windowed, qkv))], "<= 2.1")
        repeats = min(3, config.repeats)
        note(f"time of fused causal / linear, T = {longest}", times(fused, linear, double, repeats), ">= 10")
        note(f"time of a linear_step at position {long} / at 16", [decoding_linear(config, device, long)], "about 1")
        what = f"time of a token with sliding_window({W}) at position {long} / {2 * W}"
        note(what, [decoding_window(config, device, long)], "<= 1.2")
    return found


def forecast(history, limit, free):
    """Why the next length should be skipped, or None: twice the length costs up to four times what the last one did."""
    if not history:
        return None
    (seconds, size), growth = history[-1], 4.0
    if len(history) > 1:
        growth = min(4.0, max(2.0, history[-1][0] / history[-2][0]))
    if seconds * growth > limit:
        return f"would take about {seconds * growth:.0f} s"
    if size * 4 > 0.8 * free and len(history) > 1 and size / history[-2][1] > 3:
        return f"would need about {size * 4 / 1e9:.0f} GB"
    return None


def decoding_linear(config, device, T):
    """Median seconds of one linear_step: the last 64 before position T, and those from position 16 to 79."""
    q, k, v = (x.detach() for x in inputs(config, device, 1))
    for state in None, None:  # the first round warms up
        times = []
        for _ in range(T):
            start = time.perf_counter()
            _, state = linear_step(q, k, v, state)
            synchronize(device)
            times.append(time.perf_counter() - start)
    return statistics.median(times[-64:]), statistics.median(times[16:80])


@torch.no_grad()
def decoding_window(config, device, T):
    """Median seconds of one decoded token in a layer with a window: around position T, and around position 2·window."""
    width, dtype = config.n_head * config.head_size, getattr(torch, config.dtype)
    layer = CausalSelfAttention(width, config.n_head, window=config.window).to(device, dtype)
    total = max(T, 2 * config.window) + config.window // 2
    cache, times = layer.new_cache(config.batch_size, total), []
    x = torch.randn(config.batch_size, 1, width, device=device, dtype=dtype)
    for _ in range(total):
        start = time.perf_counter()
        layer(x, cache=cache)
        synchronize(device)
        times.append(time.perf_counter() - start)
    half = config.window // 2 + 1  # tokens on either side
    around = 2 * config.window
    return statistics.median(times[-2 * half :]), statistics.median(times[around - half : around + half])


def print_attention(report, lengths):
    print_machine(report)
    for mode in "forward", "forward + backward":
        print(f"\n{mode}: milliseconds and megabytes at the peak, by sequence length")
        print(f"{'path':12} {'predicate':22}" + "".join(f"{T:>16}" for T in lengths))
        rows = [row for row in report["rows"] if row["mode"] == mode]
        for (name, about), group in itertools.groupby(rows, key=lambda row: (row["path"], row["predicate"])):
            cells = [f"{row['seconds'] * 1e3:.1f} /{row['bytes'] / 1e6:7.1f}" if "seconds" in row else "-" for row in group]
            print(f"{name:12} {about:22}" + "".join(f"{cell:>16}" for cell in cells))
    skipped = [row for row in report["rows"] if "skipped" in row]
    print("\nskipped (-):" if skipped else "\nnothing skipped")
    for (name, about, mode), group in itertools.groupby(skipped, key=lambda row: (row["path"], row["predicate"], row["mode"])):
        first = next(group)
        print(f"  {name}, {about}, {mode}, from T = {first['T']}: {first['skipped']}")
    print("\nratios")
    for found in report["ratios"]:
        spread = f"({found['lowest']:.2f} to {found['highest']:.2f})" if found["lowest"] < found["highest"] else ""
        print(f"  {found['what']:66} {found['ratio']:8.2f} {spread:18} target {found['target']}")


def plot_attention(report, lengths, path):
    """Two log-log panels: the O(T²) wall and the O(T) lines, in time and in memory."""
    import matplotlib.pyplot as plt

    window = f"sliding_window({report['settings']['window']})"
    lines = {
        ("naive", "causal"): "naive", ("masked_fill", "causal"): "masked_fill", ("tiled", "causal"): "tiled",
        ("fused", "causal"): "fused", ("tiled", window): f"tiled, {window}", ("fused", window): f"fused, {window}",
        ("linear", "causal"): "linear",
    }
    colors = dict(zip(lines, ["#999999", "#d62728", "#ff7f0e", "#1f77b4", "#e7ba52", "#17a2a2", "#2ca02c"]))
    figure, panels = plt.subplots(1, 2, figsize=(13, 4.6), layout="constrained")
    for panel, key, unit, scale in zip(panels, ("seconds", "bytes"), ("seconds", "megabytes at the peak"), (1, 1e-6)):
        for (name, about), label in lines.items():
            points = [
                (row["T"], row[key] * scale) for row in report["rows"]
                if (row["path"], row["predicate"], row["mode"]) == (name, about, "forward + backward") and key in row
            ]
            if points:
                panel.loglog(*zip(*points), "o-", color=colors[name, about], label=label, markersize=4)
        low, high = panel.get_ylim()
        for power in 1, 2:  # slopes to compare with, from the lower left
            guide = [1.5 * low * (T / lengths[0]) ** power for T in lengths]
            panel.loglog(lengths, guide, ":", color="#bbbbbb", zorder=0)
            where = [point for point in zip(lengths[:-1], guide) if point[1] < high][-1]
            panel.annotate("O(T)" if power == 1 else "O(T²)", where, color="#888888", ha="left", va="top")
        panel.set(xlabel="sequence length T", ylabel=unit, xticks=lengths, ylim=(low, high))
        panel.set_xticklabels([str(T) for T in lengths])
        panel.minorticks_off()
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    settings = report["settings"]
    figure.suptitle(
        f"attention, forward + backward, B={settings['batch_size']} H={settings['n_head']} D={settings['head_size']} "
        f"{settings['dtype']}, {report['device']}", fontsize=11,
    )
    figure.savefig(path, dpi=150)


# ---- python bench.py train


@dataclass(kw_only=True)
class TrainBench:
    nanogpt: str = ""
    """A clone of nanoGPT, with its data/shakespeare_char prepared, to compare with; empty: lookback alone."""
    shapes: str = "small,baby,gpt2"
    """Which of nanoGPT's shapes: small (its CPU command's), baby (its shakespeare_char), gpt2 (124M), gpt2x12 (its batch)."""
    repeats: int = 5
    """Steps that each takes, in turn."""
    preset: str = "config/speedrun_cpu.toml"
    """The run that is timed until its end, seed after seed; empty: none."""
    flags: str = ""
    """Settings that change the preset, as "--n_embd=128 --max_iters=70"."""
    seeds: int = 10
    """How many seeds."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    out_dir: str = "benchmarks"
    """Where the figures and the plot go."""
    name: str = "train"
    """What their files are called, with the device added."""

    def __post_init__(self):
        check_settings(self, "repeats", "seeds")
        if self.preset and not Path(self.preset).exists():
            raise ValueError(f"preset={self.preset} is not there")
        if self.preset and self.nanogpt and not (Path(self.nanogpt) / "data/shakespeare_char/train.bin").exists():
            raise ValueError(f"nanogpt={self.nanogpt} has no data/shakespeare_char/train.bin: run its prepare.py there")


def check_settings(config, *positive):
    """ValueError for a setting that is not positive, a shape that is unknown, or a nanoGPT that is not there."""
    for name in positive:
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} must be at least 1")
    unknown = [shape for shape in config.shapes.split(",") if shape not in SHAPES]
    if unknown and config.shapes:
        raise ValueError(f"shapes={config.shapes}: {unknown[0]} is unknown, choose from {', '.join(SHAPES)}")
    if config.nanogpt and not (Path(config.nanogpt) / "model.py").exists():
        raise ValueError(f"nanogpt={config.nanogpt} has no model.py: clone nanoGPT and give its folder")


SHAPES = {
    "small": dict(batch_size=12, block_size=64, n_layer=4, n_head=4, n_embd=128, vocab_size=65),
    "baby": dict(batch_size=16, block_size=256, n_layer=6, n_head=6, n_embd=384, vocab_size=65),
    "gpt2": dict(batch_size=1, block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304),
    "gpt2x12": dict(batch_size=12, block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304),
}
NANOGPT_COMMAND = {  # nanoGPT's README, "I only have a macbook" (it evaluates 20 batches every 250 steps) and "I have a GPU"
    "cpu": "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=100 "
    "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0",
    "cuda": "train.py config/train_shakespeare_char.py --device=cuda",
}


def train(config):
    """Steps of the same shapes beside nanoGPT's, a run to its target seed after seed, and what a step of it consists of."""
    device = configure.pick_device(config.device)
    dtype = step_dtype(device)
    report = {**machine(device), "settings": vars(config), "dtype": str(dtype)[6:], "roof": meter.peak_flops(device, dtype)}
    if config.preset:
        with tempfile.TemporaryDirectory() as folder:
            report |= time_to_loss(config, device, Path(folder))
            report["anatomy"] = anatomy(checkpoint.find(Path(folder) / "seed-0"), config.repeats, device)
    report["throughput"] = compare_steps(config, device)
    print_train(report)
    picture = store(report, config.name, device)
    if config.preset:
        plot_train(report, picture)


def step_dtype(device):
    """What steps are compared in: bfloat16, compiled, on a GPU, and float32, not compiled, elsewhere."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def in_step_dtype(device):
    return torch.autocast(device.type, torch.bfloat16, enabled=step_dtype(device) == torch.bfloat16)


def step_of(model, optimizer, device, loss):
    def step():
        with in_step_dtype(device):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare_steps(config, device):
    """For each shape the seconds and peak bytes of a whole step, and those of nanoGPT's model for the same step."""
    found = []
    for name in filter(None, config.shapes.split(",")):
        shape = dict(SHAPES[name])
        tokens = torch.randint(shape["vocab_size"], (shape.pop("batch_size"), shape["block_size"] + 1), device=device)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        torch.manual_seed(0)
        ready = torch.compile if device.type == "cuda" else lambda model: model
        model = GPT(GPTConfig(**shape, bias=False, mlp="gelu")).to(device)
        groups = [dict(kind="adamw", params=list(model.parameters()), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.99))]
        net = ready(model)
        steps = {"lookback": step_of(model, Muon(groups), device, lambda: net(x, y, only_loss=True)[1])}
        if config.nanogpt:
            module = nanogpt_model(config.nanogpt)
            peer = module.GPT(module.GPTConfig(**shape, bias=False, dropout=0.0)).to(device)
            optimizer = peer.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
            peer_net = ready(peer)
            steps["nanoGPT"] = step_of(peer, optimizer, device, lambda: peer_net(x, y)[1])
        memory = [peak_bytes(step, device) for step in steps.values()]
        rounds = take_turns(list(steps.values()), config.repeats, device)
        row = {"shape": name, "tokens": x.numel(), "flops_per_token": model.flops_per_token()}
        for who, size, times in zip(steps, memory, zip(*rounds)):
            row[who] = {"seconds": statistics.median(times), "bytes": size}
        if config.nanogpt:
            row["ratio"] = statistics.median(theirs / ours for ours, theirs in rounds)
        found.append(row)
    return found


def nanogpt_model(folder):
    """model.py of a clone of nanoGPT, as a module of its own name."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(folder) / "model.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def time_to_loss(config, device, folder):
    """Whole processes: the preset for each seed, once more for its curve if it evaluates only at its end, nanoGPT's command."""
    runs, curve, peer, here = [], [], {}, Path(__file__).parent
    theirs = NANOGPT_COMMAND.get(device.type, NANOGPT_COMMAND["cpu"])
    run = [sys.executable, "train.py", config.preset, *shlex.split(config.flags), f"--device={config.device}"]
    for seed in tqdm(range(config.seeds), "runs", unit="seed"):
        if config.nanogpt and seed == config.seeds // 2:  # in the middle, as the machine's speed may drift
            command = [sys.executable, *shlex.split(theirs), f"--out_dir={folder / 'nanogpt'}"]
            took, lines = timed(command, config.nanogpt)
            peer = {"nanogpt": {"seconds": took, "curve": curve_of(lines, "val loss"), "command": f"python {theirs}"}}
        took, lines = timed([*run, f"--seed={seed}", f"--out_dir={folder / f'seed-{seed}'}"], here)
        curve = curve or curve_of(lines, "validation loss")
        last = json.loads((folder / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()[-1])
        runs.append({"seed": seed, "seconds": took, "step": last["step"], "val_loss": last["val_loss"]})
    if len(curve) == 1:
        every = max(1, runs[0]["step"] // 8)
        _, lines = timed([*run, f"--out_dir={folder / 'curve'}", f"--eval_interval={every}"], here)
        curve = curve_of(lines, "validation loss")
    return {"runs": runs, "curve": curve, **peer}


def curve_of(lines, name):
    """(second, loss) of each printed line that has a loss of this name."""
    return [(second, float(re.search(name + r" ([\d.]+)", line)[1])) for second, line in lines if name in line]


def timed(command, cwd):
    """Seconds of a command, and (second, line) of what it printed; ValueError with its last words if it fails."""
    start, lines, env = time.perf_counter(), [], os.environ | {"PYTHONUNBUFFERED": "1"}  # lines as they are printed
    with tempfile.TemporaryFile("w+") as errors:  # a pipe that nobody reads would fill up with progress bars
        with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True, env=env) as process:
            for line in process.stdout:
                lines.append((time.perf_counter() - start, line))
        errors.seek(0)
        error = errors.read()
    if process.returncode:
        raise ValueError(f"{shlex.join(command)} failed: {(error.strip().splitlines() or [process.returncode])[-1]}")
    return time.perf_counter() - start, lines


def anatomy(folder, repeats, device):
    """Median seconds of data, forward, backward, optimizer: a step of this checkpoint, one micro-batch, not compiled."""
    saved = checkpoint.load_config(folder)["training"]
    settings = types.SimpleNamespace(**saved)
    chosen = checkpoint.load_trainer(folder).get("cpu_dtype", "bfloat16") if settings.dtype == "auto" else settings.dtype
    model, dtype = checkpoint.load_model(folder).to(device), getattr(torch, chosen)
    optimizer, data = make_optimizer(model, settings), dataset.load(settings.dataset, settings.block_size)
    parts = {"data": [], "forward": [], "backward": [], "optimizer": []}
    for n in range(repeats * 5 + 3):
        marks = [time.perf_counter()]

        def mark():
            synchronize(device)
            marks.append(time.perf_counter())

        x, y = dataset.random_batch(data.train, settings.batch_size, settings.block_size, np.random.default_rng(n))
        x, y = x.to(device), y.to(device)
        mark()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = model(x, y, only_loss=True)[1]
        mark()
        loss.backward()
        mark()
        optimizer.step()
        optimizer.zero_grad()
        mark()
        for name, (before, after) in zip(parts, itertools.pairwise(marks)):
            parts[name].append(after - before)
    return {
        "seconds": {name: statistics.median(times[3:]) for name, times in parts.items()},
        "tokens": x.numel(), "flops_per_token": model.flops_per_token(), "dtype": chosen,
        "roof": meter.peak_flops(device, dtype),
    }


def print_train(report):
    print_machine(report)
    print(f"roof: {report['roof'] / 1e9:.0f} GFLOP/s in {report['dtype']}")
    for row in report["throughput"]:
        print(f"\n{row['shape']}: {row['tokens']} tokens" + (f", {row['ratio']:.2f} x nanoGPT" if "ratio" in row else ""))
        for who in [name for name in ("lookback", "nanoGPT") if name in row]:
            share = row["tokens"] / row[who]["seconds"] * row["flops_per_token"] / report["roof"]
            print(f"  {who:9} {row[who]['seconds'] * 1e3:8.1f} ms {row[who]['bytes'] / 1e6:8.1f} MB {share:6.0%} of the roof")
    if "runs" in report:
        times = [run["seconds"] for run in report["runs"]]
        command = f"{report['settings']['preset']} {report['settings']['flags']}".strip()
        print(f"\n{command}, whole process: median {statistics.median(times):.1f} s")
        for run in report["runs"]:
            print(f"  seed {run['seed']}: {run['seconds']:6.1f} s, validation loss {run['val_loss']:.4f} at step {run['step']}")
        if "nanogpt" in report:
            peer = report["nanogpt"]
            print(f"  nanoGPT {peer['seconds']:6.1f} s, validation loss {peer['curve'][-1][1]:.4f}: "
                  f"{peer['seconds'] / statistics.median(times):.1f} x as long")
        parts = report["anatomy"]
        total = sum(parts["seconds"].values())
        work = parts["tokens"] * parts["flops_per_token"]
        print(f"a step of it in {parts['dtype']}: {total * 1e3:.1f} ms, {work / 1e9:.2f} GFLOP, "
              f"{work / total / parts['roof']:.0%} of the roof")
        for name, seconds in parts["seconds"].items():
            flops = work * {"forward": 1 / 3, "backward": 2 / 3}.get(name, 0)  # what flops_per_token counts
            print(f"  {name:10} {seconds * 1e3:7.2f} ms {seconds / total:6.1%} {flops / 1e9:6.2f} GFLOP "
                  f"{flops / seconds / parts['roof']:4.0%} of the roof")


def plot_train(report, path):
    """Validation loss against wall time: the preset, and nanoGPT."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(8, 4.2), layout="constrained")
    name = Path(report["settings"]["preset"]).stem
    panel.plot(*zip(*report["curve"]), "o-", markersize=3, color="#1f77b4", label=f"lookback, {name}, evaluated on the way")
    ends = [(run["seconds"], run["val_loss"]) for run in report["runs"]]
    panel.plot(*zip(*ends), "*", markersize=7, color="#17a2a2", label=f"... evaluated at the end: {len(ends)} seeds")
    if "nanogpt" in report:
        panel.plot(*zip(*report["nanogpt"]["curve"]), "o-", markersize=3, color="#d62728", label="nanoGPT's own command")
    panel.set(xlabel="seconds since the start of the process", ylabel="validation loss (nats per character)", xscale="log")
    low, high = panel.get_xlim()
    panel.set_xticks(ticks := [x for x in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if low < x < high])
    panel.set_xticklabels([str(x) for x in ticks])
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    panel.set_title(f"tiny Shakespeare by characters, {report['device']}", fontsize=11)
    figure.savefig(path, dpi=150)


# ---- python bench.py sample


@dataclass(kw_only=True)
class SampleBench:
    nanogpt: str = ""
    """A clone of nanoGPT, with its data/shakespeare_char prepared, to compare with; empty: lookback alone."""
    transformers: bool = False
    """Compare with GPT2LMHeadModel.generate, which needs pip install transformers."""
    shapes: str = "baby,gpt2"
    """Which of nanoGPT's shapes, with random weights."""
    prompt: int = 32
    """Tokens of the prompt of a single text."""
    tokens: int = 128
    """Tokens that are written after it."""
    repeats: int = 3
    """Times that each writes it, in turn."""
    samples: int = 10
    """Texts of the whole job, as nanoGPT's sample.py writes them."""
    length: int = 500
    """Tokens of each of them."""
    trained: str = ""
    """A folder that train.py wrote: what int8 costs its loss, and what guessing gains on its own data; empty: neither."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    out_dir: str = "benchmarks"
    """Where the figures and the plot go."""
    name: str = "sample"
    """What their files are called, with the device added."""

    def __post_init__(self):
        check_settings(self, "prompt", "tokens", "repeats", "samples", "length")
        if self.trained:
            saved = checkpoint.load_config(checkpoint.find(self.trained))["training"]
            dataset.load(saved["dataset"], saved["block_size"])
        if self.nanogpt and not (Path(self.nanogpt) / "data/shakespeare_char/meta.pkl").exists():
            raise ValueError(f"nanogpt={self.nanogpt} has no data/shakespeare_char/meta.pkl: run its prepare.py there")
        for shape in filter(None, self.shapes.split(",")):
            if self.prompt + self.tokens > SHAPES[shape]["block_size"]:
                raise ValueError(f"prompt={self.prompt} and tokens={self.tokens} do not fit into the context of shape {shape}")
        if self.transformers and not importlib.util.find_spec("transformers"):
            raise ValueError("transformers=True needs it: pip install transformers")


def sample(config):
    """One text, the whole job of nanoGPT's sample.py, and what int8 and guesses do to a trained model."""
    device = configure.pick_device(config.device)
    report = {**machine(device), "settings": vars(config), "shapes": []}
    for name in filter(None, config.shapes.split(",")):
        report["shapes"].append({"shape": name, "single": single_text(config, name, device), "job": whole_job(config, name)})
    if config.trained:
        report["trained"] = trained_model(config, device)
    print_sample(report)
    plot_sample(report, store(report, config.name, device))


def shaped(name):
    """GPT-2's architecture with random weights, in one of nanoGPT's shapes: the same for the same name."""
    torch.manual_seed(0)
    shape = {key: value for key, value in SHAPES[name].items() if key != "batch_size"}
    return GPT(GPTConfig(**shape, mlp="gelu")), shape


def write_text(model, prompt, tokens, guess=None, temperature=0.8, compiled=None):
    """Write on with a session of its own; returns it."""
    session = decode.Session(model, [prompt], tokens, compiled=compiled)
    chance = decode.Chance([torch.Generator().manual_seed(0)])
    for _ in decode.stream(session, tokens, decode.Sampling(temperature=temperature, top_k=200), chance, guess=guess):
        pass
    return session


def single_text(config, name, device):
    """Seconds that one text takes, in the process; for lookback also how long reading the weights alone takes."""
    model, shape = shaped(name)
    prompt = torch.randint(shape["vocab_size"], (config.prompt,), device=device)
    writers, bounds = {}, {}
    for label, dtype, how in ("float32", torch.float32, "none"), ("bfloat16", torch.bfloat16, "none"), ("int8", None, "int8"):
        dtype = dtype or (torch.float32 if device.type == "cpu" else torch.bfloat16)
        ours = quantize.ready(copy.deepcopy(model).to(device), dtype, how)
        bounds[f"lookback {label}"] = quantize.read_seconds(ours)
        compiled = decode.compiled_decode(ours) if device.type == "cuda" else None  # as sample.py does
        writers[f"lookback {label}"] = functools.partial(write_text, ours, prompt, config.tokens, compiled=compiled)
    if config.nanogpt:
        module = nanogpt_model(config.nanogpt)
        peer = module.GPT(module.GPTConfig(**shape, bias=True, dropout=0.0))
        give_weights(peer, model.state_dict())
        peer.to(device).eval()
        writers["nanoGPT float32"] = lambda: peer.generate(prompt[None], config.tokens, temperature=0.8, top_k=200)
    if config.transformers:
        for dtype in torch.float32, torch.bfloat16:
            generate = transformers_model(model).to(device, dtype).generate
            writers[f"transformers {str(dtype)[6:]}"] = functools.partial(
                generate, prompt[None], max_new_tokens=config.tokens, min_new_tokens=config.tokens, do_sample=True,
                temperature=0.8, top_k=200, pad_token_id=0, attention_mask=torch.ones_like(prompt[None]),
            )
    print(f"{name}: one text of {config.prompt} + {config.tokens} tokens, {', '.join(writers)}", file=sys.stderr)
    rounds = take_turns(list(writers.values()), config.repeats, device)
    found = {}
    for label, times in zip(writers, zip(*rounds)):
        found[label] = {"seconds": statistics.median(times), "tokens_per_s": config.tokens / statistics.median(times)}
        if label in bounds:
            size, at_least = bounds[label]
            found[label] |= {"weight_bytes": size, "read_seconds": at_least}
            found[label]["share_of_bound"] = config.tokens * at_least / statistics.median(times)
    for peer in [label for label in writers if "lookback" not in label]:
        for label in bounds:
            ratios = [times[list(writers).index(peer)] / times[list(writers).index(label)] for times in rounds]
            found[label][f"times {peer}"] = statistics.median(ratios)
    return found


def transformers_model(model):
    """GPT2LMHeadModel with the weights of model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape, turned = model.config, ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    peer = GPT2LMHeadModel(GPT2Config(
        vocab_size=shape.vocab_size, n_positions=shape.block_size, n_embd=shape.n_embd, n_layer=shape.n_layer,
        n_head=shape.n_head, activation_function="gelu", bos_token_id=0, eos_token_id=0,
    ))
    give_weights(peer, {name: p.mT if name.endswith(turned) else p for name, p in model.state_dict().items()})
    return peer.eval()


def give_weights(peer, weights):
    """Load weights into a peer's model; ValueError if one that it has learned is not among them."""
    missing = peer.load_state_dict(weights, strict=False).missing_keys  # it may have masks too, and a tied head by name
    if left := set(missing) & {name for name, _ in peer.named_parameters()}:
        raise ValueError(f"a peer of this version has weights of its own ({', '.join(sorted(left))}): it cannot be compared")


def whole_job(config, name):
    """Seconds of whole processes, one of each, that write all texts; nanoGPT's one after another: one is timed, and counted."""
    model, shape = shaped(name)
    words = tokenizers.create("gpt2") if shape["vocab_size"] > 50000 else tokenizers.CharTokenizer(map(chr, range(10, 75)))
    found, here = {}, Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(folder, 0, model, {}, words.spec(), {})
        job = [f"--out_dir={folder}", f"--num_samples={config.samples}", f"--max_new_tokens={config.length}"]
        for how in "none", "int8":
            command = [sys.executable, "sample.py", *job, f"--quantize={how}", f"--device={config.device}"]
            found[f"lookback, quantize={how}"] = {"seconds": timed(command, here)[0]}
        if config.nanogpt:
            args = {**shape, "bias": True, "dropout": 0.0}
            data = {} if shape["vocab_size"] > 50000 else {"dataset": "shakespeare_char"}
            torch.save({"model": model.state_dict(), "model_args": args, "config": data}, Path(folder) / "ckpt.pt")
            device = configure.pick_device(config.device)
            command = [sys.executable, "sample.py", f"--out_dir={folder}", f"--device={device}", "--dtype=float32"]
            start, _ = timed([*command, "--num_samples=1", "--max_new_tokens=1"], config.nanogpt)
            one, _ = timed([*command, "--num_samples=1", f"--max_new_tokens={config.length}"], config.nanogpt)
            seconds = start + config.samples * (one - start)
            found["nanoGPT"] = {"seconds": seconds, "start": start, "one_text": one - start}
            for row in list(found.values())[:-1]:
                row["times nanoGPT"] = seconds / row["seconds"]
    return found


def trained_model(config, device):
    """Validation loss in float32 and with int8 weights, and the speed of guessing, on what the model was trained for."""
    folder = checkpoint.find(config.trained)
    saved, plain = checkpoint.load_config(folder)["training"], checkpoint.load_model(folder).to(device)
    model = quantize.ready(plain, torch.float32)
    guessing = quantize.ready(checkpoint.load_model(folder).to(device), torch.float32, rows=9)
    small = quantize.ready(checkpoint.load_model(folder).to(device), torch.float32, "int8")
    data, T = dataset.load(saved["dataset"], saved["block_size"]), saved["block_size"]
    losses = []
    for n in tqdm(range(20), "int8", leave=False):
        x, y = (part.to(device) for part in dataset.random_batch(data.val, 16, T, np.random.default_rng(n)))
        with torch.inference_mode():
            losses.append([each(x, y)[1].item() for each in (model, small)])
    batches = [dataset.random_batch(data.val, 1, T, np.random.default_rng(n)) for n in range(24)]
    one_by_one = [[loss_by_decoding(each, x.to(device), y.to(device)) for each in (model, small)] for x, y in batches]
    prompt = torch.from_numpy(data.val[: T // 2].astype(np.int64)).to(device)
    ways = (model, None), (guessing, lambda session, most: decode.ngram(session, min(8, most)))
    likeliest = [functools.partial(write_text, each, prompt, 4 * T, guess, temperature=0) for each, guess in ways]
    rounds = take_turns(likeliest, config.repeats, device)
    wide, narrow = (statistics.mean(column) for column in zip(*losses))
    one_wide, one_narrow = (statistics.mean(column) for column in zip(*one_by_one))
    return {
        "dataset": saved["dataset"], "loss": wide, "int8_loss": narrow, "int8_cost": narrow / wide - 1, "tokens": 4 * T,
        "one_by_one": {"tokens": 24 * T, "loss": one_wide, "int8_loss": one_narrow, "int8_cost": one_narrow / one_wide - 1},
        "plain_seconds": statistics.median(a for a, _ in rounds), "ngram_seconds": statistics.median(b for _, b in rounds),
        "ngram_gain": statistics.median(a / b for a, b in rounds),
    }


@torch.inference_mode()
def loss_by_decoding(model, x, y):
    """Mean loss of tokens (1, T) that are read one at a time, as a text is written: other products than those of many rows."""
    cache = model.new_cache(1)
    logits = torch.cat([decode.decode_one_token(model, token, cache) for token in x.split(1, dim=1)], dim=1)
    return F.cross_entropy(logits[0].float(), y[0]).item()


def print_sample(report):
    print_machine(report)
    settings = report["settings"]
    for shape in report["shapes"]:
        print(f"\n{shape['shape']}: one text, {settings['prompt']} + {settings['tokens']} tokens")
        for label, row in shape["single"].items():
            extra = [f"{row['share_of_bound']:.0%} of reading the weights alone"] if "share_of_bound" in row else []
            extra += [f"{value:.2f} x {key[6:]}" for key, value in row.items() if key.startswith("times ")]
            print(f"  {label:22} {row['tokens_per_s']:8.1f} tokens/s   {', '.join(extra)}")
        print(f"{shape['shape']}: {settings['samples']} texts of {settings['length']} tokens, whole process")
        for label, row in shape["job"].items():
            times = f"   {row['times nanoGPT']:.1f} x nanoGPT" if "times nanoGPT" in row else ""
            print(f"  {label:22} {row['seconds']:8.1f} s{times}")
    if "trained" in report:
        row = report["trained"]
        print(f"\n{settings['trained']}: loss {row['loss']:.4f}, int8 {row['int8_loss']:.4f} ({row['int8_cost']:+.2%}); "
              f"read one at a time {row['one_by_one']['int8_cost']:+.2%} over {row['one_by_one']['tokens']} tokens; "
              f"{row['tokens']} likeliest tokens {row['plain_seconds']:.2f} s, guessing {row['ngram_seconds']:.2f} s, "
              f"{row['ngram_gain']:.2f} x")


def plot_sample(report, path):
    """Tokens per second of each, for one text and for the whole job."""
    import matplotlib.pyplot as plt

    settings, panels = report["settings"], []
    for shape in report["shapes"]:
        panels.append((f"{shape['shape']}: one text", {k: row["tokens_per_s"] for k, row in shape["single"].items()}))
        total = settings["samples"] * settings["length"]
        panels.append((f"{shape['shape']}: {settings['samples']} texts, whole process",
                       {k: total / row["seconds"] for k, row in shape["job"].items()}))
    if not panels:
        return
    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 2.1 * len(panels)), layout="constrained", squeeze=False)
    for (title, speeds), panel in zip(panels, axes[:, 0]):
        colors = ["#1f77b4" if "lookback" in label else "#d62728" if "nanoGPT" in label else "#999999" for label in speeds]
        bars = panel.barh(list(speeds), list(speeds.values()), color=colors)
        panel.bar_label(bars, [f" {speed:,.1f}" for speed in speeds.values()])
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.set_title(f"{title}, tokens per second", fontsize=10, loc="left")
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(report["device"], fontsize=10)
    figure.savefig(path, dpi=150)


# ---- python bench.py ablations


@dataclass(kw_only=True)
class AblationBench:
    preset: str = "config/speedrun_cpu.toml"
    """The run whose ingredients are changed one at a time."""
    seeds: int = 3
    """Runs of each."""
    only: str = ""
    """Of the changes, those that contain this text."""
    out_dir: str = "benchmarks"
    """Where ablations.md goes."""

    def __post_init__(self):
        if self.seeds < 2:
            raise ValueError(f"seeds={self.seeds} must be at least 2: one run has no spread to compare with")
        if not Path(self.preset).exists():
            raise ValueError(f"preset={self.preset} is not there")
        if not any(self.only in what for what in CHANGES):
            raise ValueError(f"only={self.only} is in none of: {'; '.join(CHANGES)}")


ADAMW = "--optimizer=adamw --grad_clip=1 --beta1=0.9 --beta2=0.99 --warmup_iters=5 --weight_decay=0.1"
CHANGES = {
    "AdamW, learning rate 0.005, in place of Muon": f"{ADAMW} --learning_rate=0.005",
    "AdamW, learning rate 0.01": f"{ADAMW} --learning_rate=0.01",
    "AdamW, learning rate 0.02": f"{ADAMW} --learning_rate=0.02",
    "AdamW, learning rate 0.04": f"{ADAMW} --learning_rate=0.04",
    "Muon with 2 orthogonalization steps": "--muon_steps=2",
    "Muon with 5 orthogonalization steps": "--muon_steps=5",
    "Muon's momentum 0.95": "--momentum=0.95",
    "Muon's learning rate 0.03": "--learning_rate=0.03",
    "embedding and head at 0.025 and 0.0125": "--embedding_lr=0.025 --head_lr=0.0125",
    "no short windows: every block sees everything": "--window=0",
    "windows of 16": "--window=16",
    "RoPE's base 10000": "--rope_base=10000",
    "learned positions, no RoPE": "--position=learned",
    "no QK norm": "--qk_norm=False",
    "GELU, not ReLU²": "--mlp=gelu_tanh",
    "LayerNorm with a learned scale, not RMS norm": "--norm=layernorm",
    "GPT-2's initial weights, not zeros where blocks write": "--init=gpt2",
    "head tied to the embedding": "--tie_weights=True",
    "biases": "--bias=True",
    "skip: learned mix with the embedding": "--skip=True",
    "shift: learned mix with the position before": "--shift=True",
    "2 heads": "--n_head=2",
    "2 heads of keys and values, shared": "--n_kv_head=2",
    "no hold: the decay begins at once": "--hold=0",
    "cosine decay": "--lr_schedule=cosine",
    "10 steps of warmup": "--warmup_iters=10",
    "gradients clipped to 1": "--grad_clip=1",
    "weight decay 0.1": "--weight_decay=0.1",
}


def ablations(config):
    """What each ingredient of a preset is worth: its loss with one of them changed, seed by seed, as a Markdown table."""
    losses, folder = {}, tempfile.TemporaryDirectory()
    changes = {what: flags for what, flags in CHANGES.items() if config.only in what}
    with folder, tqdm(total=config.seeds * (len(changes) + 1), desc="runs", unit="run") as bar:
        for seed in range(config.seeds):
            for n, (what, flags) in enumerate({"as it is": "", **changes}.items()):
                out = Path(folder.name) / f"{n}-{seed}"
                command = [sys.executable, "train.py", config.preset, f"--seed={seed}", f"--out_dir={out}", *shlex.split(flags)]
                try:
                    timed(command, Path(__file__).parent)
                    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["val_loss"]
                except ValueError as error:
                    if "stopped" not in str(error):
                        raise
                    tqdm.write(str(error))
                    last = math.nan  # it diverged: that is a result too
                losses.setdefault(what, []).append(last)
                bar.update()
    about = machine(configure.pick_device("auto"))
    lines = [
        f"# What each ingredient of {config.preset} is worth", "",
        f"Validation loss of {config.seeds} seeds after the same number of steps, with one thing changed. The difference is "
        "the mean over seeds; the error is its standard error, from the differences seed by seed. Below zero, the change would "
        "have helped; a difference of less than three errors shows little, with so few seeds; nan: a run diverged.", "",
        f"{about['device']}, torch {about['torch']}, {about['date']}; `{about['command']}`", "",
        "| change | setting | loss | difference | error |", "|---|---|---|---|---|",
    ]
    rows = []
    for what, found in losses.items():
        differences = np.subtract(found, losses["as it is"])
        error = differences.std(ddof=1) / math.sqrt(config.seeds)
        rows.append((differences.mean(), f"{np.mean(found):.4f}", error, what))
    for difference, loss, error, what in sorted(rows, key=lambda row: np.nan_to_num(row[0], nan=math.inf), reverse=True):
        flags = f"`{changes[what]}`" if what in changes else ""
        lines.append(f"| {what} | {flags} | {loss} | {difference:+.4f} | {error:.4f} |")
    path = Path(config.out_dir) / ("some_ablations.md" if config.only else "ablations.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines) + f"\n\n{path} written")


BENCHMARKS = {
    "attention": (AttentionBench, attention), "train": (TrainBench, train), "sample": (SampleBench, sample),
    "ablations": (AblationBench, ablations),
}


def main(argv):
    if not argv or argv[0] not in BENCHMARKS:
        raise ValueError(f"which benchmark? python bench.py {'|'.join(BENCHMARKS)} [--key=value ...]")
    settings, benchmark = BENCHMARKS[argv[0]]
    benchmark(configure.parse(settings, argv[1:]))


if __name__ == "__main__":
    with configure.one_line_errors():
        main(sys.argv[1:])
