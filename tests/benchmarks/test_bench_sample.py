"""The sampling benchmark must count the tokens that were written, and all of them."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import timed_here

from benchmarks import sample
from benchmarks.sample import SampleBench, main, ngram_gain, write_text
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


def test_bench_sample(poem, tmp_path, monkeypatch):
    """Catches a benchmark that no longer runs, leaves something out, or counts other tokens than were written."""
    model = GPT(GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=64, vocab_size=64))
    checkpoint.save_checkpoint(
        tmp_path / "out", 0, model, {"dataset": poem, "block_size": 16}, {"kind": "byte"}, {}
    )
    nanogpt = tmp_path / "nanogpt"
    (nanogpt / "data" / "shakespeare_char").mkdir(parents=True)
    (nanogpt / "data" / "shakespeare_char" / "meta.pkl").write_text("")
    (nanogpt / "sample.py").write_text("")
    peer = SimpleNamespace(GPT=Peer, GPTConfig=lambda **shape: shape)
    monkeypatch.setattr(sample.benchmark, "nanogpt_model", lambda folder: peer)
    monkeypatch.setattr(sample.quantization, "CACHE_BYTES", 0)
    monkeypatch.setattr(sample.benchmark, "run_timed", timed_here)
    main(
        SampleBench(
            shapes="small",
            tokens=4,
            repeats=1,
            samples=2,
            length=5,
            trained=str(tmp_path / "out"),
            nanogpt=str(nanogpt),
            out_dir=str(tmp_path),
        )
    )
    report = json.loads((tmp_path / "sample_cpu.json").read_text())
    (shape,), trained = report["shapes"], report["trained"]
    labels = [
        *(f"lookback {kind}" for kind in ("float32", "float16", "bfloat16", "int8")),
        "nanoGPT float32",
    ]
    assert (
        report["kind"] == "sample"
        and [*shape["single"]] == labels
        and [*shape["job"]] == ["lookback default", *labels]
    )
    for row in shape["single"].values():
        assert row["tokens_per_s"] == pytest.approx(4 / row["seconds"]) and row["times nanoGPT"] > 0
    for row in shape["products"].values():
        assert [*row] == ["1 row", "2 rows", "4 rows", "10 rows", "16 rows", "32 rows"] and min(
            row.values()
        ) > 0
    assert [*shape["products"]] == ["F.linear float32", "float32", "float16", "bfloat16", "int8"]
    bound = [
        shape["single"][label]["of_the_bound"] * shape["single"][label]["seconds"]
        for label in labels[:4]
    ]
    assert bound[0] > bound[1] == pytest.approx(bound[2]) and bound[2] > bound[3] > 0
    assert shape["single"]["nanoGPT float32"]["of_the_bound"] is None
    assert all(row["times nanoGPT"] for row in shape["job"].values())
    for row in trained["int8"]:
        assert (
            row["int8"] == pytest.approx(row["loss"] * (1 + row["cost"]))
            and abs(row["cost"]) < 0.005
        )
        assert row["tokens"] == 24 * 16
    assert [row["at_once"] for row in trained["int8"]] == [16, 1]
    assert trained["int8"][0]["loss"] == pytest.approx(trained["int8"][1]["loss"], rel=1e-5)
    assert [(row["temperature"], row["prompts"]) for row in trained["ngram"]] == [(0, 1), (0.8, 5)]
    assert all(
        row["lowest"] <= row["ngram_gain"] <= row["highest"] and 0 <= row["accepted"] <= 1
        for row in trained["ngram"]
    )
    assert (tmp_path / "sample_cpu.png").read_bytes().startswith(b"\x89PNG")


def test_the_share_of_guesses_that_were_right(monkeypatch):
    """Catches a share that counts what no pass has confirmed: guesses that are always right, and never."""
    config, device = SampleBench(repeats=1), torch.device("cpu")
    model = GPT(GPTConfig(block_size=64, n_layer=1, n_head=2, n_embd=8, vocab_size=16)).eval()
    prompt = torch.arange(4)
    session = sample.generation.Session(model, [prompt], 32)
    random = sample.generation.RandomStream([None])
    written = sample.generation.stream(session, 32, sample.generation.Sampling(temperature=0), random)
    text = torch.cat([prompt, *(token for token, _ in written)]).tolist()
    assert write_text(model, prompt, 32, temperature=0) == 32
    right = lambda session, most: text[session.length : session.length + most]  # noqa: E731
    monkeypatch.setattr(sample.generation, "ngram", right)
    assert ngram_gain(config, model, model, 0.0, [prompt], device)["accepted"] == 1
    wrong = lambda session, most: [(token + 1) % 16 for token in right(session, most)]  # noqa: E731
    monkeypatch.setattr(sample.generation, "ngram", wrong)
    assert ngram_gain(config, model, model, 0.0, [prompt], device)["accepted"] == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--nanogpt=/none"], "has no data/shakespeare_char"),
        (["--repeats=0"], "repeats=0"),
        (["--shapes=tiny"], "unknown"),
    ],
)
def test_bad_input(arguments, message):
    """Catches an error of torch, or minutes of measuring before the complaint."""
    with pytest.raises(ValueError) as error:
        parse_settings(SampleBench, arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
