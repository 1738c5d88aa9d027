"""The sampling benchmark must count the tokens that were written, and all of them."""

import json

import pytest
import torch

from engine import checkpoint, configure
from model import GPT, GPTConfig
from tools.bench_sample import SampleBench, load_weights, main


def test_bench_sample(poem, tmp_path):
    """Catches a benchmark that no longer runs, leaves something out, or counts other tokens than were written."""
    model = GPT(GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=64, vocab_size=64))
    checkpoint.save(tmp_path / "out", 0, model, {"dataset": poem, "block_size": 16}, {"kind": "byte"}, {})
    main(SampleBench(shapes="small", prompt=3, tokens=4, repeats=1, samples=2, length=5, trained=str(tmp_path / "out"),
                     out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "sample_cpu.json").read_text())
    (shape,), trained = report["shapes"], report["trained"]
    assert report["kind"] == "sample" and [*shape["single"]] == ["lookback float32", "lookback bfloat16", "lookback int8"]
    sizes = [row["weight_bytes"] for row in shape["single"].values()]
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]
    for row in shape["single"].values():
        assert row["tokens_per_s"] == pytest.approx(4 / row["seconds"])
        assert row["share_of_bound"] == pytest.approx(4 * row["read_seconds"] / row["seconds"])
    assert all(row["seconds"] > 0 for row in shape["job"].values()) and len(shape["job"]) == 2
    for row in trained, trained["one_by_one"]:
        assert row["int8_loss"] == pytest.approx(row["loss"] * (1 + row["int8_cost"])) and abs(row["int8_cost"]) < 0.005
    assert trained["tokens"] == 64 and trained["one_by_one"]["tokens"] == 24 * 16 and trained["ngram_gain"] > 0
    assert (tmp_path / "sample_cpu.png").read_bytes().startswith(b"\x89PNG")


def test_a_peer_gets_our_weights():
    """Catches a peer that is compared with random weights of its own, because its names have changed."""
    config = dict(block_size=8, n_layer=1, n_head=2, n_embd=8, vocab_size=16)
    ours, peer = GPT(GPTConfig(**config)), GPT(GPTConfig(**config))
    x = torch.arange(8)[None]
    torch.testing.assert_close(load_weights(peer, ours.state_dict())(x)[0], ours(x)[0])
    weights = {name: p for name, p in ours.state_dict().items() if "c_proj" not in name}
    with pytest.raises(ValueError, match="weights of its own .transformer.h.0.attn.c_proj"):
        load_weights(peer, weights)


@pytest.mark.parametrize("arguments, message", [
    (["--shapes=small", "--prompt=60"], "prompt=60 and tokens=128 do not fit"), (["--trained=none"], "no checkpoint in none"),
    (["--nanogpt=/none"], "has no model.py"), (["--samples=0"], "samples=0"), (["--shapes=tiny"], "tiny is unknown"),
])
def test_bad_input(arguments, message):
    """Catches an error of torch, or minutes of measuring before the complaint."""
    with pytest.raises(ValueError) as error:
        configure.parse(SampleBench, arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
