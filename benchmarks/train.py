"""Training: how long a step takes beside nanoGPT's, and how long a preset takes to its loss.

    python -m benchmarks.train [--nanogpt=../nanoGPT] [--shapes=small,gpt2] [--preset=config/x.toml]

Leaves <name>_<device>.json, and a .png of the losses, in out_dir. Steps are interleaved; whole
processes run once a seed.
"""

import functools
import json
import re
import shlex
import statistics
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.hardware import half_dtype, machine_report, peak_bytes, time_interleaved
from engine.common.settings import parse_settings
from engine.training.optimizer import make_optimizer, training_step
from model import GPT, GPTConfig
from tools.shared import benchmark

# nanoGPT's README: "I have a GPU", and "I only have a macbook".
GPU_COMMAND = "train.py config/train_shakespeare_char.py --device=cuda"
CPU_COMMAND = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=100 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)


@dataclass(kw_only=True)
class TrainBench(benchmark.ShapeSettings):
    name: str = "train"
    shapes: str = "small,baby,gpt2"
    preset: str = "config/speedrun_cpu.toml"
    """The run that is timed until its end, seed after seed; empty: none."""
    flags: str = ""
    """Settings that change the preset, as "--n_embd=128 --max_iters=70"."""
    seeds: int = 10
    """Runs of the preset."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "seeds")


def main(config):
    """Measure, print and store what the settings select."""
    device = pick_device(config.device)
    report = {"kind": "train", **machine_report(device), "settings": vars(config)}
    tables = []
    if config.preset:
        report |= time_to_loss(config, device)
        tables += [report["runs"], [report["summary"]]]
    report["throughput"] = []
    for name in config.shape_names():
        report["throughput"].append(compare_steps(config, name, device, report["gflops"]))
    benchmark.write_report(report, config, tables + report["throughput"], device)


def time_to_loss(config, device):
    """Time whole processes: the preset for each seed, and nanoGPT's command."""
    runs = []
    peer = None
    with tempfile.TemporaryDirectory() as folder:
        for seed in tqdm(range(config.seeds), "runs", unit="seed"):
            run = run_preset(config, Path(folder, str(seed)), f"--seed={seed}")
            runs.append({"seed": seed, **run})
            # In the middle, since the machine's speed may drift.
            if config.nanogpt and seed == config.seeds // 2:
                peer = run_nanogpt(config, device, folder)
        # One run more, with evaluations, for its curve.
        interval = max(1, runs[0]["step"] // 8)
        flag = f"--eval_interval={interval}"
        run = run_preset(config, Path(folder, "curve"), flag)
        curve = run["curve"]

    for run in runs:
        del run["curve"]
    seconds = statistics.median(run["seconds"] for run in runs)
    report = {"runs": runs, "curve": curve, "summary": {"median seconds": seconds}}
    if peer:
        report["nanogpt"] = peer
        report["summary"] |= {"nanoGPT's": peer["seconds"], "ratio": peer["seconds"] / seconds}
    return report


def run_preset(config, out_dir, flag):
    """Run train.py: its seconds, its last figures, and its losses on the way."""
    command = [sys.executable, "train.py", config.preset, "--draw_loss=False"]
    command += [*shlex.split(config.flags), f"--device={config.device}", flag]
    seconds, lines = benchmark.run_timed([*command, f"--out_dir={out_dir}"])
    last = json.loads((out_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    run = {key: last[key] for key in ("step", "val_loss", "mfu")}
    return run | {"seconds": seconds, "curve": curve_of(lines, "validation loss")}


def run_nanogpt(config, device, folder):
    """Run nanoGPT's own command: its seconds, and its losses on the way."""
    command = shlex.split(GPU_COMMAND if device.type == "cuda" else CPU_COMMAND)
    out_dir = f"--out_dir={folder}/nanogpt"
    seconds, lines = benchmark.run_timed([sys.executable, *command, out_dir], config.nanogpt)
    return {"seconds": seconds, "curve": curve_of(lines, "val loss")}


def curve_of(lines, name):
    """(second, loss) of each printed line that has a loss of this name."""
    curve = []
    for second, line in lines:
        if match := re.search(name + r" ([\d.]+)", line):
            curve.append((second, float(match[1])))
    return curve


def compare_steps(config, name, device, gflops):
    """Time a training step in one of nanoGPT's shapes: a row for our model, one for nanoGPT's."""
    torch._dynamo.reset()  # or what is compiled from the second shape on is for any
    shape = dict(benchmark.SHAPES[name])
    size = (2, shape.pop("batch_size"), shape["block_size"])
    x, y = torch.randint(shape["vocab_size"], size, device=device)

    # nanoGPT's own choices: half precision and compilation on a GPU.
    on_gpu = device.type == "cuda"
    dtype = half_dtype(device) if on_gpu else "float32"
    autocast = torch.autocast("cuda", getattr(torch, dtype)) if on_gpu else nullcontext()
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "float16")
    compiled = torch.compile if on_gpu else lambda model: model

    def step(net, optimizer):
        batches = [(x, y, None, None)]
        return functools.partial(
            training_step, net, batches, optimizer, scaler, autocast, grad_clip=1.0
        )

    torch.manual_seed(0)
    model = GPT(GPTConfig(**shape, bias=False, mlp="gelu")).to(device)
    adamw = dict(learning_rate=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.99)
    optimizer = make_optimizer(model, SimpleNamespace(optimizer="adamw", **adamw))
    steps = {"lookback": step(compiled(model), optimizer)}
    if config.nanogpt:
        theirs = benchmark.nanogpt(config.nanogpt)
        peer = theirs.GPT(theirs.GPTConfig(**shape, bias=False, dropout=0.0)).to(device)
        optimizer = peer.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
        net = compiled(peer)
        steps["nanoGPT"] = step(lambda x, y, **_: net(x, y), optimizer)

    memory = [peak_bytes(function, device) for function in steps.values()]
    rounds = time_interleaved([*steps.values()], config.repeats, device)
    rows = []
    for n, who in enumerate(steps):
        seconds = statistics.median(times[n] for times in rounds)
        flops = x.numel() / seconds * model.flops_per_token()
        row = {"shape": name, "model": who}
        row["tokens"] = x.numel()
        row["ms"] = seconds * 1e3
        row["MB"] = memory[n] / 1e6
        row["MFU"] = flops / (gflops[dtype] * 1e9)
        ratios = [times[n] / times[0] for times in rounds]
        row["time / ours"] = statistics.median(ratios)
        rows.append(row)
    return rows


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(TrainBench, sys.argv[1:]))
