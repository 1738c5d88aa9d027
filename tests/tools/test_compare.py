"""A comparison decides what people keep: the same seeds, an honest verdict, no run twice."""

import json
from pathlib import Path

import pytest

import train
from engine.text import dataset
from tools import compare
from tools.compare import judge, main, read_arguments, read_changes

TINY = dict(n_layer=1, n_head=2, n_embd=16, block_size=16, batch_size=2, max_iters=4, eval_iters=2)


@pytest.mark.parametrize(
    "losses, baseline, verdict",
    [
        ([1.9, 2.9, 3.9], [2.0, 3.0, 4.01], "better"),  # seeds differ more than the change
        ([2.1, 3.1, 4.1], [2.0, 3.0, 4.01], "worse"),
        ([1.9, 2.9, 3.964], [2.0, 3.0, 4.0], "cannot tell"),  # 3.7 errors, but three seeds
        ([1.0, 1.0, None], [2.0, 2.0, 2.0], "worse"),
        ([2.0, 2.0, 1.0], [None, 2.1, 1.1], "better"),
        ([None, 2.0], [None, 2.1], "cannot tell"),
    ],
)
def test_verdicts(losses, baseline, verdict):
    """Catches losses not paired by seed, a normal interval for three, and a run left out."""
    assert judge(losses, baseline)["verdict"] == verdict


@pytest.fixture
def preset(poem, tmp_path):
    """A tiny run, built on another preset."""
    lines = [f"{key} = {value}" for key, value in TINY.items()]
    (tmp_path / "base.toml").write_text("\n".join(lines))
    (tmp_path / "tiny.toml").write_text(f'base = "base.toml"\ndataset = {json.dumps(poem)}\n')
    return tmp_path / "tiny.toml"


def arguments(preset, *more):
    return read_arguments([str(preset), "--seeds=2", f"--out_dir={preset.parent / 'out'}", *more])


@pytest.fixture
def training(monkeypatch):
    return FakeTraining(monkeypatch)


class FakeTraining:
    """Stands for run_timed: keeps the runs, whose loss is the seed plus what --window is."""

    def __init__(self, monkeypatch):
        self.stops_at = None
        monkeypatch.setattr(compare.benchmark, "run_timed", self)
        monkeypatch.setattr(compare.benchmark, "write_report", self.keep)
        monkeypatch.setattr(compare, "machine_report", lambda device: {})

    def keep(self, report, config, tables):
        self.report = report

    def __call__(self, command):
        flags = dict(flag.removeprefix("--").split("=") for flag in command[3:])
        if flags.get("max_iters") == "0":  # whether it can begin
            Path(flags["out_dir"]).mkdir()
            (Path(flags["out_dir"]) / "metrics.jsonl").write_text('{"val_loss": 5.0}\n')
            return 1.0, []
        self.runs.append((int(flags["seed"]), flags.get("window", "")))
        if len(self.runs) == self.stops_at:
            raise KeyboardInterrupt
        loss = int(flags["seed"]) + float(flags.get("window", 0))
        folder = Path(flags["out_dir"])
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(json.dumps({"val_loss": loss}) + "\n")
        return 1.0, []

    def new_runs(self, config):
        """The runs of a comparison."""
        self.runs = []
        main(config)
        return self.runs


def test_each_run_once(preset, training):
    """Catches changes that are not interleaved, and a finished run that is run again, or not."""
    changes = ["--change=--window=8", "--change=--window=2"]
    training.stops_at = 5
    with pytest.raises(KeyboardInterrupt):
        training.new_runs(arguments(preset, *changes))
    training.stops_at = None
    assert training.new_runs(arguments(preset, *changes)) == [(1, "8"), (1, "2")]
    rows = {row["setting"]: row["difference"] for row in training.report["rows"]}
    assert rows == {"": 0, "--window=8": 8, "--window=2": 2}
    assert {row["seconds"] for row in training.report["rows"]} == {1}
    third_seed = [(2, window) for window in ("", "8", "2")]
    assert training.new_runs(arguments(preset, *changes, "--seeds=3")) == third_seed
    another = arguments(preset, "--change=--window=4", "--seeds=3")
    assert training.new_runs(another) == [(seed, "4") for seed in range(3)]


@pytest.mark.parametrize("what", ["code", "flags", "preset", "data"])
def test_old_results_are_not_taken(what, preset, poem, training, monkeypatch):
    """Catches an old result taken for that of new code, settings, or a text prepared again."""
    config = arguments(preset, "--change=--window=8")
    first = training.new_runs(config)
    if what == "code":
        (preset.parent / "train.py").touch()
        monkeypatch.setattr(compare.benchmark, "ROOT", preset.parent)
    elif what == "data":
        dataset.write_dataset(poem, ["Little Lamb who made thee\n" * 40], "char", "another poem")
    elif what == "flags":
        config.flags = "--hold=0"
    else:
        (preset.parent / "base.toml").write_text("n_layer = 2\n")
    assert training.new_runs(config) == first


def test_code_that_changes_meanwhile(preset, training, monkeypatch):
    """Catches a comparison of two versions of the code that is taken for one of settings."""
    monkeypatch.setattr(compare, "version_of", lambda config: f"version {len(training.runs) // 3}")
    with pytest.raises(ValueError, match="has changed"):
        training.new_runs(arguments(preset, "--change=--window=8"))


def train_here(command):
    """run_timed for train.py, without starting a process, which takes seconds."""
    try:
        train.train(train.settings(command[2:]))
    except FloatingPointError as error:
        raise ValueError(f"train.py failed: {error}") from None
    return 1.0, []


def test_runs_of_train(preset, monkeypatch):
    """Catches flags that never reach train.py, and a divergence that is taken for a failure."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(compare.benchmark, "run_timed", train_here)
    change = "--learning_rate=1e9 --grad_clip=0"
    main(arguments(preset, f"--change={change}", "--flags=--log_interval=1"))
    out = preset.parent / "out"
    report = json.loads((out / "compare.json").read_text())
    worse, baseline = report["rows"]
    assert (worse["change"], worse["diverged"]) == ("learning_rate=1e9 grad_clip=0", 2)
    assert (baseline["verdict"], baseline["diverged"]) == ("", 0)
    first, second = (run for run in report["runs"] if run["change"] == "baseline")
    assert first["val_loss"] != second["val_loss"]
    assert (out / "compare.png").exists()
    assert [path.suffix for path in (out / "runs").iterdir()] == [".json"] * 4


def test_a_setting_that_does_not_exist(preset, monkeypatch):
    """Catches a mistake that is taken for a divergence."""
    monkeypatch.setattr(compare.benchmark, "run_timed", train_here)
    with pytest.raises(ValueError, match="did you mean n_head"):
        main(arguments(preset, "--change=--n_heads=3"))


@pytest.mark.parametrize(
    "more, message",
    [
        ([], "nothing to compare"),
        (["--change=--window=8", "--seeds=0"], "seeds=0"),
        (["--change=--dataset=stdlib"], "losses of different texts do not compare"),
        (["--change=--seed=3"], "for the comparison to set"),
    ],
)
def test_bad_input(more, message, preset, training):
    """Catches bad input that is found after hours."""
    with pytest.raises(ValueError, match=message):
        main(arguments(preset, *more))


def test_the_list_of_ablations():
    """Catches a change in benchmarks/ablations.toml that cannot be read, or has no settings."""
    changes = read_changes(read_arguments(["--changes=benchmarks/ablations.toml"]))
    del changes["baseline"]
    assert len(changes) > 20 and all(flags.startswith("--") for flags in changes.values())
