"""Shared by all that measures: settings, nanoGPT's shapes, timed processes, and reports."""

import inspect
import json
import os
import runpy
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from engine.common.checks import at_least, choose
from engine.common.files import atomic_write, shell_quote
from engine.common.hardware import machine_line
from engine.common.tables import format_table

ROOT = Path(__file__).parents[2]

GPT2 = dict(block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304)
SHAPES = {  # nanoGPT's CPU command, its shakespeare_char, GPT-2 (124M) with one and twelve texts
    "small": dict(batch_size=12, block_size=64, n_layer=4, n_head=4, n_embd=128, vocab_size=65),
    "baby": dict(batch_size=16, block_size=256, n_layer=6, n_head=6, n_embd=384, vocab_size=65),
    "gpt2": dict(batch_size=1, **GPT2),
    "gpt2x12": dict(batch_size=12, **GPT2),
}


@dataclass(kw_only=True)
class BenchmarkSettings:
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    out_dir: str = "benchmarks"
    """The folder for the report and its plot."""
    name: str = ""
    """The name of these two files."""


@dataclass(kw_only=True)
class ShapeSettings(BenchmarkSettings):
    nanogpt: str = ""
    """A clone of nanoGPT to compare with, its data/shakespeare_char prepared; empty: none."""
    shapes: str = ""
    """Some of small, baby, gpt2 and gpt2x12, nanoGPT's shapes, separated by commas."""
    repeats: int = 5
    """Rounds of measurements, interleaved."""

    def __post_init__(self):
        at_least(1, self, "repeats")
        for name in self.shape_names():
            choose("shapes", name, SHAPES)
        prepared = Path(self.nanogpt, "data", "shakespeare_char", "meta.pkl")
        if self.nanogpt and not prepared.exists():
            raise ValueError(f"nanogpt={self.nanogpt}: {prepared} is missing; run its prepare.py")

    def shape_names(self):
        return self.shapes.replace(",", " ").split()


def nanogpt(folder):
    """Return the classes GPT and GPTConfig of a clone of nanoGPT."""
    return SimpleNamespace(**runpy.run_path(str(Path(folder, "model.py"))))


def run_timed(command, cwd=ROOT):
    """Run a command. Returns seconds, and (second, line) of all that it printed.

    ValueError, with the last line of its output, if it fails.
    """
    start = time.perf_counter()
    env = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    with subprocess.Popen(command, cwd=cwd, env=env, **pipes) as process:
        lines = [(time.perf_counter() - start, line) for line in process.stdout]
    seconds = time.perf_counter() - start
    if process.returncode:
        printed = [line.strip() for _, line in lines if line.strip()]
        reason = printed[-1] if printed else f"exit code {process.returncode}"
        raise ValueError(f"{shell_quote(*command)} failed: {reason}")
    return seconds, lines


def mechanism_examples(registry, number, H):
    """Make one predicate of each kind in a registry: {"name(arguments)": predicate}.

    A parameter H gets the number of heads; the others get their defaults if all have one, else
    this number, a second one half of it, and so on.
    """
    examples = {}
    for name, make in registry.items():
        parameters = inspect.signature(make).parameters
        arguments = [parameter.default for parameter in parameters.values()]
        if inspect.Parameter.empty in arguments:
            numbers = (-(-number // 2**n) for n in range(len(parameters)))
            arguments = [H if parameter == "H" else next(numbers) for parameter in parameters]
        label = f"{name}({', '.join(map(str, arguments))})" if arguments else name
        examples[label] = make(*arguments)
    return examples


def write_report(report, config, tables, device=None):
    """Print the tables, write out_dir/<name>_<device>.json, and draw it.

    A process of its own draws, since matplotlib would take part in what is measured.
    """
    print(machine_line(report))
    for rows in tables:
        print(f"\n{format_table(rows)}")
    suffix = f"_{device.type}" if device else ""
    path = Path(config.out_dir, f"{config.name}{suffix}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps(report, indent=1) + "\n").encode())
    print(f"\n{path} written")
    subprocess.run([sys.executable, "-m", "tools.plot", path.absolute()], cwd=ROOT)
