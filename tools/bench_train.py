"""Training: how long a step takes beside nanoGPT's, and how long a preset takes to its loss.

    python -m tools.bench_train [--nanogpt=../nanoGPT] [--shapes=small,gpt2] [--preset=config/x.toml] [--key=value ...]

Prints tables and leaves <name>_<device>.json, and a .png of the losses, in out_dir. Steps are interleaved, and their ratio
is a median; whole processes run once for each seed.
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

from engine import benchmark, configure
from engine.checks import at_least
from engine.optimizer import make_optimizer, training_step
from engine.roofline import machine, machine_line, peak_bytes, peak_flops, take_turns, utilization
from model import GPT, GPTConfig

NANOGPT_COMMAND = {  # nanoGPT's README, "I only have a macbook" (it evaluates 20 batches every 250 steps) and "I have a GPU"
    "cpu": "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=100 "
    "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0",
    "cuda": "train.py config/train_shakespeare_char.py --device=cuda",
}


@dataclass(kw_only=True)
class TrainBench(benchmark.ShapeSettings):
    name: str = "train"
    shapes: str = "small,baby,gpt2"
    repeats: int = 5
    """Steps that each takes, interleaved."""
    preset: str = "config/speedrun_cpu.toml"
    """The run that is timed until its end, seed after seed; empty: none."""
    flags: str = ""
    """Settings that change the preset, as "--n_embd=128 --max_iters=70"."""
    seeds: int = 10
    """How many seeds."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "repeats", "seeds")
        if self.preset and not Path(self.preset).exists():
            raise ValueError(f"there is no preset {self.preset}")
        if self.preset:
            self.check_prepared("train.bin")


def main(config):
    """Measure, print and store what the settings ask for."""
    device = configure.pick_device(config.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # nanoGPT's own choices
    report = {
        "kind": "train", **machine(device), "settings": vars(config), "dtype": str(dtype)[6:],
        "peak_flops": peak_flops(device, dtype),
    }
    if config.preset:
        with tempfile.TemporaryDirectory() as folder:
            report |= time_to_loss(config, device, Path(folder))
    names = tqdm(config.shape_names(), "shapes", unit="shape")
    report["throughput"] = [compare_steps(config, name, device, dtype) for name in names]
    print_report(report)
    benchmark.store(report, config.out_dir, config.name, device)


def compare_steps(config, name, device, dtype):
    """Seconds and peak bytes of a training step in one of nanoGPT's shapes, and of nanoGPT's model with its own optimizer."""
    shape = dict(benchmark.SHAPES[name])
    tokens = torch.randint(shape["vocab_size"], (shape.pop("batch_size"), shape["block_size"] + 1), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    compiled = torch.compile if device.type == "cuda" else lambda model: model
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    autocast = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()

    def step(net, optimizer):
        return functools.partial(training_step, net, [(x, y, None)], optimizer, scaler, autocast, grad_clip=1.0)

    torch.manual_seed(0)
    model = GPT(GPTConfig(**shape, bias=False, mlp="gelu")).to(device)
    adamw = SimpleNamespace(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.99)
    steps = {"lookback": step(compiled(model), make_optimizer(model, adamw))}
    if config.nanogpt:
        module = benchmark.nanogpt_model(config.nanogpt)
        peer = module.GPT(module.GPTConfig(**shape, bias=False, dropout=0.0)).to(device)
        peer_net = compiled(peer)
        optimizer = peer.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
        steps["nanoGPT"] = step(lambda x, y, only_loss: peer_net(x, y), optimizer)  # it knows no only_loss
    memory = [peak_bytes(function, device) for function in steps.values()]
    rounds = take_turns(list(steps.values()), config.repeats, device)
    row = {"shape": name, "tokens": x.numel(), "flops_per_token": model.flops_per_token()}
    for who, size, times in zip(steps, memory, zip(*rounds)):
        row[who] = {"seconds": statistics.median(times), "bytes": size}
    if config.nanogpt:
        row["ratio"] = statistics.median(theirs / ours for ours, theirs in rounds)
    return row


def time_to_loss(config, device, folder):
    """Whole processes: the preset for each seed, again for its curve if it evaluates only at its end, nanoGPT's command."""
    runs, curve, peer = [], [], {}
    run = [sys.executable, "train.py", config.preset, *shlex.split(config.flags), f"--device={config.device}"]
    for seed in tqdm(range(config.seeds), "runs", unit="seed"):
        if config.nanogpt and seed == config.seeds // 2:  # in the middle, since the machine's speed may drift
            theirs = NANOGPT_COMMAND.get(device.type, NANOGPT_COMMAND["cpu"])
            command = [sys.executable, *shlex.split(theirs), f"--out_dir={folder / 'nanogpt'}"]
            process = benchmark.timed(command, config.nanogpt)
            peer = {"seconds": process.seconds, "curve": curve_of(process, "val loss"), "command": f"python {theirs}"}
        process = benchmark.timed([*run, f"--seed={seed}", f"--out_dir={folder / f'seed-{seed}'}"])
        curve = curve or curve_of(process, "validation loss")
        last = json.loads((folder / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()[-1])
        kept = {key: last[key] for key in ("step", "val_loss", "tokens_per_s", "mfu")}
        runs.append({"seed": seed, "seconds": process.seconds, **kept})
    if len(curve) == 1:
        interval = max(1, runs[0]["step"] // 8)
        process = benchmark.timed([*run, f"--out_dir={folder / 'curve'}", f"--eval_interval={interval}"])
        curve = curve_of(process, "validation loss")
    return {"runs": runs, "curve": curve} | ({"nanogpt": peer} if peer else {})


def curve_of(process, name):
    """(second, loss) of each printed line that has a loss of this name."""
    return [(second, float(re.search(name + r" ([\d.]+)", line)[1])) for second, line in process.lines if name in line]


def print_report(report):
    """Steps, and the preset's runs."""
    print(machine_line(report))
    table = [["shape", "model", "tokens", "ms", "MB", f"MFU in {report['dtype']}", "x nanoGPT"]]
    for row in report["throughput"]:
        for who in [name for name in ("lookback", "nanoGPT") if name in row]:
            seconds = row[who]["seconds"]
            mfu = utilization(row["tokens"] / seconds, row["flops_per_token"], report["peak_flops"])
            ratio = f"{row['ratio']:.2f}" if who == "lookback" and "ratio" in row else ""
            table.append([row["shape"], who, row["tokens"], f"{seconds * 1e3:.1f}", f"{row[who]['bytes'] / 1e6:.1f}",
                          f"{mfu:.0%}", ratio])
    print(f"\n{benchmark.table(table)}")
    if "runs" not in report:
        return
    middle = statistics.median(run["seconds"] for run in report["runs"])
    table = [[f"{report['settings']['preset']} {report['settings']['flags']}".strip(), "seconds", "validation loss", "MFU"]]
    for run in report["runs"]:
        table.append([f"seed {run['seed']}", f"{run['seconds']:.1f}", f"{run['val_loss']:.4f}", f"{run['mfu']:.0%}"])
    table.append(["median", f"{middle:.1f}", "", ""])
    if peer := report.get("nanogpt"):
        times = f"nanoGPT, {peer['seconds'] / middle:.1f} x as long"
        table.append([times, f"{peer['seconds']:.1f}", f"{peer['curve'][-1][1]:.4f}", ""])
    print(f"\n{benchmark.table(table)}")


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(TrainBench, sys.argv[1:]))
