"""The training benchmark must time the training step that train.py runs, and the preset it was given."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import timed_here

from benchmarks import train
from benchmarks.train import TrainBench, compare_steps, main
from engine.common.settings import parse_settings
from tools.shared.benchmark import SHAPES


def test_bench_train(poem, tmp_path, capsys, monkeypatch):
    """Catches a benchmark that no longer runs, or that times something else than the preset it was given."""
    monkeypatch.setattr(train.benchmark, "run_timed", timed_here)
    preset = tmp_path / "small.toml"
    settings = dict(
        block_size=16, n_layer=1, n_head=2, n_embd=16, batch_size=4, eval_iters=1, dataset=poem
    )
    preset.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()))
    main(
        TrainBench(
            shapes="small",
            preset=str(preset),
            flags="--max_iters=20",
            repeats=1,
            seeds=1,
            out_dir=str(tmp_path),
        )
    )
    report = json.loads((tmp_path / "train_cpu.json").read_text())
    assert report["kind"] == "train" and [(run["seed"], run["step"]) for run in report["runs"]] == [
        (0, 20)
    ]
    assert len(report["curve"]) == 10 and report["runs"][0]["mfu"] > 0
    assert report["throughput"][0][0]["tokens"] == 768 and report["throughput"][0][0]["ms"] > 0
    assert (tmp_path / "train_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "median seconds" in capsys.readouterr().out


class Peer(torch.nn.Module):
    """nanoGPT's interface, in little."""

    def __init__(self, config):
        super().__init__()
        self.wte = torch.nn.Embedding(config.vocab_size, 8)

    def forward(self, idx, targets=None):
        logits = self.wte(idx) @ self.wte.weight.mT
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), learning_rate, betas, weight_decay=weight_decay)


def test_both_models_take_the_same_step(tmp_path, monkeypatch):
    """Catches a peer that is timed for less than a step: ours and theirs go through the one training_step, and learn."""
    (tmp_path / "data" / "shakespeare_char").mkdir(parents=True)
    (tmp_path / "data" / "shakespeare_char" / "meta.pkl").write_text("")
    peer = SimpleNamespace(GPT=Peer, GPTConfig=lambda **shape: SimpleNamespace(**shape))
    monkeypatch.setattr(train.benchmark, "nanogpt_model", lambda folder: peer)
    monkeypatch.setitem(
        SHAPES,
        "small",
        dict(batch_size=2, block_size=8, n_layer=1, n_head=2, n_embd=8, vocab_size=16),
    )
    losses, step = {}, train.training_step

    def spied(net, *args, **settings):
        loss, norm = step(net, *args, **settings)
        losses.setdefault(type(net).__name__, []).append(loss.item())
        assert settings["grad_clip"] == 1.0
        return loss, norm

    monkeypatch.setattr(train, "training_step", spied)
    config = TrainBench(nanogpt=str(tmp_path), preset="", shapes="small", repeats=2)
    ours, theirs = compare_steps(config, "small", torch.device("cpu"), "float32", 1e9)
    assert len(losses) == 2
    for values in losses.values():
        assert len(values) == 4 and values[-1] < values[0]
    assert (
        ours["time / ours"] == 1
        and theirs["time / ours"] > 0
        and ours["tokens"] == 16
        and ours["MB"] > 0 < theirs["ms"]
    )


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--shapes=large", "'large' is unknown; choose from small"),
        ("--nanogpt=/none", "has no data/shakespeare_char"),
        ("--repeats=0", "repeats=0"),
    ],
)
def test_bad_input(argument, message):
    """Catches an error of torch, or minutes of measuring before the complaint."""
    with pytest.raises(ValueError) as error:
        parse_settings(TrainBench, [argument])
    assert message in str(error.value) and "\n" not in str(error.value)
