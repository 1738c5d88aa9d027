"""The sampling benchmark must count the tokens that were written, and all of them."""

import json
from pathlib import Path

import pytest
import torch
from conftest import timed_here, tiny

from benchmarks import sample
from benchmarks.sample import SampleBench, bytes_of_step, main, make_model, our_writer


@pytest.mark.slow
def test_bench_sample(tmp_path, monkeypatch):
    """Catches a benchmark that leaves something out, or counts other tokens than were written."""
    monkeypatch.setattr(sample.benchmark, "run_timed", timed_here)
    sizes = dict(shapes="small,small:2", tokens=5, repeats=1, samples=2, length=5, device="cpu")
    nanogpt = Path(__file__).with_name("nanogpt")
    main(SampleBench(**sizes, nanogpt=str(nanogpt), out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "sample_cpu.json").read_text())
    assert (tmp_path / "sample_cpu.png").exists()
    shape, two = report["shapes"]
    ours = [f"lookback {kind}" for kind in ("float32", "float16", "bfloat16", "int8")]
    assert [*shape["single"]] == [*ours, "nanoGPT float32"]
    assert [*shape["job"]] == ["lookback default", *ours, "nanoGPT float32"]
    peer = shape["single"]["nanoGPT float32"]["seconds"]
    for row, of_two in zip(shape["single"].values(), two["single"].values()):
        assert row["tokens_per_s"] == pytest.approx(5 / row["seconds"])
        assert row["times nanoGPT"] == pytest.approx(peer / row["seconds"])
        assert of_two["tokens_per_s"] == pytest.approx(10 / of_two["seconds"])
    for row in shape["job"].values():  # nanoGPT starts in 1 s, and writes in none
        assert row["times nanoGPT"] == pytest.approx(1 / row["seconds"])


def test_our_writer():
    """Catches a text that is shorter than it is said to be, and another way to sample."""
    model = tiny(block_size=64)
    read = []
    seconds = []
    forward = model.hidden
    model.hidden = lambda idx, cache: read.append((*idx.shape,)) or forward(idx, cache)
    our_writer(model, torch.arange(8).view(2, 4), 32, None, seconds)()
    assert read == [(2, 4)] + [(2, 1)] * 31 and seconds[0] > 0


def test_a_large_model(monkeypatch):
    """Catches 7 billion weights in float32 or on the CPU, and embeddings that a step would read."""
    made = []  # before they are initialized, or could be moved
    monkeypatch.setattr("model.init_weights", lambda model: made.extend(model.parameters()))
    model = make_model("modern_124m", torch.device("meta"))
    assert {(p.device.type, p.dtype) for p in made} == {("meta", torch.bfloat16)}
    assert bytes_of_step(model, "bfloat16") == 2 * (model.num_params() - 50304 * 768)


@pytest.mark.parametrize(
    "setting, message",
    [
        (dict(nanogpt="/none"), "model.py is missing"),
        (dict(repeats=0), "repeats=0"),
        (dict(shapes="tiny"), "'tiny' is unknown; choose from small"),
        (dict(shapes="small:0"), "as in small:12"),
        (dict(weights="int4"), "'int4' is unknown; choose from float32"),
    ],
)
def test_bad_input(setting, message):
    """Catches minutes of measuring before the complaint."""
    with pytest.raises(ValueError, match=message):
        SampleBench(**setting)
