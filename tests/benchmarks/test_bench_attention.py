"""Benchmarks are read by people who decide by them: they say what they measured and left out."""

import json

import pytest
import torch

from attention import ATTENTION, FEATURE, masked_fill
from benchmarks import attention
from benchmarks.attention import AttentionBench, main
from engine.common.hardware import time_interleaved
from masks import VISIBLE, causal


@pytest.mark.slow
def test_bench_attention(tmp_path, capsys, monkeypatch):
    """Catches a path, a mask, a length or a ratio that is left out in silence."""
    monkeypatch.setitem(ATTENTION, "mine", masked_fill)
    monkeypatch.setitem(VISIBLE, "my_mask", lambda S: causal)
    monkeypatch.setattr(attention, "NAIVE_LENGTH", 16)
    main(AttentionBench(min_length=16, max_length=64, window=4, out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "attention_cpu.json").read_text())
    printed = capsys.readouterr().out
    assert len(report["rows"]) == (len(FEATURE) + len(ATTENTION) * len(VISIBLE)) * 3
    for row in report["rows"]:
        if row["path"] == "naive" and row["T"] > 16:
            assert row["skipped"] == "time"
        else:
            assert row["seconds"] > 0 and row["bytes"] > 0
    assert len(report["ratios"]) == 2
    assert (tmp_path / "attention_cpu.png").exists()
    for text in "sliding_window(4)", "my_mask(4)", "| mine ", "T = 64", "fused / linear":
        assert text in printed


def test_bad_input():
    """Catches an error of torch, or minutes of measuring before the complaint."""
    for lengths in dict(min_length=0), dict(max_length=256):
        with pytest.raises(ValueError, match="at least 1, and at least twice that"):
            AttentionBench(**lengths)


def test_taking_turns():
    """Catches cases compared one after the other: a noisy minute would hit only one of them."""
    calls = []
    functions = [lambda: calls.append("a"), lambda: calls.append("b")]
    rounds = time_interleaved(functions, 2, torch.device("cpu"))
    assert calls == ["a", "b"] * 3  # a round to warm up first
    assert [len(times) for times in rounds] == [2, 2]
