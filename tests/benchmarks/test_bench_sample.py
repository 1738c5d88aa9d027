"""The sampling benchmark must count the tokens that were written, and all of them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import timed_here

from benchmarks import sample
from benchmarks.sample import SampleBench, main, our_writer
from model import GPT, GPTConfig


@pytest.fixture
def nanogpt(tmp_path):
    """A clone of nanoGPT, as far as the benchmark looks at it."""
    shutil.copytree(Path(__file__).with_name("nanogpt"), tmp_path / "nanogpt")
    prepared = tmp_path / "nanogpt" / "data" / "shakespeare_char"
    prepared.mkdir(parents=True)
    (prepared / "meta.pkl").touch()
    return str(tmp_path / "nanogpt")


@pytest.mark.slow
def test_bench_sample(nanogpt, tmp_path, monkeypatch):
    """Catches a benchmark that leaves something out, or counts other tokens than were written."""
    monkeypatch.setattr(sample.benchmark, "run_timed", timed_here)
    sizes = dict(shapes="small", tokens=4, repeats=1, samples=2, length=5)
    main(SampleBench(**sizes, nanogpt=nanogpt, out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "sample_cpu.json").read_text())
    assert (tmp_path / "sample_cpu.png").exists()
    [shape] = report["shapes"]
    ours = [f"lookback {kind}" for kind in ("float32", "float16", "bfloat16", "int8")]
    assert [*shape["single"]] == [*ours, "nanoGPT float32"]
    assert [*shape["job"]] == ["lookback default", *ours, "nanoGPT float32"]
    peer = shape["single"]["nanoGPT float32"]["seconds"]
    for row in shape["single"].values():
        assert row["tokens_per_s"] == pytest.approx(4 / row["seconds"])
        assert row["times nanoGPT"] == pytest.approx(peer / row["seconds"])
    for row in shape["job"].values():  # nanoGPT starts in 1 s, and writes in none
        assert row["times nanoGPT"] == pytest.approx(1 / row["seconds"])


def test_our_writer():
    """Catches a text that is shorter than it is said to be, and another way to sample."""
    model = GPT(GPTConfig(block_size=64, n_layer=1, n_head=2, n_embd=8, vocab_size=16)).eval()
    sessions = []
    forward = model.hidden
    model.hidden = lambda idx, cache: sessions.append(idx.shape[1]) or forward(idx, cache)
    our_writer(model, torch.arange(4), 32)()
    assert sessions == [4] + [1] * 31


@pytest.mark.parametrize(
    "setting, message",
    [
        (dict(nanogpt="/none"), "meta.pkl is missing"),
        (dict(repeats=0), "repeats=0"),
        (dict(shapes="tiny"), "'tiny' is unknown; choose from small"),
    ],
)
def test_bad_input(setting, message):
    """Catches minutes of measuring before the complaint."""
    with pytest.raises(ValueError, match=message):
        SampleBench(**setting)
