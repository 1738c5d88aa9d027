"""What the measuring tools share: processes that are timed, tables, and where results go."""

import json
import sys

import pytest
import torch

from engine import benchmark
from masks import VISIBLE


def test_timed():
    """Catches lines that arrive only at the end, a process that blocks on a full pipe, and memory of another process."""
    words = "print('now'); x = bytearray(10**9); time.sleep(0.3); sys.stderr.write(' ' * 10**6); print('later')"
    process = benchmark.timed([sys.executable, "-c", f"import sys, time; {words}"])
    (first, now), (second, later) = process.lines
    assert (now, later) == ("now\n", "later\n") and second - first >= 0.3 and process.seconds >= second
    assert 1.0e9 < process.peak_bytes < 1.5e9


def test_a_process_that_fails():
    """Catches a failure that is taken for a result, and a complaint without the command and its last words."""
    with pytest.raises(ValueError, match="-c .* failed: last words$"):
        benchmark.timed([sys.executable, "-c", "import sys; sys.exit('first\\nlast words')"])
    with pytest.raises(ValueError, match="failed: exit code 3"):
        benchmark.timed([sys.executable, "-c", "import sys; sys.exit(3)"])


@pytest.mark.parametrize("device, name", [("cpu", "x_cpu.json"), ("cuda", "x_nvidia_h200.json"), (None, "x.json")])
def test_where_results_go(device, name, tmp_path, monkeypatch):
    """Catches a GPU's figures that overwrite a CPU's, and a result that is drawn before it is written."""
    drawn = []
    monkeypatch.setattr(benchmark.subprocess, "run", lambda command, cwd: drawn.append(json.loads(command[-1].read_text())))
    report = {"kind": "train", "device": "NVIDIA H200"}
    benchmark.store(report, tmp_path / "new", "x", torch.device(device) if device else None)
    assert json.loads((tmp_path / "new" / name).read_text()) == report and drawn == [report]


def test_table():
    """Catches columns that are out of line, and what is no Markdown table."""
    assert benchmark.table([["a", "long"], ["longer", 1]]).splitlines() == [
        "| a      | long |", "| ------ | ---- |", "| longer | 1    |",
    ]


def test_examples():
    """Catches a mask, added by whoever forks this, that is not measured."""
    found = benchmark.examples(VISIBLE | {"mine": lambda a, b: (a, b)}, 3, alibi=[4])
    assert len(found) == len(VISIBLE) + 1 and found["mine(3, 3)"] == (3, 3)
    assert {"causal", "sliding_window(3)", "alibi(4)"} <= found.keys() and found["sliding_window(3)"].window == 3
