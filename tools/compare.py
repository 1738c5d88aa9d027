"""Is a change to the settings better? The same training with and without it, for several seeds.

    python -m tools.compare [config/x.toml] --change "--qk_norm=False" --change "--score=additive --attention=masked_fill"
    python -m tools.compare config/speedrun_cpu.toml --changes=benchmarks/ablations.toml --seeds=3

Leaves <name>.json, .md and .png in out_dir, and the result of each run in out_dir/runs: a comparison that was stopped goes on
where it was, and one more change or seed costs only its own runs, as long as code, presets and flags are the same.
"""

import json
import math
import shlex
import shutil
import statistics
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from engine.common import tables
from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.files import atomic_write, sha256_of, sha256_of_file
from engine.common.hardware import machine_line, machine_report
from engine.common.settings import leading_presets, parse_settings, peek_setting
from engine.text import dataset
from tools.shared import benchmark

BASELINE = "baseline"
OURS = ("seed", "out_dir", "device", "eval_only")  # settings of train.py that the comparison sets
# Student's t for a two-sided 95% interval and 1, 2, ... degrees of freedom; the last one, for all above, is a bit too large.
T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
)


@dataclass(kw_only=True)
class CompareConfig(benchmark.BenchmarkSettings):
    preset: str = "config/minute.toml"
    """The baseline, a preset of train.py; may also be given first, without --preset=."""
    change: tuple[str, ...] = ()
    """Settings of train.py that differ from the baseline; may be given several times."""
    changes: str = ""
    """A TOML file with more changes, each a line: "what it is" = "--its --settings"."""
    flags: str = ""
    """Settings of train.py for all runs, the baseline's too."""
    seeds: int = 5
    """Runs of each."""
    out_dir: str = "out-compare"
    name: str = "compare"


def read_arguments(argv):
    """A CompareConfig from the command line, where a preset may stand first, and what follows --change begins with --."""
    rest = iter(argv)
    joined = [f"{arg}={next(rest, '')}" if arg in ("--change", "--flags") else arg for arg in rest]
    presets = leading_presets(joined)
    return parse_settings(
        CompareConfig, [*(f"--preset={preset}" for preset in presets), *joined[len(presets) :]]
    )


def main(config):
    """Run what has not been run yet; print and store what all runs say."""
    at_least(1, config, "seeds")
    changes, device, runs_dir = (
        read_changes(config),
        pick_device(config.device),
        Path(config.out_dir) / "runs",
    )
    runs_dir.mkdir(parents=True, exist_ok=True)
    code, data, paths = hash_of_code(config.preset), hash_of_data(config), {}
    for seed in range(config.seeds):
        for name, flags in changes.items():
            about = json.dumps(
                [code, data, config.preset, config.flags, flags, config.device, seed]
            )
            paths[name, seed] = runs_dir / f"{sha256_of([about.encode()])[:16]}.json"
    for name in tqdm(
        changes, "checking the settings", leave=False
    ):  # before hours are spent on others
        if not any(path.exists() for (other, _), path in paths.items() if other == name):
            train(config, changes[name], 0, runs_dir / "check", "--eval_only=True --eval_iters=1")
    for (name, seed), path in tqdm(paths.items(), "training", unit="run"):
        if hash_of_code(config.preset) != code:
            raise ValueError(
                "the code or a preset has changed since the comparison began: start it again"
            )
        if not path.exists():
            atomic_write(
                path, json.dumps(train(config, changes[name], seed, path.with_suffix(""))).encode()
            )
    runs = [
        {"change": name, "seed": seed, **json.loads(path.read_text())}
        for (name, seed), path in paths.items()
    ]
    rows = [summarize(name, flags, runs) for name, flags in changes.items()]
    rows.sort(
        key=lambda row: math.inf if row["difference"] is None else row["difference"], reverse=True
    )
    report = {
        "kind": "compare",
        **machine_report(device),
        "settings": vars(config),
        "rows": rows,
        "runs": runs,
    }
    atomic_write(Path(config.out_dir) / f"{config.name}.md", as_markdown(report).encode())
    benchmark.write_report(report, config, [rows])


def read_changes(config):
    """{what it is: settings}, the baseline first; ValueError if there is nothing to compare it with."""
    changes = (
        tomllib.loads(Path(config.changes).read_text(encoding="utf-8")) if config.changes else {}
    )
    changes |= {flags.replace("--", ""): flags for flags in config.change if flags}
    changes = {name: str(flags) for name, flags in changes.items()}
    if not changes:
        raise ValueError('nothing to compare: give --change "--key=value" or --changes=FILE.toml')
    for flag in shlex.split(" ".join([config.flags, *changes.values()])):
        if flag.split("=")[0].lstrip("-").replace("-", "_") in OURS:
            raise ValueError(f"{flag} is for the comparison to set: leave it out")
    if any(peek_setting(shlex.split(flags), "dataset", "") for flags in changes.values()):
        raise ValueError(
            "--dataset in a change: losses of different texts do not compare; give it in --flags, to all runs"
        )
    return {BASELINE: ""} | changes


def hash_of_code(preset):
    """Of everything that train.py may import, and of the presets in the folder of this one, which may be its base."""
    patterns = (
        (benchmark.ROOT, "*.py"),
        (benchmark.ROOT / "engine", "**/*.py"),
        (Path(preset).parent, "*.toml"),
    )
    return sha256_of(
        path.read_bytes() for folder, pattern in patterns for path in sorted(folder.glob(pattern))
    )


def hash_of_data(config):
    """Of what all runs are trained on."""
    folder = dataset.find_dataset(
        peek_setting([config.preset, *shlex.split(config.flags)], "dataset", "stdlib")
    )  # its default
    return sha256_of_file(folder / ("meta.json" if (folder / "meta.json").exists() else "val.bin"))


def train(config, flags, seed, folder, extra=""):
    """One run of train.py: its last validation loss (None if it diverged), seconds, peak MB, and losses on the way."""
    settings = shlex.split(
        f"--write_tokens=0 --draw_loss=False {config.flags} {flags} {extra} "
        f"--device={config.device} --seed={seed}"
    )
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
    result = {"val_loss": None, "seconds": None, "MB": None}
    try:
        command = [
            sys.executable,
            "train.py",
            config.preset,
            *settings,
            f"--out_dir={folder.absolute()}",
        ]
        result["seconds"], result["MB"], _ = benchmark.run_timed(command)
    except ValueError as error:
        if ": stopped, " not in str(error):
            raise
        tqdm.write(str(error), file=sys.stderr)  # it diverged, which is a result too
    metrics = folder / "metrics.jsonl"
    lines = (
        [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    )
    shutil.rmtree(folder, ignore_errors=True)  # its checkpoints
    if lines and result["seconds"]:
        result["val_loss"] = lines[-1]["val_loss"]
    return result | {
        "curve": [[line["step"], line["train_loss"], line.get("val_loss")] for line in lines]
    }


def judge(losses, baseline):
    """Mean difference, its standard error, half its 95% interval, verdict, of losses paired by seed; None: diverged."""
    found = {"difference": None, "error": None, "margin": None, "verdict": "cannot tell"}
    pairs = [(ours, theirs) for ours, theirs in zip(losses, baseline) if theirs is not None]
    if any(ours is None for ours, _ in pairs):
        return found | {"verdict": "worse"}
    if len(pairs) < 2:
        return found
    differences = [ours - theirs for ours, theirs in pairs]
    mean, error = (
        statistics.mean(differences),
        statistics.stdev(differences) / math.sqrt(len(differences)),
    )
    margin = T95[min(len(differences) - 1, len(T95)) - 1] * error
    verdict = "better" if mean + margin < 0 else "worse" if mean - margin > 0 else "cannot tell"
    return {"difference": mean, "error": error, "margin": margin, "verdict": verdict}


def summarize(name, flags, runs):
    """A row of the table: what the runs of one change say beside the baseline's."""
    mine, baseline = ([run for run in runs if run["change"] == who] for who in (name, BASELINE))
    losses, ended = [run["val_loss"] for run in mine], [run for run in mine if run["seconds"]]
    row = {
        "change": name,
        "setting": flags,
        "loss": None if None in losses else statistics.mean(losses),
    }
    row |= judge(losses, [run["val_loss"] for run in baseline]) | {"diverged": losses.count(None)}
    row["verdict"] = row["verdict"] if flags else ""
    row["seconds"] = statistics.median(run["seconds"] for run in ended) if ended else None
    return row | {"MB": max((run["MB"] for run in ended), default=None)}


def as_markdown(report):
    """The table, and what its columns mean."""
    settings, rows = (
        report["settings"],
        [row | {"setting": f"`{row['setting']}`"} for row in report["rows"]],
    )
    return f"""# Changes to {settings["preset"]} {settings["flags"]}

Validation loss, mean of {settings["seeds"]} seeds; difference from the baseline, seed by seed, its standard error, and half of
its two-sided 95% interval (Student's t). Better or worse: the interval excludes 0 (as it will by chance for one change in
20), or runs diverged that did not in the baseline. Seconds: median of whole processes, interleaved. MB: most resident memory.

{machine_line(report)}

{tables.format_table(rows)}
"""


if __name__ == "__main__":
    with one_line_errors():
        main(read_arguments(sys.argv[1:]))
