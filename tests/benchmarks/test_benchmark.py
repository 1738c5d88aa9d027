"""Shared by all that measures: timed processes, tables, and where results go."""

import json
import sys

import pytest
import torch

from engine.common import tables
from masks import VISIBLE
from tools.shared import benchmark


def test_timed():
    """Catches lines that arrive at the end, and a process that blocks on a full pipe."""
    code = (
        "import sys, time; print('now'); time.sleep(0.3); "
        "sys.stderr.write(' ' * 10**6); print('later')"
    )
    seconds, lines = benchmark.run_timed([sys.executable, "-c", code])
    (first, now), (second, later) = lines
    assert (now, later.strip()) == ("now\n", "later")
    assert second - first >= 0.3 and seconds >= second


@pytest.mark.parametrize(
    "status, message", [("'first\\nlast words'", "last words"), ("3", "exit code 3")]
)
def test_a_process_that_fails(status, message):
    """Catches a failure that is taken for a result, and a complaint without its last words."""
    with pytest.raises(ValueError, match=f"-c .* failed: {message}$"):
        benchmark.run_timed([sys.executable, "-c", f"import sys; sys.exit({status})"])


@pytest.mark.parametrize("device, name", [("cuda", "x_cuda.json"), (None, "x.json")])
def test_where_results_go(device, name, tmp_path, monkeypatch, capsys):
    """Catches a GPU's figures that overwrite a CPU's, and a result drawn before it is written."""
    drawn = []

    def draw(command, cwd):
        drawn.append(json.loads(command[-1].read_text()))

    monkeypatch.setattr(benchmark.subprocess, "run", draw)
    monkeypatch.setattr(benchmark, "machine_line", lambda report: "a machine")
    report = {"kind": "train"}
    config = benchmark.BenchmarkSettings(out_dir=str(tmp_path / "new"), name="x")
    benchmark.write_report(report, config, [[{"a": 1.5}]], device and torch.device(device))
    assert "| 1.5 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "new" / name).read_text()) == report
    assert drawn == [report]


def test_the_model_of_a_clone(tmp_path):
    """Catches another module that is called model, as ours is."""
    (tmp_path / "model.py").write_text("class GPT: pass\nclass GPTConfig: n = 7\n")
    assert benchmark.nanogpt(tmp_path).GPTConfig.n == 7


def test_table():
    """Catches columns that are out of line, and what is no Markdown table."""
    rows = [{"a": "longer", "long": 1}, {"a": None, "new": 0.1234512}]
    assert tables.format_table(rows).splitlines() == [
        "| a      | long | new     |",
        "| ------ | ---- | ------- |",
        "| longer | 1    |         |",
        "| -      |      | 0.12345 |",
    ]


def test_examples():
    """Catches a mask of a fork's own that is not measured."""
    registry = VISIBLE | {"mine": lambda a, b: (a, b)}
    found = benchmark.mechanism_examples(registry, 3, H=4)
    assert len(found) == len(VISIBLE) + 1
    assert found["mine(3, 3)"] == (3, 3)
    assert found["sliding_window(3)"].window == 3
    assert {"causal", "alibi(4)"} <= found.keys()
