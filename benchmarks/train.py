"""Training: how long a step takes beside nanoGPT's, and how long a preset takes to its loss.

    python -m benchmarks.train [--nanogpt=../nanoGPT] [--shapes=small,gpt2] [--preset=config/x.toml] [--key=value ...]

Leaves <name>_<device>.json, and a .png of the losses, in out_dir. Steps are interleaved; whole processes run once a seed.
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

from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.hardware import half_dtype, machine_report, peak_bytes, time_interleaved
from engine.common.settings import parse_settings
from engine.training.optimizer import make_optimizer, training_step
from model import GPT, GPTConfig
from tools.shared import benchmark

NANOGPT_COMMAND = {  # nanoGPT's README, "I only have a macbook" (it evaluates 20 batches every 250 steps) and "I have a GPU"
    "cpu": "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=100 "
    "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0",
    "cuda": "train.py config/train_shakespeare_char.py --device=cuda",
}


@dataclass(kw_only=True)
class TrainBench(benchmark.ShapeSettings):
    name: str = "train"
    shapes: str = "small,baby,gpt2"
    preset: str = "config/speedrun_cpu.toml"
    """The run that is timed until its end, seed after seed; empty: none."""
    flags: str = ""
    """Settings that change the preset, as "--n_embd=128 --max_iters=70"."""
    seeds: int = 10
    """How many seeds."""


def main(config):
    """Measure, print and store what the settings ask for."""
    at_least(1, config, "seeds")
    device, tables = pick_device(config.device), []
    report = {"kind": "train", **machine_report(device), "settings": vars(config)}
    dtype = half_dtype(device) if device.type == "cuda" else "float32"  # nanoGPT's own choices
    peak = report["gflops"][dtype] * 1e9
    with benchmark.background_load(config.busy):
        if config.preset:
            with tempfile.TemporaryDirectory() as folder:
                report |= time_to_loss(config, device, Path(folder))
            tables += report["runs"], [report["summary"]]
        steps = [
            compare_steps(config, name, device, dtype, peak)
            for name in config.shapes.replace(",", " ").split()
        ]
    benchmark.write_report(report | {"throughput": steps}, config, tables + steps, device)


def time_to_loss(config, device, folder):
    """Whole processes: the preset for each seed, nanoGPT's command, and the preset with evaluations, for its curve."""
    runs, peer = [], {}
    preset = shlex.split(
        f"train.py {config.preset} --draw_loss=False {config.flags} --device={config.device}"
    )
    preset.insert(0, sys.executable)
    for seed in tqdm(range(config.seeds), "runs", unit="seed"):
        seconds, _, _ = benchmark.run_timed(
            [*preset, f"--seed={seed}", f"--out_dir={folder / str(seed)}"]
        )
        last = json.loads((folder / str(seed) / "metrics.jsonl").read_text().splitlines()[-1])
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                **{key: last[key] for key in ("step", "val_loss", "mfu")},
            }
        )
        if (
            config.nanogpt and seed == config.seeds // 2
        ):  # in the middle, since the machine's speed may drift
            theirs = shlex.split(NANOGPT_COMMAND.get(device.type, NANOGPT_COMMAND["cpu"]))
            seconds, _, lines = benchmark.run_timed(
                [sys.executable, *theirs, f"--out_dir={folder / 'nanogpt'}"], config.nanogpt
            )
            peer = {
                "seconds": seconds,
                "curve": curve_of(lines, "val loss"),
                "command": shlex.join(theirs),
            }
    interval = max(1, last["step"] // 8)
    _, _, lines = benchmark.run_timed(
        [*preset, f"--eval_interval={interval}", f"--out_dir={folder / 'curve'}"]
    )
    report, median = (
        {"runs": runs, "curve": curve_of(lines, "validation loss")},
        statistics.median(r["seconds"] for r in runs),
    )
    if peer:
        report["nanogpt"], peer = (
            peer,
            {"nanoGPT's": peer["seconds"], "ratio": peer["seconds"] / median},
        )
    return report | {"summary": {"median seconds": median, **peer}}


def curve_of(lines, name):
    """(second, loss) of each printed line that has a loss of this name."""
    return [
        (second, float(re.search(name + r" ([\d.]+)", line)[1]))
        for second, line in lines
        if name in line
    ]


def compare_steps(config, name, device, dtype, peak):
    """Rows with the cost of a training step in one of nanoGPT's shapes: ours, and that of nanoGPT's own model."""
    torch._dynamo.reset()  # or from the second shape on, what is compiled is for any
    shape = dict(benchmark.SHAPES[name])
    tokens = torch.randint(
        shape["vocab_size"], (shape.pop("batch_size"), shape["block_size"] + 1), device=device
    )
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    compiled = torch.compile if device.type == "cuda" else lambda model: model
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "float16")
    autocast = (
        torch.autocast(device.type, getattr(torch, dtype)) if dtype != "float32" else nullcontext()
    )

    def step(net, optimizer):
        return functools.partial(
            training_step, net, [(x, y, None)], optimizer, scaler, autocast, grad_clip=1.0
        )

    torch.manual_seed(0)
    model = GPT(GPTConfig(**shape, bias=False, mlp="gelu")).to(device)
    adamw = SimpleNamespace(
        optimizer="adamw", learning_rate=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.99
    )
    steps = {"lookback": step(compiled(model), make_optimizer(model, adamw))}
    if config.nanogpt:
        module = benchmark.nanogpt_model(config.nanogpt)
        peer = module.GPT(module.GPTConfig(**shape, bias=False, dropout=0.0)).to(device)
        net, optimizer = (
            compiled(peer),
            peer.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type),
        )
        steps["nanoGPT"] = step(
            lambda x, y, only_loss: net(x, y), optimizer
        )  # it knows no only_loss
    memory = [peak_bytes(function, device) for function in steps.values()]
    rounds, rows = time_interleaved(list(steps.values()), config.repeats, device), []
    for who, size, times in zip(steps, memory, zip(*rounds)):
        seconds = statistics.median(times)
        ratio = statistics.median(own / lookback for own, (lookback, *_) in zip(times, rounds))
        mfu = x.numel() / seconds * model.flops_per_token() / peak
        rows.append(
            {
                "shape": name,
                "model": who,
                "tokens": x.numel(),
                "ms": seconds * 1e3,
                "MB": size / 1e6,
                "MFU": mfu,
                "time / ours": ratio,
            }
        )
    return rows


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(TrainBench, sys.argv[1:]))
