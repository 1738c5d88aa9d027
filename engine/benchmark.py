"""What the measuring tools share: settings, nanoGPT's shapes and model, timed processes, and where results go."""

import importlib.util
import inspect
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.files import publish

ROOT = Path(__file__).parents[1]

SHAPES = {  # of nanoGPT's CPU command, its shape for shakespeare_char, GPT-2 (124M), and GPT-2 with nanoGPT's batch
    "small": dict(batch_size=12, block_size=64, n_layer=4, n_head=4, n_embd=128, vocab_size=65),
    "baby": dict(batch_size=16, block_size=256, n_layer=6, n_head=6, n_embd=384, vocab_size=65),
    "gpt2": dict(batch_size=1, block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304),
    "gpt2x12": dict(batch_size=12, block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304),
}


@dataclass(kw_only=True)
class Settings:
    """What every benchmark can be told."""

    device: str = "auto"
    """auto, cpu, cuda or mps."""
    out_dir: str = "benchmarks"
    """Where the figures and the plot go."""
    name: str = ""
    """What their files are called, with the device added."""


@dataclass(kw_only=True)
class ShapeSettings(Settings):
    """What a benchmark beside nanoGPT can be told."""

    nanogpt: str = ""
    """A clone of nanoGPT, with its data/shakespeare_char prepared, to compare with; empty: lookback alone."""
    shapes: str = ""
    """Which of nanoGPT's shapes: small (its CPU command's), baby (its shakespeare_char), gpt2 (124M), gpt2x12 (its batch)."""

    def __post_init__(self):
        for shape in self.shape_names():
            if shape not in SHAPES:
                raise ValueError(f"shapes={self.shapes}: {shape} is unknown, choose from {', '.join(SHAPES)}")
        if self.nanogpt and not (Path(self.nanogpt) / "model.py").exists():
            raise ValueError(f"nanogpt={self.nanogpt} has no model.py: clone nanoGPT and give its folder")

    def shape_names(self):
        """The shapes as a list."""
        return [shape for shape in self.shapes.split(",") if shape]

    def check_prepared(self, file):
        """ValueError if nanoGPT's data/shakespeare_char lacks this file."""
        if self.nanogpt and not (Path(self.nanogpt) / "data" / "shakespeare_char" / file).exists():
            raise ValueError(f"nanogpt={self.nanogpt} has no data/shakespeare_char/{file}: run its prepare.py there")


def nanogpt_model(folder):
    """model.py of a clone of nanoGPT, as a module of its own name."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(folder) / "model.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Process(NamedTuple):
    """A process that has ended well."""

    seconds: float
    peak_bytes: int
    """Its largest resident memory."""
    lines: list
    """(seconds since its start, line) of all that it printed."""


def timed(command, cwd=ROOT):
    """Run a command to its end and return it as a Process; ValueError with its last words if it fails.

    Linux counts the peak memory of the process that starts another into the other's own. So a caller that wants peak_bytes
    must not have held more memory itself, as roofline.machine does.
    """
    start, lines = time.perf_counter(), []
    env = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}  # lines arrive when they are printed
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:  # a pipe that nobody reads would fill up
        with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", env=env) as process:
            try:
                for line in process.stdout:
                    lines.append((time.perf_counter() - start, line))
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:  # also Ctrl-C
                process.kill()
                raise
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        errors.seek(0)
        words = errors.read().strip().splitlines() or [f"exit code {process.returncode}"]
    if process.returncode:
        raise ValueError(f"{shlex.join(map(str, command))} failed: {words[-1]}")
    return Process(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), lines)


def examples(registry, number, **known):
    """name(numbers) -> predicate for all of a registry of predicates; each number that is not known is the same."""
    found = {}
    for name, make in registry.items():
        numbers = known.get(name, [number] * len(inspect.signature(make).parameters))
        found[f"{name}({', '.join(map(str, numbers))})" if numbers else name] = make(*numbers)
    return found


def table(rows):
    """Rows of cells, the first of them the head, as a Markdown table with aligned columns."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths))} |" for row in rows)


def store(report, out_dir, name, device=None):
    """Write a report to out_dir/<name>_<device>.json and have it drawn beside it.

    The plot is made by another process, so that the one that measures never imports matplotlib.
    """
    if device is not None:
        words = "cpu" if device.type == "cpu" else report["device"].lower()
        name += "_" + "".join(letter if letter.isalnum() else "_" for letter in words)
    path = Path(out_dir) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, (json.dumps(report, indent=1) + "\n").encode())
    print(f"\n{path} written")
    subprocess.run([sys.executable, "-m", "tools.plot", path.absolute()], cwd=ROOT)
