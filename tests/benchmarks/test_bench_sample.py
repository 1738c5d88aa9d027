"""The sampling benchmark must count the tokens that were written, and all of them."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import timed_here

from benchmarks import sample
from benchmarks.sample import SampleBench, main
from engine.common.settings import parse_settings
from engine.weights import checkpoint
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
    monkeypatch.setattr(sample.peers, "nanogpt", lambda folder: peer)
    return str(folder)


@pytest.fixture
def report(nanogpt, poem, tmp_path, monkeypatch):
    """A report of everything that the benchmark measures without other libraries."""
    out = tmp_path / "out"
    model = GPT(GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=64, vocab_size=64))
    settings = {"dataset": poem, "block_size": 16}
    checkpoint.save_checkpoint(out, 0, model, settings, {"kind": "byte"}, {})
    monkeypatch.setattr(sample, "CACHE_BYTES", 0)
    monkeypatch.setattr(sample.benchmark, "run_timed", timed_here)
    sizes = dict(shapes="small", tokens=4, repeats=1, samples=2, length=5)
    main(SampleBench(**sizes, trained=str(out), nanogpt=nanogpt, out_dir=str(tmp_path)))
    return json.loads((tmp_path / "sample_cpu.json").read_text())


def test_bench_sample(report, tmp_path):
    """Catches a benchmark that leaves something out, or counts other tokens than were written."""
    assert report["kind"] == "sample"
    assert (tmp_path / "sample_cpu.png").read_bytes().startswith(b"\x89PNG")
    [shape] = report["shapes"]
    ours = [f"lookback {kind}" for kind in ("float32", "float16", "bfloat16", "int8")]
    assert [*shape["single"]] == [*ours, "nanoGPT float32"]
    assert [*shape["job"]] == ["lookback default", *ours, "nanoGPT float32"]
    assert all(row["times nanoGPT"] for row in shape["job"].values())
    for row in shape["single"].values():
        assert row["tokens_per_s"] == pytest.approx(4 / row["seconds"])
        assert row["times nanoGPT"] > 0

    # The fewer bytes a weight has, the less a step must read. Where a processor has no units for
    # bfloat16, the cache is in bfloat16 too.
    rows = [shape["single"][who] for who in ours]
    wide, half, bfloat, int8 = (row["of_the_bound"] * row["seconds"] for row in rows)
    assert wide > half > int8 > 0
    assert half * 1.001 > bfloat > int8
    assert shape["single"]["nanoGPT float32"]["of_the_bound"] is None


def test_a_trained_model(report):
    """Catches a loss of other texts for int8, and a gain of guesses that is not measured."""
    at_once, one_by_one = report["trained"]["int8"]
    assert at_once["tokens"] == 24 * 16
    assert (at_once["at_once"], one_by_one["at_once"]) == (16, 1)
    assert at_once["loss"] == pytest.approx(one_by_one["loss"], rel=1e-5)
    for row in at_once, one_by_one:
        assert row["int8"] == pytest.approx(row["loss"] * (1 + row["cost"]))
        assert abs(row["cost"]) < 0.005
    certain, random = report["trained"]["ngram"]
    assert (certain["temperature"], certain["prompts"]) == (0, 1)
    assert (random["temperature"], random["prompts"]) == (0.8, 5)
    assert 0 < random["lowest"] <= random["ngram_gain"] <= random["highest"]


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
