"""The sampling benchmark must count the tokens that were written, and all of them."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import timed_here

from benchmarks import sample
from benchmarks.sample import SampleBench, main, our_writer
from engine.common.settings import parse_settings
from model import GPT, GPTConfig


class Peer(torch.nn.Module):
    """nanoGPT's interface, in little."""

    def __init__(self, config):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def generate(self, idx, max_new_tokens, temperature, top_k):
        return torch.cat([idx, idx.new_zeros(1, max_new_tokens)], dim=1)


@pytest.fixture
def nanogpt(tmp_path, monkeypatch):
    """A clone of nanoGPT, as far as the benchmark looks at it."""
    folder = tmp_path / "nanogpt"
    (folder / "data" / "shakespeare_char").mkdir(parents=True)
    (folder / "data" / "shakespeare_char" / "meta.pkl").touch()
    peer = SimpleNamespace(GPT=Peer, GPTConfig=lambda **shape: shape)
    monkeypatch.setattr(sample.benchmark, "nanogpt", lambda folder: peer)
    return str(folder)


def test_bench_sample(nanogpt, tmp_path, monkeypatch):
    """Catches a benchmark that leaves something out, or counts other tokens than were written."""
    monkeypatch.setattr(sample.benchmark, "run_timed", timed_here)
    sizes = dict(shapes="small", tokens=4, repeats=1, samples=2, length=5)
    main(SampleBench(**sizes, nanogpt=nanogpt, out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "sample_cpu.json").read_text())
    assert report["kind"] == "sample"
    assert (tmp_path / "sample_cpu.png").read_bytes().startswith(b"\x89PNG")
    [shape] = report["shapes"]
    ours = [f"lookback {kind}" for kind in ("float32", "float16", "bfloat16", "int8")]
    assert [*shape["single"]] == [*ours, "nanoGPT float32"]
    assert [*shape["job"]] == ["lookback default", *ours, "nanoGPT float32"]
    assert shape["job"]["nanoGPT float32"]["seconds"] == 1  # starts in 1 s, writes in none
    peer = shape["single"]["nanoGPT float32"]["seconds"]
    for row in shape["single"].values():
        assert row["tokens_per_s"] == pytest.approx(4 / row["seconds"])
        assert row["times nanoGPT"] == pytest.approx(peer / row["seconds"])
    for row in shape["job"].values():
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
    "argument, message",
    [
        ("--nanogpt=/none", "meta.pkl is missing"),
        ("--repeats=0", "repeats=0"),
        ("--shapes=tiny", "'tiny' is unknown; choose from small"),
    ],
)
def test_bad_input(argument, message):
    """Catches minutes of measuring before the complaint."""
    with pytest.raises(ValueError) as error:
        parse_settings(SampleBench, [argument])
    assert message in str(error.value) and "\n" not in str(error.value)
