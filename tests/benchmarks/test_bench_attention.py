"""Benchmarks are read by people who decide by them: they must measure what they say, and say what they left out."""

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
    """Catches a benchmark that no longer runs, or leaves out a path, a mask, a length or a ratio without saying so."""
    monkeypatch.setitem(ATTENTION, "mine", masked_fill)
    monkeypatch.setitem(VISIBLE, "my_mask", lambda S: causal)
    monkeypatch.setattr(attention, "NAIVE_LENGTH", 16)
    main(AttentionBench(min_length=16, max_length=64, window=4, out_dir=str(tmp_path)))
    report, printed = (
        json.loads((tmp_path / "attention_cpu.json").read_text()),
        capsys.readouterr().out,
    )
    assert (
        report["kind"] == "attention" and report["device"] and report["date"] and report["command"]
    )
    assert len(report["rows"]) == (len(FEATURE) + len(ATTENTION) * len(VISIBLE)) * 3
    for row in report["rows"]:
        left_out = row["path"] == "naive" and row["T"] > 16
        assert ("skipped" in row) == left_out, row
        assert left_out or (row["seconds"] > 0 and row["bytes"] > 0)
    assert len(report["ratios"]) == 3 and all(found["ratio"] > 0 for found in report["ratios"])
    assert (tmp_path / "attention_cpu.png").read_bytes().startswith(b"\x89PNG")
    for text in ("sliding_window(4)", "my_mask(4)", "| mine ", "T = 64", "masked_fill / tiled"):
        assert text in printed


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--min_length=0", "at least 1"),
        ("--max_length=256", "twice that"),
        ("--dtype=int8", "float16"),
        ("--lenght=4", "did you mean min_length"),
    ],
)
def test_bad_input(argument, message):
    """Catches an error of torch, or minutes of measuring before the complaint."""
    with pytest.raises(ValueError) as error:
        parse_settings(AttentionBench, [argument])
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "what, limit, reason", [("LIMIT", 0, "time"), ("half_memory", lambda device: 0, "memory")]
)
def test_what_would_not_fit_is_skipped(what, limit, reason, monkeypatch):
    """Catches a benchmark that takes the machine's last byte, or hours."""
    monkeypatch.setattr(attention, what, limit)
    rows = measure_paths(
        AttentionBench(min_length=16, max_length=32, window=4), torch.device("cpu")
    )
    assert all(row.get("skipped") == (reason if row["T"] == 32 else None) for row in rows)


def test_taking_turns():
    """Catches things that are compared one after the other, so that a noisy minute hits only one of them."""
    calls = []
    rounds = time_interleaved(
        [lambda: calls.append("a"), lambda: calls.append("b")], 2, torch.device("cpu")
    )
    assert calls == ["a", "b"] * 3 and [len(times) for times in rounds] == [2, 2]
