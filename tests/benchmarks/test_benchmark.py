"""Shared by all that measures: timed processes, tables, and where results go."""

import json
import sys

import pytest
import torch

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


def test_where_results_go(tmp_path, monkeypatch):
    """Catches a GPU's figures that overwrite a CPU's, and a result drawn before it is written."""
    drawn = []
    monkeypatch.setattr(benchmark, "machine_line", lambda report: "a machine")
    monkeypatch.setattr(
        benchmark.subprocess, "run", lambda command, cwd: drawn.append(command[-1].read_text())
    )
    config = benchmark.BenchmarkSettings(out_dir=str(tmp_path / "new"), name="x")
    benchmark.write_report({"a": 1}, config, [], torch.device("cuda"))
    benchmark.write_report({"a": 2}, config, [])
    for name, content, number in ("x_cuda", drawn[0], 1), ("x", drawn[1], 2):
        assert (tmp_path / "new" / f"{name}.json").read_text() == content
        assert json.loads(content) == {"a": number}
