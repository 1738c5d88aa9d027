"""A comparison decides what people keep: the same seeds, an honest verdict, no run twice."""

from pathlib import Path

import pytest
from conftest import parametrize, refused

import train
from engine import prepare
from engine.errors import UserError
from engine.files import read_json
from engine.settings import parse_settings
from tools import compare
from tools.compare import CompareConfig, judge, main

TINY = """
n_layer = 1
n_head = 2
n_embd = 16
block_size = 16
batch_size = 2
max_iters = 4
eval_iters = 2
"""


@parametrize(
    "losses, baseline, verdict",
    [
        ([1.9, 2.9, 3.9], [2.0, 3.0, 4.01], "better"),  # seeds differ more than the change
        ([2.1, 3.1, 4.1], [2.0, 3.0, 4.01], "worse"),
        ([1.9, 2.9, 3.964], [2.0, 3.0, 4.0], "cannot tell"),  # 3.7 errors, but three seeds
        ([1.0, 1.0, None], [2.0, 2.0, 2.0], "worse"),
        ([2.0, 2.0, 1.0], [None, 2.1, 1.1], "better"),
    ],
)
def test_verdicts(losses, baseline, verdict):
    """Catches losses not paired by seed, a normal interval for three, and a run left out."""
    assert judge(losses, baseline)["verdict"] == verdict


@pytest.fixture(autouse=True)
def presets(poem_here):
    """A tiny run."""
    Path("tiny.toml").write_text('dataset = "poem"\n' + TINY)


def arguments(*more):
    flags = "--preset=tiny.toml", "--seeds=2", "--out_dir=out"
    return parse_settings(CompareConfig, [*flags, *more])


@pytest.fixture
def new_runs(monkeypatch):
    """A function that returns the runs of a comparison, whose loss is seed plus window."""
    runs = []

    def run_train(words, out_dir):
        flags = dict(word.removeprefix("--").split("=") for word in words[1:])
        run = int(flags["seed"]), int(flags.get("window", 0))
        if run == new_runs.stops_at:
            raise KeyboardInterrupt
        if "max_iters" not in flags:  # whether it can begin
            runs.append(run)
        return {"val_loss": sum(run), "seconds": 1}, []

    def new_runs(config):
        runs.clear()
        main(config)
        return [*runs]

    def keep(report, config, tables):
        new_runs.differences = {row["setting"]: row["difference"] for row in tables[0]}

    new_runs.stops_at = None
    monkeypatch.setattr(compare.benchmark, "run_train", run_train)
    monkeypatch.setattr(compare.benchmark, "write_report", keep)
    monkeypatch.setattr(compare.benchmark, "machine_report", lambda device: {})
    monkeypatch.setattr(compare, "machine_line", lambda report: "a machine")
    return new_runs


def test_each_run_once(new_runs):
    """Catches changes that are not interleaved, and a finished run that is run again, or not."""
    config = arguments("--change=--window=8", "--change=--window=2")
    new_runs.stops_at = (1, 8)
    with pytest.raises(KeyboardInterrupt):
        new_runs(config)
    new_runs.stops_at = None
    assert new_runs(config) == [(1, 8), (1, 2)]
    assert new_runs.differences == {"": 0, "--window=8": 8, "--window=2": 2}
    config.seeds = 3
    assert new_runs(config) == [(2, 0), (2, 8), (2, 2)]


def test_old_results_are_not_taken(new_runs, monkeypatch):
    """Catches an old result taken for that of new code, settings, or a text prepared again."""
    monkeypatch.setattr(compare.benchmark, "ROOT", Path.cwd())
    config = arguments("--change=--window=8")
    first = new_runs(config)
    Path("engine").mkdir()
    for name in "train.py", "engine/x.py", "base.toml":
        Path(name).write_text("n_layer = 2")
        assert new_runs(config) == first
    prepare.write_dataset("poem", ["Little Lamb who made thee\n" * 40], "char", "another poem")
    assert new_runs(config) == first
    versions = iter("aaab")
    monkeypatch.setattr(compare, "version_of", lambda config: next(versions))
    with refused("has changed"):
        new_runs(config)


def train_here(command):
    """run_timed for train.py, without starting a process, which takes seconds."""
    try:
        train.train(train.settings(command[2:]))
    except UserError as error:
        raise UserError(f"train.py failed: {error}") from None
    return 1.0, []


def test_runs_of_train(monkeypatch):
    """Catches flags that never reach train.py, a divergence that ends the comparison, and a mistake
    that is taken for a divergence.
    """
    monkeypatch.setattr(compare.benchmark, "run_timed", train_here)
    with refused(r"n_heads.*n_head\b"):
        main(arguments("--change=--n_heads=3"))
    change = "--learning_rate=1e9 --grad_clip=0"
    main(arguments(f"--change={change}", "--flags=--log_interval=1"))
    report = read_json(Path("out/compare.json"))
    table = Path("out/compare.md").read_text()
    assert f"; commit {report['commit']}\n\n| change" in table and "| worse " in table
    assert [(row["setting"], row["diverged"]) for row in report["rows"]] == [(change, 2), ("", 0)]
    losses = {run["val_loss"] for run in report["runs"]}
    assert len(losses) == 3 and None in losses  # two seeds, and those that diverged
    assert [path.suffix for path in Path("out/runs").iterdir()] == [".json"] * 4
