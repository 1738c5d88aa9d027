"""Is a change to the settings better? The same training with and without it, for several seeds.

    python -m tools.compare [config/x.toml] --change="--qk_norm=False" --change="--mlp=gelu"
    python -m tools.compare config/minute.toml --changes=benchmarks/variants.toml
    python -m tools.compare config/minute.toml --change="--n_layer=4" --flags="--minutes=1"

All runs take as many steps, or with --minutes as much time.

The table has the mean validation loss; the difference from the baseline, seed by seed, its standard
error, and half of its two-sided 95% interval (Student's t). Better or worse: the interval excludes
0, as it will by chance for one change in 20, or runs diverged or crashed that did not in the
baseline. Seconds are the median of whole processes.

Leaves <name>.json and .png in out_dir, adds the table to its <name>.md, with commit, command and
machine, and keeps the result of each run in out_dir/runs: a comparison
that was stopped goes on where it was, and one more change or seed costs only its own runs, as long
as code, presets, data and flags are the same.
"""

import contextlib
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from engine import dataset
from engine.errors import UserError, at_least
from engine.files import atomic_write, read_json, sha256_of
from engine.settings import read_toml
from tools.shared import benchmark
from tools.shared.report import format_table, machine_line
from tools.shared.settings import run

BASELINE = "baseline"
OWN_FLAGS = "--seed", "--out_dir", "--device", "--eval_only"  # set for each run
# Student's t for a two-sided 95% interval and 1, 2, ... degrees of freedom; the last is for more.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16)


@dataclass
class CompareConfig(benchmark.BenchmarkSettings):
    preset: str = "config/minute.toml"
    """The baseline, a preset of train.py; may also be given first, without --preset=."""
    change: tuple[str, ...] = ()
    """Settings of train.py that differ from the baseline; may be given several times."""
    changes: str = ""
    """A TOML file with more changes, each a line: "its name" = "--its --settings"."""
    flags: str = ""
    """Settings of train.py for all runs, the baseline's too."""
    seeds: int = 5
    """Runs of each."""
    out_dir: str = "out-compare"
    name: str = "compare"

    def __post_init__(self):
        at_least(1, self, "seeds")


def main(config):
    """Run what has not been run yet; print and store the differences."""
    changes = read_changes(config)
    _, report = benchmark.new_report("compare", config)
    Path(config.out_dir, "runs").mkdir(parents=True, exist_ok=True)

    version = version_of(config)
    for flags in changes.values():  # a bad setting is found before hours of training
        if not result_path(config, version, flags, 0).exists():
            train(config, f"{flags} --max_iters=0 --eval_iters=1", 0)

    runs = []
    cases = [(seed, name) for seed in range(config.seeds) for name in changes]
    for seed, name in tqdm(cases, "training", unit="run"):
        if version_of(config) != version:
            raise UserError("the code, a preset or the data has changed: start again")
        path = result_path(config, version, changes[name], seed)
        if not path.exists():
            try:
                result = train(config, changes[name], seed)
            except UserError as error:  # it crashed or diverged, which is a result too
                tqdm.write(f"{name}, seed {seed}: {error}", file=sys.stderr)
                result = {"val_loss": None, "seconds": None}
            atomic_write(path, json.dumps(result).encode())
        runs.append({"change": name, "seed": seed, **read_json(path)})

    rows = [summarize(name, flags, runs) for name, flags in changes.items()]
    rows.sort(key=lambda row: -math.inf if row["difference"] is None else -row["difference"])
    report |= {"rows": rows, "runs": runs}
    report["commit"] = commit()
    with open(Path(config.out_dir, f"{config.name}.md"), "a", encoding="utf-8") as file:
        about = f"{machine_line(report)}; commit {report['commit']}"
        file.write(f"{about}\n\n{format_table(rows)}\n\n")
    benchmark.write_report(report, config, [rows])


def commit():
    """The commit of the code, with -dirty after a change to it; nothing without git."""
    command = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        return subprocess.run(
            command, cwd=benchmark.ROOT, capture_output=True, encoding="utf-8"
        ).stdout.strip()


def read_changes(config):
    """{name: settings}, the baseline first; UserError for settings that cannot be compared."""
    changes = {BASELINE: ""} | (read_toml(config.changes) if config.changes else {})
    changes |= {flags.replace("--", ""): flags for flags in config.change}
    if len(changes) == 1:
        raise UserError('nothing to compare: give --change="--key=value" or --changes=FILE.toml')
    for flags in changes.values():
        for flag in shlex.split(f"{config.flags} {flags}"):
            if flag.startswith(OWN_FLAGS):
                raise UserError(f"{flag} is for the comparison to set: leave it out")
        if "--dataset" in flags:
            raise UserError("losses of different texts do not compare: give --dataset in --flags")
    return changes


def version_of(config):
    """A hash of all that may change a result: train.py and its imports, presets and dataset."""
    rooms = "*.py", "engine/**/*.py", "variants/*.py"
    paths = [path for room in rooms for path in benchmark.ROOT.glob(room)]
    paths += Path(config.preset).parent.glob("*.toml")  # one of them may be its base
    names = [read_toml(config.preset).get("dataset", "stdlib")]
    names += re.findall(r"--dataset[= ](\S+)", config.flags)
    paths += dataset.find_dataset(names[-1]).glob("meta.*")
    return sha256_of(path.read_bytes() for path in sorted(paths))


def result_path(config, version, flags, seed):
    """The file for the result of one run."""
    about = [version, config.preset, config.flags, flags, config.device, seed]
    name = sha256_of([json.dumps(about).encode()])[:16]
    return Path(config.out_dir, "runs", f"{name}.json")


def train(config, flags, seed):
    """Run train.py once: its last validation loss and seconds; UserError if it fails."""
    words = [config.preset, *shlex.split(f"{config.flags} {flags}")]
    words += [f"--device={config.device}", f"--seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        last, _ = benchmark.run_train(words, folder)
    return {name: last.get(name) for name in ("val_loss", "seconds")}


def summarize(name, flags, runs):
    """A row of the table: the runs of one change beside the baseline's."""
    mine = [run for run in runs if run["change"] == name]
    baseline = [run["val_loss"] for run in runs if run["change"] == BASELINE]
    losses = [run["val_loss"] for run in mine]
    seconds = [run["seconds"] for run in mine if run["seconds"]]
    mean = None if None in losses else statistics.mean(losses)
    row = {"change": name, "setting": flags, "loss": mean, **judge(losses, baseline)}
    if not flags:
        row["verdict"] = ""
    row["diverged"] = losses.count(None)
    row["seconds"] = statistics.median(seconds) if seconds else None
    return row


def judge(losses, baseline):
    """Compare losses that are paired by seed; None: diverged.

    Returns the mean difference, its standard error, half its 95% interval, and the verdict.
    """
    row = {"difference": None, "error": None, "margin": None, "verdict": "cannot tell"}
    pairs = [(ours, theirs) for ours, theirs in zip(losses, baseline) if theirs is not None]
    if any(ours is None for ours, _ in pairs):
        return row | {"verdict": "worse"}
    if len(pairs) < 2:
        return row
    differences = [ours - theirs for ours, theirs in pairs]
    mean = statistics.mean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    degrees = min(len(differences) - 1, len(T95))
    margin = T95[degrees - 1] * error
    if abs(mean) > margin:
        row["verdict"] = "better" if mean < 0 else "worse"
    return row | {"difference": mean, "error": error, "margin": margin}


if __name__ == "__main__":
    run(main, CompareConfig, "preset")
