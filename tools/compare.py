"""Is a change to the settings better? The same training with and without it, for several seeds.

    python -m tools.compare [config/x.toml] --change "--qk_norm=False" --change "--score=additive --attention=masked_fill"
    python -m tools.compare config/speedrun_cpu.toml --changes=benchmarks/ablations.toml --seeds=3

Runs train.py for the baseline and for each change, interleaved, seed by seed; prints a table, and leaves <name>.json, .md
and .png in out_dir. A finished run is kept in runs_dir and not run again as long as its settings, the code and the data are
the same. So a comparison that was stopped goes on where it was, and one more change or seed costs only its own runs.
"""

import json
import math
import re
import shlex
import statistics
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from tqdm import tqdm

from engine import benchmark, configure, dataset
from engine.files import publish, sha256_of
from engine.roofline import machine, machine_line

BASELINE = "baseline"
OURS = ("seed", "out_dir", "device", "eval_only")  # settings of train.py that the comparison sets
# Student's t for a two-sided 95% interval and 1, 2, ... degrees of freedom; the last one, for all above, is a bit too large.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


@dataclass(kw_only=True)
class CompareConfig(benchmark.Settings):
    preset: str = "config/minute.toml"
    """The baseline, a preset of train.py; may also be given first, without --preset=."""
    change: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Settings of train.py that differ from the baseline; may be given several times."""
    changes: str = ""
    """A TOML file with more changes, each a line: "what it is" = "--its --settings"."""
    only: str = ""
    """Of all changes, those whose name contains this text."""
    flags: str = ""
    """Settings of train.py for all runs, the baseline's too."""
    seeds: int = 5
    """Runs of each."""
    runs_dir: str = "out-compare/runs"
    """Finished runs are kept here."""
    out_dir: str = "out-compare"
    """Where the table, the figures and the plot go."""
    name: str = "compare"
    """What their files are called."""

    def __post_init__(self):
        if self.seeds < 2:
            raise ValueError(f"seeds={self.seeds} must be at least 2: one run has no spread to compare with")


def read_arguments(argv):
    """A CompareConfig from the command line, where a preset may stand first, and what follows --change begins with --."""
    if argv and argv[0].endswith(".toml") and not argv[0].startswith("-"):
        argv = [f"--preset={argv[0]}", *argv[1:]]
    joined, rest = [], iter(argv)
    for arg in rest:
        joined.append(f"{arg}={next(rest, '')}" if arg in ("--change", "--flags") else arg)
    return configure.parse(CompareConfig, joined)


def main(config):
    """Run what has not been run yet; print and store what all runs say."""
    changes, code, device = read_changes(config), hash_of_code(), configure.pick_device(config.device)
    runs_dir = Path(config.runs_dir)
    runs_dir.mkdir(parents=True, exist_ok=True)
    places = [(seed, name) for seed in range(config.seeds) for name in changes]
    paths = {(seed, name): runs_dir / f"{identity(config, changes[name], seed, code)}.json" for seed, name in places}
    missing = [place for place in places if not paths[place].exists()]
    new = [name for name in changes if name != BASELINE and all((seed, name) in missing for seed in range(config.seeds))]
    for name in tqdm(new, "checking the settings", unit="change", leave=False):  # before hours are spent on other changes
        train(config, changes[name], 0, "--eval_only=True --eval_iters=1")
    with tqdm(desc="training", unit="run", total=len(places), initial=len(places) - len(missing)) as bar:
        for seed, name in missing:
            bar.set_postfix_str(f"seed {seed}, {name}")
            if hash_of_code() != code:
                raise ValueError("the code has changed since the comparison began: start it again")
            publish(paths[seed, name], json.dumps(train(config, changes[name], seed)).encode())
            bar.update()
    runs = [{"change": name, "seed": seed, **json.loads(paths[seed, name].read_text())} for seed, name in places]
    report = {  # machine() comes last, see benchmark.timed
        "kind": "compare", **machine(device), "settings": vars(config), "rows": summarize(changes, runs), "runs": runs,
    }
    text = as_markdown(report)
    print(text)
    benchmark.store(report, config.out_dir, config.name)
    publish(Path(config.out_dir) / f"{config.name}.md", text.encode())


def read_changes(config):
    """{what it is: settings}, the baseline first; ValueError if there is nothing to compare it with."""
    changes = {}
    if config.changes:
        try:
            changes = tomllib.loads(Path(config.changes).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{config.changes} is not TOML: {error}") from None
    changes |= {flags.replace("--", ""): flags for flags in config.change if flags}
    changes = {name: flags for name, flags in changes.items() if config.only in name}
    if not changes:
        raise ValueError('nothing to compare: give --change "--key=value" or --changes=FILE.toml (and an --only that fits)')
    for name, flags in [("--flags", config.flags), *changes.items()]:
        if not isinstance(flags, str):
            raise ValueError(f'{config.changes}: {name} = {flags!r} must be a string, such as "--window=0"')
        for flag in shlex.split(flags):
            if flag.split("=")[0].lstrip("-").replace("-", "_") in OURS:
                raise ValueError(f"{name}: {flag} is for the comparison to set: leave it out")
    return {BASELINE: ""} | changes


class AnySetting:
    """Stands for the names of train.py's settings, which no tool imports; train.py itself checks them."""

    def __contains__(self, name):
        return True


def identity(config, flags, seed, code):
    """A name for a run that stays the same as long as its settings, the code, PyTorch and the data do."""
    preset, flags = configure.read_preset(config.preset, AnySetting()), shlex.split(f"{config.flags} {flags}")
    data = [preset.get("dataset", "stdlib"), *(flag.split("=", 1)[1] for flag in flags if flag.startswith("--dataset="))]
    meta = dataset.find(data[-1]) / "meta.json"
    parts = [sorted(preset.items()), flags, seed, config.device, code, torch.__version__]
    return sha256_of([json.dumps(parts).encode(), meta.read_bytes() if meta.exists() else b""])[:16]


def hash_of_code():
    """Of everything that train.py may import."""
    return sha256_of(path.read_bytes() for path in sorted([*benchmark.ROOT.glob("*.py"), *benchmark.ROOT.glob("engine/*.py")]))


def train(config, flags, seed, extra=""):
    """One run of train.py: its last validation loss (None if it diverged), seconds, peak bytes, and losses on the way."""
    result = {"val_loss": None, "seconds": None, "bytes": None}
    with tempfile.TemporaryDirectory(dir=config.runs_dir) as folder:
        settings = shlex.split(f"--write_tokens=0 {config.flags} {flags} {extra} --device={config.device} --seed={seed}")
        try:
            process = benchmark.timed([sys.executable, "train.py", config.preset, *settings, f"--out_dir={folder}"])
            result |= {"seconds": process.seconds, "bytes": process.peak_bytes}
        except ValueError as error:
            if not re.search(r"at step \d+: stopped, ", str(error)):
                raise
            tqdm.write(str(error), file=sys.stderr)  # it diverged, which is a result too
        metrics = Path(folder) / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    if lines and result["seconds"]:
        result["val_loss"] = lines[-1]["val_loss"]
    return result | {"curve": [[line["step"], line["train_loss"], line.get("val_loss")] for line in lines]}


def judge(losses, baseline):
    """(mean difference, its standard error, half its 95% interval, verdict) of losses paired by seed; None: diverged."""
    if any(ours is None and theirs is not None for ours, theirs in zip(losses, baseline)):
        return None, None, None, "worse"
    differences = [ours - theirs for ours, theirs in zip(losses, baseline) if None not in (ours, theirs)]
    if len(differences) < 2:
        return None, None, None, "cannot tell"
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    margin = T95[min(len(differences) - 1, len(T95)) - 1] * error
    verdict = "better" if mean + margin < 0 else "worse" if mean - margin > 0 else "cannot tell"
    return mean, error, margin, verdict


def summarize(changes, runs):
    """A row of the table for each change, the worst first."""
    of_change = {name: [run for run in runs if run["change"] == name] for name in changes}
    losses = {name: [run["val_loss"] for run in mine] for name, mine in of_change.items()}
    rows = []
    for name, mine in of_change.items():
        diverged, ended = losses[name].count(None), [run for run in mine if run["seconds"]]
        difference, error, margin, verdict = judge(losses[name], losses[BASELINE])
        rows.append({
            "change": name, "setting": changes[name], "loss": None if diverged else statistics.mean(losses[name]),
            "difference": difference, "error": error, "margin": margin, "verdict": "" if name == BASELINE else verdict,
            "diverged": diverged, "seconds": statistics.median(run["seconds"] for run in ended) if ended else None,
            "bytes": max((run["bytes"] for run in ended), default=None),
        })
    return sorted(rows, key=lambda row: math.inf if row["difference"] is None else row["difference"], reverse=True)


def as_markdown(report):
    """The table, and what its columns mean."""
    settings, rows = report["settings"], [("change", "setting", "loss", "difference", "error", "verdict", "seconds", "MB")]
    for row in report["rows"]:
        diverged = f" ({row['diverged']} of {settings['seeds']} diverged)" if row["diverged"] else ""
        size = row["bytes"] / 1e6 if row["bytes"] else None
        rows.append((
            row["change"], f"`{row['setting']}`" if row["setting"] else "", number(row["loss"], ".4f") + diverged,
            number(row["difference"], "+.4f"), number(row["error"], ".4f"), row["verdict"], number(row["seconds"], ".1f"),
            number(size, ".0f"),
        ))
    return "\n".join([
        f"# Changes to {settings['preset']}" + (f" with {settings['flags']}" if settings["flags"] else ""), "",
        f"Validation loss at the end of training: the mean of {settings['seeds']} seeds, and its difference from the baseline",
        "with the same seeds, with its standard error. Better or worse: the two-sided 95% interval of Student's t for the",
        "differences excludes 0 (as it will, by chance, for one in 20 changes without any effect), or runs diverged that did",
        "not in the baseline. Seconds: median of the whole process, runs interleaved. MB: its peak resident memory.", "",
        machine_line(report), "", benchmark.table(rows), "",
    ])


def number(value, form):
    return "nan" if value is None else format(value, form)


if __name__ == "__main__":
    with configure.one_line_errors():
        main(read_arguments(sys.argv[1:]))
