"""The measurement of preparing data runs, and compares the same tokens."""

import json

import pytest

from benchmarks import data
from benchmarks.data import DataBench, main


def test_bench_data(tmp_path, capsys, gpt2_files, monkeypatch):
    """Catches a benchmark that no longer runs, or two ways that do not write the same tokens."""
    main(DataBench(megabytes=1, repeats=1, out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "data.json").read_text())
    assert {row["way"]: row["seconds"] > 0 < row["peak MB"] for row in report["rows"]} == {
        "nanoGPT": True,
        "lookback": True,
    }
    assert (
        report["kind"] == "data"
        and report["summary"]["MB"] >= 1
        and report["summary"]["times faster"] > 0
    )
    assert (tmp_path / "data.png").read_bytes().startswith(
        b"\x89PNG"
    ) and "| times faster" in capsys.readouterr().out
    monkeypatch.setattr(data, "THEIRS", data.THEIRS.replace("ids.append(encoding.eot_token)", ""))
    with pytest.raises(ValueError, match="do not give the same tokens"):
        main(DataBench(megabytes=1, repeats=1, out_dir=str(tmp_path)))
