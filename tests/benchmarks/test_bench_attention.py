"""Benchmarks are read by people who decide by them: they say what they measured and left out."""

import json

import pytest
import torch

from attention import ATTENTION, FEATURE, masked_fill
from benchmarks import attention
from benchmarks.attention import AttentionBench, main, measure_paths
from engine.common.hardware import time_interleaved
from engine.common.settings import parse_settings
from masks import VISIBLE, causal


def test_bench_attention(tmp_path, capsys, monkeypatch):
    """Catches a path, a mask, a length or a ratio that is left out in silence."""
    monkeypatch.setitem(ATTENTION, "mine", masked_fill)
    monkeypatch.setitem(VISIBLE, "my_mask", lambda S: causal)
    monkeypatch.setattr(attention, "NAIVE_LENGTH", 16)
    main(AttentionBench(min_length=16, max_length=64, window=4, out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "attention_cpu.json").read_text())
    printed = capsys.readouterr().out
    assert report["kind"] == "attention"
    assert report["device"] and report["date"] and report["command"]
    assert len(report["rows"]) == (len(FEATURE) + len(ATTENTION) * len(VISIBLE)) * 3
    for row in report["rows"]:
        left_out = row["path"] == "naive" and row["T"] > 16
        assert ("skipped" in row) == left_out, row
        assert left_out or (row["seconds"] > 0 and row["bytes"] > 0)
    assert len(report["ratios"]) == 2
    assert all(row["ratio"] > 0 for row in report["ratios"])
    assert (tmp_path / "attention_cpu.png").read_bytes().startswith(b"\x89PNG")
    for text in ("sliding_window(4)", "my_mask(4)", "| mine ", "T = 64", "fused / linear"):
        assert text in printed


@pytest.mark.parametrize("argument", ["--min_length=0", "--max_length=256"])
def test_bad_input(argument):
    """Catches an error of torch, or minutes of measuring before the complaint."""
    with pytest.raises(ValueError, match="at least 1, and at least twice that"):
        parse_settings(AttentionBench, [argument])


@pytest.mark.parametrize(
    "what, limit, reason", [("LIMIT", 0, "time"), ("half_memory", lambda device: 0, "memory")]
)
def test_large_cases_are_skipped(what, limit, reason, monkeypatch):
    """Catches a benchmark that takes the machine's last byte, or hours."""
    monkeypatch.setattr(attention, what, limit)
    config = AttentionBench(min_length=16, max_length=32, window=4)
    for row in measure_paths(config, torch.device("cpu")):
        assert row.get("skipped") == (reason if row["T"] == 32 else None)


def test_taking_turns():
    """Catches cases compared one after the other: a noisy minute would hit only one of them."""
    calls = []
    functions = [lambda: calls.append("a"), lambda: calls.append("b")]
    rounds = time_interleaved(functions, 2, torch.device("cpu"))
    assert calls == ["a", "b"] * 3  # a round to warm up first
    assert [len(times) for times in rounds] == [2, 2]
