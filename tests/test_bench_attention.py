"""Benchmarks are read by people who decide by them: they must measure what they say, and say what they left out."""

import json

import pytest
import torch

from attention import ATTENTION, FEATURE, masked_fill
from engine import configure
from engine.roofline import take_turns
from masks import VISIBLE, causal
from tools.bench_attention import AttentionBench, forecast, main


def test_bench_attention(tmp_path, capsys, monkeypatch):
    """Catches a benchmark that no longer runs, or leaves out a path, a mask, a length or a ratio without saying so."""
    monkeypatch.setitem(ATTENTION, "mine", masked_fill)
    monkeypatch.setitem(VISIBLE, "my_mask", lambda S: causal)
    main(AttentionBench(min_length=16, max_length=64, n_head=1, head_size=8, window=4, repeats=1, naive_length=16,
                        out_dir=str(tmp_path)))
    report, printed = json.loads((tmp_path / "attention_cpu.json").read_text()), capsys.readouterr().out
    assert report["kind"] == "attention" and report["device"] and report["date"] and report["command"]
    assert len(report["rows"]) == (1 + len(FEATURE) + len(ATTENTION) * (len(VISIBLE) + 2)) * 2 * 3
    for row in report["rows"]:
        left_out = row["path"] == "naive" and row["T"] > 16
        assert ("skipped" in row) == left_out, row
        assert left_out or (row["seconds"] > 0 and row["bytes"] > 0)
    assert len(report["ratios"]) == 7 and all(found["ratio"] > 0 for found in report["ratios"])
    assert (tmp_path / "attention_cpu.png").read_bytes().startswith(b"\x89PNG")
    for text in ("sliding_window(4)", "my_mask(4)", "(naive_length)", ">= 8", "| mine "):
        assert text in printed


@pytest.mark.parametrize("argument, message", [
    ("--repeats=0", "repeats=0 must be at least 1"), ("--max_length=256", "at least twice min_length"),
    ("--window=0", "window=0"), ("--dtype=int8", "float16"), ("--lenght=4", "did you mean min_length"),
])
def test_bad_input(argument, message):
    """Catches an error of torch, or minutes of measuring before the complaint."""
    with pytest.raises(ValueError) as error:
        configure.parse(AttentionBench, [argument])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_what_would_not_fit_is_forecast():
    """Catches a benchmark that takes the machine's last byte, or hours."""
    assert forecast([], 10, 1e9) is None
    assert forecast([(0.1, 1e6), (0.4, 4e6)], 10, 1e9) is None
    assert forecast([(0.75, 1e6), (3.0, 4e6)], 10, 1e9) == "about 12 s"
    assert forecast([(0.1, 1e8), (0.4, 4e8)], 10, 1e9) == "about 2 GB"


def test_taking_turns():
    """Catches things that are compared one after the other, so that a noisy minute hits only one of them."""
    calls = []
    rounds = take_turns([lambda: calls.append("a"), lambda: calls.append("b")], 2, torch.device("cpu"))
    assert calls == ["a", "b"] * 3 and [len(times) for times in rounds] == [2, 2]
