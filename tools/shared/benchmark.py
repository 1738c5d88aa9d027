"""Shared by all that measures: settings, shapes of models, timed calls and processes, reports."""

import inspect
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

from engine.errors import UserError, at_least, choose
from engine.files import atomic_write, shell_quote
from engine.machine import pick_device
from engine.published import LLAMA
from engine.settings import read_toml
from model import MODERN, GPTConfig
from tools.shared.measure import measure_seconds
from tools.shared.report import format_table, machine_line, machine_report

ROOT = Path(__file__).parents[2]

NANOGPT = {  # nanoGPT's shapes: its command for a CPU, its shakespeare_char, GPT-2 (124 M)
    "small": dict(block_size=64, n_layer=4, n_head=4, n_embd=128, vocab_size=65),
    "baby": dict(block_size=256, n_layer=6, n_head=6, n_embd=384, vocab_size=65),
    "gpt2": dict(block_size=1024, n_layer=12, n_head=12, n_embd=768, vocab_size=50304),
}
# Llama 2's smallest.
SIZES_7B = dict(block_size=2048, n_layer=32, n_head=32, n_embd=4096, vocab_size=32000)
SHAPES = {name: dict(mlp="gelu", **sizes) for name, sizes in NANOGPT.items()} | {
    "modern_124m": MODERN | dict(optimizer="muon") | read_toml(f"{ROOT}/config/modern_124m.toml"),
    "llama_7b": LLAMA.always | SIZES_7B | dict(mlp_size=11008, tie_weights=False),
}


@dataclass
class BenchmarkSettings:
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    out_dir: str = "benchmarks"
    """The folder for the report and its plot."""
    name: str = ""
    """The name of these two files."""


@dataclass
class ShapeSettings(BenchmarkSettings):
    nanogpt: str = ""
    """A clone of nanoGPT to compare with, its data/shakespeare_char prepared; empty: none."""
    shapes: str = ""
    """Shapes and how many texts at once, as gpt2:12,baby: nanoGPT's small, baby and gpt2; and
    modern_124m and llama_7b, for a GPU. Empty: none."""
    repeats: int = 5
    """Rounds of measurements, interleaved."""

    def __post_init__(self):
        at_least(1, self, "repeats")
        for word in words(self.shapes):
            split_shape(word)
        prepared = Path(self.nanogpt, "data/shakespeare_char/meta.pkl")
        if self.nanogpt and not prepared.exists():
            raise UserError(
                f"nanogpt={self.nanogpt}: {prepared} is missing; clone it, run prepare.py"
            )

    def peer(self, name, device, bias):
        """Return nanoGPT's model of a shape, on the device; None of one that it has not."""
        if not self.nanogpt or name not in NANOGPT:
            return None
        theirs = SimpleNamespace(**runpy.run_path(str(Path(self.nanogpt, "model.py"))))
        return theirs.GPT(theirs.GPTConfig(**NANOGPT[name], bias=bias, dropout=0.0)).to(device)


def new_report(kind, config):
    """Return the device of the settings, and what a report of this kind begins with."""
    device = pick_device(config.device)
    return device, {"kind": kind, **machine_report(device), "settings": dict(vars(config))}


def words(setting):
    """Return the words of a setting, separated by commas."""
    return setting.replace(",", " ").split()


def split_shape(word):
    """Return name and number of texts of a shape such as gpt2:12; gpt2 alone is one text."""
    name, _, texts = word.partition(":")
    choose("shapes", name, SHAPES)
    if not re.fullmatch("[1-9][0-9]*", texts or "1"):
        raise UserError(f"shapes={word}: a number of texts follows the colon, as in {name}:12")
    return name, int(texts or 1)


def model_config(name, **changes):
    """Return the GPTConfig of a shape."""
    settings = SHAPES[name] | changes
    names = settings.keys() & {field.name for field in fields(GPTConfig)}
    return GPTConfig(**{name: settings[name] for name in names})


def time_rounds(functions, repeats, device, calls=1):
    """Time functions in turns: the seconds of the first call of each, and of each its later ones.

    calls: how many follow each other in a round, which has their mean.
    """
    first = [measure_seconds(function, device) for function in functions]
    times = [[] for _ in functions]
    for _ in range(repeats):
        for function, seconds in zip(functions, times):
            together = measure_seconds(lambda: [function() for _ in range(calls)], device)
            seconds.append(together / calls)
    return first, times


def ratio(times, others):
    """Return the median of how many times as long something took in each round."""
    return statistics.median(one / other for one, other in zip(times, others))


def run_timed(command, cwd=ROOT):
    """Run a command. Returns seconds, and (second, line) of all that it printed.

    UserError, with the last line of its output, if it fails.
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
        raise UserError(f"{shell_quote(*command)} failed: {reason}")
    return seconds, lines


def run_train(words, out_dir):
    """Run train.py. Returns its last figures, with the seconds of the process, and its lines."""
    command = [sys.executable, "train.py", *words, f"--out_dir={out_dir}"]
    seconds, lines = run_timed(command)
    last = Path(out_dir, "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    return json.loads(last) | {"seconds": seconds}, lines


def mechanism_examples(registry, number, H):
    """Make one predicate of each kind in a registry: {"name(arguments)": predicate}.

    A parameter H gets the number of heads; of the others the first gets this number, the second
    half of it, and so on.
    """
    examples = {}
    for name, make in registry.items():
        parameters = inspect.signature(make).parameters
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
