"""What the measuring tools share: settings, nanoGPT's shapes and model, timed processes, tables, and where results go."""

import contextlib
import inspect
import json
import os
import runpy
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from engine.common.checks import at_least, choose
from engine.common.files import atomic_write
from engine.common.hardware import machine_line
from engine.common.tables import format_table

ROOT = Path(__file__).parents[2]

SHAPES = {  # of nanoGPT's CPU command, its shakespeare_char, GPT-2 (124M), and GPT-2 with nanoGPT's batch
    "small": dict(batch_size=12, block_size=64, n_layer=4, n_head=4, n_embd=128, vocab_size=65),
    "baby": dict(batch_size=16, block_size=256, n_layer=6, n_head=6, n_embd=384, vocab_size=65),
    "gpt2": dict(
        batch_size=1, block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304
    ),
    "gpt2x12": dict(
        batch_size=12, block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304
    ),
}


@dataclass(kw_only=True)
class BenchmarkSettings:
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    out_dir: str = "benchmarks"
    """Where the figures and the plot go."""
    name: str = ""
    """What their files are called."""


@dataclass(kw_only=True)
class ShapeSettings(BenchmarkSettings):
    nanogpt: str = ""
    """A clone of nanoGPT, with its data/shakespeare_char prepared, to compare with; empty: lookback alone."""
    shapes: str = ""
    """Which of nanoGPT's shapes, as small,gpt2: small (its CPU command's), baby (its shakespeare_char), gpt2, gpt2x12."""
    repeats: int = 5
    """Times that each is measured, interleaved."""
    busy: bool = False
    """Measure while another program keeps one core busy."""

    def __post_init__(self):
        at_least(1, self, "repeats")
        for shape in self.shapes.replace(",", " ").split():
            choose("shapes", shape, SHAPES)
        if (
            self.nanogpt
            and not (Path(self.nanogpt) / "data" / "shakespeare_char" / "meta.pkl").exists()
        ):
            raise ValueError(
                f"nanogpt={self.nanogpt} has no data/shakespeare_char/meta.pkl: clone it, run its prepare.py"
            )


def nanogpt_model(folder):
    """What model.py of a clone of nanoGPT defines."""
    return SimpleNamespace(**runpy.run_path(str(Path(folder) / "model.py")))


@contextlib.contextmanager
def background_load(busy):
    """While another program keeps one core busy, if asked for."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if other:
            other.kill()
            other.wait()


def run_timed(command, cwd=ROOT):
    """Run a command: its seconds, its peak memory in MB, and (second, line) of all it prints. ValueError if it fails."""
    start, env = time.perf_counter(), os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    with subprocess.Popen(command, cwd=cwd, env=env, **pipes) as process:
        lines = [(time.perf_counter() - start, line) for line in process.stdout]
        _, status, usage = os.wait4(process.pid, 0)  # as process.wait(), and it tells the memory
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        words = [line.strip() for _, line in lines if line.strip()] or [
            f"exit code {process.returncode}"
        ]
        raise ValueError(f"{shlex.join(map(str, command))} failed: {words[-1]}")
    return (
        time.perf_counter() - start,
        usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024),
        lines,
    )


def mechanism_examples(registry, number, H):
    """name(numbers) -> predicate for all of a registry of predicates.

    A parameter called H is H; others are their defaults, if all have one, or else the number.
    """
    found = {}
    for name, make in registry.items():
        parameters = inspect.signature(make).parameters
        numbers = [parameter.default for parameter in parameters.values()]
        if inspect.Parameter.empty in numbers:
            numbers = [H if parameter == "H" else number for parameter in parameters]
        found[f"{name}({', '.join(map(str, numbers))})" if numbers else name] = make(*numbers)
    return found


def write_report(report, config, tables, device=None):
    """Print tables, write the report to out_dir/<name>_<device>.json, and have it drawn by a process that has matplotlib."""
    print(machine_line(report))
    for rows in tables:
        print(f"\n{format_table(rows)}")
    path = Path(config.out_dir) / (
        f"{config.name}_{device.type}.json" if device else f"{config.name}.json"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps(report, indent=1) + "\n").encode())
    print(f"\n{path} written")
    subprocess.run([sys.executable, "-m", "tools.plot", path.absolute()], cwd=ROOT)
