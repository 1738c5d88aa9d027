"""What the measuring tools share: processes that are timed, tables, and where results go."""

import json
import sys

import pytest
import torch

from engine.common import tables
from masks import VISIBLE
from tools.shared import benchmark


def test_timed():
    """Catches lines that arrive only at the end, a process that blocks on a full pipe, and memory of another process."""
    words = "print('now'); x = bytearray(10**9); time.sleep(0.3); sys.stderr.write(' ' * 10**6); print('later')"
    seconds, megabytes, ((first, now), (second, later)) = benchmark.run_timed(
        [sys.executable, "-c", f"import sys, time; {words}"]
    )
    assert (
        (now, later.strip()) == ("now\n", "later") and second - first >= 0.3 and seconds >= second
    )
    assert 1000 < megabytes < 1500


def test_a_process_that_fails():
    """Catches a failure that is taken for a result, and a complaint without the command and its last words."""
    with pytest.raises(ValueError, match="-c .* failed: last words$"):
        benchmark.run_timed([sys.executable, "-c", "import sys; sys.exit('first\\nlast words')"])
    with pytest.raises(ValueError, match="failed: exit code 3"):
        benchmark.run_timed([sys.executable, "-c", "import sys; sys.exit(3)"])


@pytest.mark.parametrize(
    "device, name", [("cpu", "x_cpu.json"), ("cuda", "x_cuda.json"), (None, "x.json")]
)
def test_where_results_go(device, name, tmp_path, monkeypatch, capsys):
    """Catches a GPU's figures that overwrite a CPU's, and a result that is drawn before it is written."""
    drawn = []
    monkeypatch.setattr(
        benchmark.subprocess,
        "run",
        lambda command, cwd: drawn.append(json.loads(command[-1].read_text())),
    )
    monkeypatch.setattr(benchmark, "machine_line", lambda report: "a machine")
    report, config = (
        {"kind": "train"},
        benchmark.BenchmarkSettings(out_dir=str(tmp_path / "new"), name="x"),
    )
    benchmark.write_report(report, config, [[{"a": 1.5}]], torch.device(device) if device else None)
    assert "| 1.5 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "new" / name).read_text()) == report and drawn == [report]


def test_the_model_of_a_clone(tmp_path):
    """Catches another module that is called model, as ours is."""
    code = "import dataclasses\n@dataclasses.dataclass\nclass GPTConfig:\n    n: int\nclass GPT:\n    config = GPTConfig(7)\n"
    (tmp_path / "model.py").write_text(code)
    assert benchmark.nanogpt_model(tmp_path).GPT.config.n == 7


def test_table():
    """Catches columns that are out of line, and what is no Markdown table."""
    assert tables.format_table(
        [{"a": "longer", "long": 1}, {"a": None, "new": 0.1234512}]
    ).splitlines() == [
        "| a      | long | new     |",
        "| ------ | ---- | ------- |",
        "| longer | 1    |         |",
        "| -      |      | 0.12345 |",
    ]


def test_examples():
    """Catches a mask, added by whoever forks this, that is not measured."""
    found = benchmark.mechanism_examples(VISIBLE | {"mine": lambda a, b: (a, b)}, 3, H=4)
    assert len(found) == len(VISIBLE) + 1 and found["mine(3, 3)"] == (3, 3)
    assert {"causal", "sliding_window(3)", "alibi(4)"} <= found.keys() and found[
        "sliding_window(3)"
    ].window == 3
