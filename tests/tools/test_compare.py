"""A comparison decides what people keep: the same seeds, an honest verdict, and nothing that is run twice or not at all."""

import json
import math
import shlex
from pathlib import Path

import pytest
from conftest import complaint, run_here

import train
from engine.text import dataset
from tools import compare
from tools.compare import T95, as_markdown, judge, main, read_arguments, read_changes, summarize

TINY = "--n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=2 --max_iters=4 --eval_iters=2 --log_interval=2"


@pytest.mark.parametrize("degrees, t", list(enumerate(T95, start=1)))
def test_the_quantiles(degrees, t):
    """Catches a number that was copied wrong: Student's density, integrated from 0 to t, must be 0.475."""
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    steps = 20_000
    middles = ((n + 0.5) * t / steps for n in range(steps))
    area = sum(scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2) for x in middles) * t / steps
    assert area == pytest.approx(0.475, abs=3e-5)


@pytest.mark.parametrize(
    "losses, baseline, verdict",
    [
        (
            [1.9, 2.9, 3.9],
            [2.0, 3.0, 4.01],
            "better",
        ),  # paired: the seeds differ more than the change
        ([2.1, 3.1, 4.1], [2.0, 3.0, 4.01], "worse"),
        (
            [1.9, 2.9, 3.98],
            [2.0, 3.0, 4.0],
            "cannot tell",
        ),  # 2.75 standard errors, but only three seeds
        ([1.9, 2.0], [2.0, 2.2], "cannot tell"),
        ([1.9, 1.9], [2.0, 2.0], "better"),
        ([2.0, 2.0], [2.0, 2.0], "cannot tell"),
        ([1.0, 1.0, None], [2.0, 2.0, 2.0], "worse"),
        ([None, None], [2.0, 2.0], "worse"),
        ([2.0, 2.0, 1.0], [None, 2.1, 1.1], "better"),
        ([2.0, 2.0], [None, 2.1], "cannot tell"),
        ([None, 2.0], [None, 2.1], "cannot tell"),
    ],
)
def test_verdicts(losses, baseline, verdict):
    """Catches losses that are not paired by seed, a normal interval for three seeds, and a diverged run that is left out."""
    mean, error, margin, found = judge(losses, baseline).values()
    assert found == verdict
    differences = [a - b for a, b in zip(losses, baseline) if None not in (a, b)]
    if mean is not None:
        assert mean == pytest.approx(sum(differences) / len(differences)) and margin >= error


def test_the_table():
    """Catches a diverged run that is not named, a mean over what is left of it, and rows in no order."""
    losses = {"baseline": [2.0, 2.2], "good": [1.9, 2.1], "bad": [2.5, None]}
    runs = [
        {
            "change": name,
            "seed": seed,
            "val_loss": loss,
            "seconds": loss and 10.0 + seed,
            "MB": loss and 300.0,
            "curve": [],
        }
        for name, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    rows = [
        summarize(name, flags, runs)
        for name, flags in {"bad": "--b=1", "baseline": "", "good": "--a=1"}.items()
    ]
    machine = dict(
        device="x",
        threads=1,
        gb_per_s=1,
        gflops={},
        torch="2",
        date="today",
        command="python -m tools.compare",
    )
    text = as_markdown(
        {"settings": {"preset": "x.toml", "seeds": 2, "flags": ""}, "rows": rows, **machine}
    )
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    head = [
        "change",
        "setting",
        "loss",
        "difference",
        "error",
        "margin",
        "verdict",
        "diverged",
        "seconds",
        "MB",
    ]
    rows = [dict(zip(cells[0], row)) for row in cells[2:]]
    assert cells[0] == head and [row["diverged"] for row in rows] == ["1", "0", "0"]
    assert [row["loss"] for row in rows] == ["-", "2.1", "2"] and [
        row["verdict"] for row in rows
    ] == ["worse", "", "better"]
    assert [row["difference"] for row in rows] == ["-", "0", "-0.1"]
    assert [row["seconds"] for row in rows] == ["10", "10.5", "10.5"]
    assert [row["setting"] for row in rows] == ["`--b=1`", "``", "`--a=1`"] and rows[0][
        "MB"
    ] == "300"


@pytest.fixture
def preset(poem, tmp_path):
    """A tiny run, built on another preset."""
    settings = [flag.removeprefix("--").split("=") for flag in shlex.split(TINY)]
    (tmp_path / "base.toml").write_text("\n".join(f"{key} = {value}" for key, value in settings))
    (tmp_path / "tiny.toml").write_text(f'base = "base.toml"\ndataset = {json.dumps(poem)}\n')
    return tmp_path / "tiny.toml"


def arguments(preset, *more):
    folder = preset.parent / "out"
    return read_arguments([str(preset), "--seeds=2", f"--out_dir={folder}", *more])


class FakeTraining:
    """Stands for benchmark.run_timed: what train.py was asked for, and a loss that is the seed plus what --window is."""

    def __init__(self, monkeypatch):
        self.asked, self.stops_at = [], None
        monkeypatch.setattr(compare.benchmark, "run_timed", self)
        monkeypatch.setattr(
            compare.benchmark,
            "write_report",
            lambda report, config, tables: self.reports.append(report),
        )
        monkeypatch.setattr(compare, "machine_report", lambda device: {})
        monkeypatch.setattr(compare, "machine_line", lambda report: "a machine")
        self.reports = []

    def __call__(self, command):
        flags = dict(flag.removeprefix("--").split("=") for flag in command[3:])
        if "eval_only" not in flags:
            self.asked.append((int(flags["seed"]), flags.get("window", "")))
            if len(self.asked) == self.stops_at:
                raise KeyboardInterrupt
            line = {
                "step": 4,
                "train_loss": 1.0,
                "val_loss": int(flags["seed"]) + float(flags.get("window", 0)),
            }
            Path(flags["out_dir"]).mkdir()
            (Path(flags["out_dir"]) / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return 1.0, 100.0, []


def test_what_is_run(preset, monkeypatch):
    """Catches changes that are not interleaved, seeds that differ, and a finished run that is run again or not."""
    training, changes = (
        FakeTraining(monkeypatch),
        ["--change", "--window=8", "--change", "--window=2"],
    )
    everything = [(seed, window) for seed in (0, 1) for window in ("", "8", "2")]
    training.stops_at = 5
    with pytest.raises(KeyboardInterrupt):
        main(arguments(preset, *changes))
    training.stops_at, training.asked = None, []
    main(arguments(preset, *changes))
    assert training.asked == everything[4:]
    rows = {row["setting"]: row["difference"] for row in training.reports[-1]["rows"]}
    assert rows == {"": 0, "--window=8": 8, "--window=2": 2}
    assert "| --window=8" not in (preset.parent / "out" / "compare.md").read_text()
    training.asked = []
    main(arguments(preset, *changes, "--seeds=3"))
    assert training.asked == [(2, window) for window in ("", "8", "2")]
    training.asked = []
    main(arguments(preset, "--change=--window=4", "--seeds=3"))  # the baseline is known
    assert training.asked == [(seed, "4") for seed in range(3)]


@pytest.mark.parametrize("what", ["code", "flags", "preset", "data"])
def test_what_makes_a_run_another_one(what, preset, poem, monkeypatch):
    """Catches an old result that is taken for that of new code, new settings, or a text that was prepared again."""
    training, more = FakeTraining(monkeypatch), []
    main(arguments(preset, "--change=--window=8"))
    count = len(training.asked)
    if what == "code":
        monkeypatch.setattr(compare, "hash_of_code", lambda preset: "another")
    elif what == "data":
        dataset.write_dataset(poem, ["Little Lamb who made thee\n" * 40], "char", "another poem")
    elif what == "flags":
        more = ["--flags", "--hold=0"]
    else:
        (preset.parent / "base.toml").write_text("n_layer = 2\n")
    main(arguments(preset, "--change=--window=8", *more))
    assert len(training.asked) == 2 * count


def test_code_that_changes_meanwhile(preset, monkeypatch):
    """Catches a comparison of two versions of the code that is taken for one of two settings."""
    training = FakeTraining(monkeypatch)
    monkeypatch.setattr(
        compare, "hash_of_code", lambda preset: f"version {len(training.asked) // 3}"
    )
    with pytest.raises(ValueError, match="the code or a preset has changed"):
        main(arguments(preset, "--change=--window=8"))


def train_here(command):
    """benchmark.run_timed for train.py, without starting a process, which takes seconds."""
    try:
        train.train(train.settings(command[2:]))
    except FloatingPointError as error:
        raise ValueError(f"train.py failed: {error}") from None
    return 1.0, 100.0, []


def test_runs_of_train(preset, monkeypatch):
    """Catches flags that never reach train.py, a divergence that ends all or is taken for a failure, and missing files."""
    monkeypatch.setattr(compare.benchmark, "run_timed", train_here)
    main(
        arguments(
            preset, "--change", "--learning_rate=1e9 --grad_clip=0", "--flags", "--log_interval=1"
        )
    )
    out = preset.parent / "out"
    report = json.loads((out / "compare.json").read_text())
    assert next(iter(report)) == "kind" and [row["verdict"] for row in report["rows"]] == [
        "worse",
        "",
    ]
    assert report["rows"][0]["diverged"] == 2 and report["rows"][1]["diverged"] == 0
    baseline = [run for run in report["runs"] if run["change"] == "baseline"]
    assert [[step for step, *_ in run["curve"]] for run in baseline] == [[1, 2, 3, 4]] * 2
    assert baseline[0]["val_loss"] == baseline[0]["curve"][-1][2] != baseline[1]["val_loss"]
    assert (
        "| learning_rate=1e9 grad_clip=0 | `--learning_rate=1e9 --grad_clip=0` | -"
        in (out / "compare.md").read_text()
    )
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((out / "runs").iterdir())) == 4  # no checkpoints are left


def test_a_run_in_a_process(preset):
    """Catches a process that is started with other settings than it was asked for, and memory of another process."""
    config = arguments(preset)
    found = compare.train(config, "--max_iters=3", 1, preset.parent / "run")
    assert [step for step, *_ in found["curve"]] == [2, 3] and found["val_loss"] == found["curve"][
        -1
    ][2]
    assert (
        100 < found["MB"] < 2000 and not (preset.parent / "run").exists() and found["seconds"] > 0.1
    )


def test_a_run_that_fails(preset):
    """Catches a setting that does not exist and is found after hours, and a failure that is taken for a divergence."""
    with pytest.raises(ValueError, match="did you mean n_head") as error:
        main(arguments(preset, "--change", "--n_heads=3"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "more, message",
    [
        ([], "nothing to compare"),
        (["--change=--window=8", "--seeds=0"], "seeds=0"),
        (["--changes=none.toml"], "none.toml"),
        (["--change", "--dataset=stdlib"], "losses of different texts do not compare"),
        (["--change", "--seed=3"], "for the comparison to set"),
        (["--change=--out-dir=x"], "for the comparison to set"),
        (["--change", "--start='a"], "quotation"),
        (["--changes=README.md"], "at line 3"),
    ],
)
def test_bad_input(more, message, preset, monkeypatch):
    """Catches bad input that is found after hours, or that ends in a traceback."""
    FakeTraining(monkeypatch)
    with pytest.raises((ValueError, OSError)) as error:
        main(arguments(preset, *more))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_no_traceback():
    """Catches a script that does not say in one line what is wrong."""
    assert "nothing to compare" in complaint(run_here("-m", "tools.compare", "config/minute.toml"))


def test_the_list_of_ablations():
    """Catches a change in benchmarks/ablations.toml that cannot be read, or that has lost its settings."""
    changes = read_changes(read_arguments(["--changes=benchmarks/ablations.toml"]))
    assert len(changes) > 20 and all(
        flags.startswith("--") for name, flags in changes.items() if name != "baseline"
    )
