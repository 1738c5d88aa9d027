"""Measure training: seconds of a step, versus nanoGPT's, and of a preset until its end.

    python -m benchmarks.train [--nanogpt=../nanoGPT] [--shapes=gpt2:12] [--preset=config/x.toml]
    python -m benchmarks.train --preset= [--nanogpt=../nanoGPT]     steps alone

On a GPU, steps of half a million tokens, as presets of GPT-2's size have, compiled in two ways:

    python -m benchmarks.train --preset= --shapes=gpt2:12,gpt2:60 --texts=480 --compile=whole,blocks

Leaves <name>_<device>.json, and a .png of the losses, in out_dir. Steps are interleaved; whole
processes run once a seed.
"""

import functools
import re
import shlex
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from tqdm import tqdm

from engine.errors import at_least, choose
from engine.machine import half_dtype
from engine.optimizer import clip_gradients, make_optimizer
from model import GPT
from tools.shared import benchmark
from tools.shared.measure import peak_bytes
from tools.shared.settings import run

TEXTS_ON_GPU = 480  # in a round: to wait after each step would be part of its time
OPTIMIZER = dict(  # nanoGPT's, unless the shape has its own
    optimizer="adamw", learning_rate=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.99, vector_lr=0.01
)

# nanoGPT's README: "I have a GPU", and "I only have a macbook".
GPU_COMMAND = "train.py config/train_shakespeare_char.py --device=cuda"
CPU_COMMAND = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=100 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)


def compile_blocks(model):
    """Compile each block by itself; return the model."""
    for block in model.transformer.h:
        block.compile()
    return model


COMPILE = {  # a way -> a function of our model
    "none": lambda model: model,
    "whole": torch.compile,
    "blocks": compile_blocks,
    "autotuned": functools.partial(torch.compile, mode="max-autotune-no-cudagraphs"),
}


@dataclass
class TrainBench(benchmark.ShapeSettings):
    name: str = "train"
    shapes: str = "small:12,baby:16,gpt2"
    preset: str = "config/speedrun_cpu.toml"
    """The run that is timed until its end, seed after seed; empty: none."""
    flags: str = ""
    """Settings that change the preset, as "--n_embd=128 --max_iters=70"."""
    seeds: int = 10
    """Runs of the preset."""
    texts: int = 0
    """Sequences in a step, in as many micro-batches as the shape's number needs; 0: in one."""
    compile: str = ""
    """Ways to compile our model, a row for each: none, whole, blocks (each by itself), autotuned
    (takes minutes). Empty: whole on a GPU, else none."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "seeds")
        for way in benchmark.words(self.compile):
            choose("compile", way, COMPILE)


def main(config):
    """Measure, print and store what the settings select."""
    device, report = benchmark.new_report("train", config)
    tables = []
    if config.preset:
        report |= time_to_loss(config, device)
        tables += [report["runs"], [report["summary"]]]
    report["throughput"] = []
    for shape in benchmark.words(config.shapes):
        report["throughput"].append(compare_steps(config, shape, device, report["gflops"]))
    benchmark.write_report(report, config, tables + report["throughput"], device)


def time_to_loss(config, device):
    """Time whole processes: the preset for each seed, and nanoGPT's command."""
    runs = []
    report = {"runs": runs}
    words = [config.preset, *shlex.split(config.flags), f"--device={config.device}"]
    with tempfile.TemporaryDirectory() as folder:
        for seed in tqdm(range(config.seeds), "runs", unit="seed"):
            last, _ = benchmark.run_train([*words, f"--seed={seed}"], Path(folder, str(seed)))
            names = ("step", "val_loss", "mfu", "seconds")
            runs.append({"seed": seed} | {name: last.get(name) for name in names})
            # In the middle, since the machine's speed may drift.
            if config.nanogpt and seed == config.seeds // 2:
                report["nanogpt"] = run_nanogpt(config, device, folder)
        # One run more, with evaluations, for its curve.
        words.append(f"--eval_interval={max(1, last['step'] // 8)}")
        _, lines = benchmark.run_train(words, Path(folder, "curve"))

    seconds = statistics.median(run["seconds"] for run in runs)
    report |= {"curve": curve_of(lines), "summary": {"median seconds": seconds}}
    if peer := report.get("nanogpt"):
        report["summary"] |= {"nanoGPT's": peer["seconds"], "ratio": peer["seconds"] / seconds}
    return report


def run_nanogpt(config, device, folder):
    """Run nanoGPT's own command: its seconds, and its losses on the way."""
    command = shlex.split(GPU_COMMAND if device.type == "cuda" else CPU_COMMAND)
    out_dir = f"--out_dir={folder}/nanogpt"
    seconds, lines = benchmark.run_timed([sys.executable, *command, out_dir], config.nanogpt)
    return {"seconds": seconds, "curve": curve_of(lines)}


def curve_of(lines):
    """(second, loss) of each printed line that has a validation loss, ours or nanoGPT's."""
    curve = []
    for second, line in lines:
        if match := re.search(r"val(?:idation)? loss ([\d.]+)", line):
            curve.append((second, float(match[1])))
    return curve


def compare_steps(config, shape, device, gflops):
    """Time a training step of a shape: a row for our model, compiled in each way, and nanoGPT's.

    MFU is the share of the peak, by the operations that are needed and by nanoGPT's formula. MB is
    the memory that a step holds in addition to the weights and the optimizer.
    """
    torch.compiler.reset()  # or what is compiled from the second shape on is for any
    on_gpu = device.type == "cuda"
    dtype = half_dtype(device) if on_gpu else "float32"
    model, tokens, steps = make_steps(config, shape, device, dtype)
    calls = max(1, TEXTS_ON_GPU * model.config.block_size // tokens) if on_gpu else 1
    first, times = benchmark.time_rounds([*steps.values()], config.repeats, device, calls)
    peak = gflops[dtype] * 1e9
    rows = []
    for n, (who, function) in enumerate(steps.items()):
        seconds = statistics.median(times[n])
        speed = tokens / seconds
        row = {"shape": shape, "model": who, "tokens": tokens, "ms": seconds * 1e3}
        row["tokens/s"] = speed
        row["MFU"] = speed * model.flops_per_token() / peak
        row["nanoGPT's MFU"] = speed * nanogpt_flops(model) / peak
        row["MB"] = peak_bytes(function, device) / 1e6
        row["first step, s"] = first[n]
        row["time / ours"] = benchmark.ratio(times[n], times[0])
        rows.append(row)
    return rows


def make_steps(config, shape, device, dtype):
    """Return our model, the tokens of a step, and {who: a function that makes a step}."""
    name, texts = benchmark.split_shape(shape)
    count = max(1, config.texts // texts)  # of micro-batches
    model_config = benchmark.model_config(name, bias=False)
    size = (2, texts, model_config.block_size)
    x, y = torch.randint(model_config.vocab_size, size, device=device)
    settings = SimpleNamespace(**OPTIMIZER | benchmark.SHAPES[name])

    # As train.py and nanoGPT do on a GPU; TF32 is for float32 products that remain.
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    default = "whole" if on_gpu else "none"
    autocast = torch.autocast(device.type, getattr(torch, dtype), enabled=on_gpu)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "float16")

    def step_of(net, optimizer, clip, **options):
        def step():  # as in train.py and in nanoGPT's
            for _ in range(count):
                with autocast:
                    loss = net(x, y, **options)[1] / count
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        return step

    steps = {}
    for way in benchmark.words(config.compile or default):
        torch.manual_seed(0)
        model = GPT(model_config).to(device)
        optimizer = make_optimizer(model, settings)
        most = 1.0 if settings.optimizer == "adamw" else 0.0  # as our presets
        clip = functools.partial(clip_gradients, optimizer, most)
        steps[f"lookback, {way}"] = step_of(COMPILE[way](model), optimizer, clip, only_loss=True)
    if peer := config.peer(name, device, bias=False):
        optimizer = peer.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
        clip = functools.partial(torch.nn.utils.clip_grad_norm_, [*peer.parameters()], 1.0)
        steps["nanoGPT"] = step_of(COMPILE[default](peer), optimizer, clip)
    return model, count * x.numel(), steps


def nanogpt_flops(model):
    """Operations of training on a token, by nanoGPT's estimate_mfu.

    6 for each parameter but those of positions, and each query's keys without causality.
    """
    config = model.config
    positions = sum(p.numel() for p in model.transformer.wpe.parameters())
    keys = config.n_layer * config.block_size
    return 6 * (model.num_params() - positions) + 12 * config.n_head * config.D * keys


if __name__ == "__main__":
    run(main, TrainBench)
