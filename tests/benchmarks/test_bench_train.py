"""The training benchmark times the step that train.py runs, and the preset that it was given."""

import json
from pathlib import Path

import pytest
import torch
from conftest import timed_here

from benchmarks import train
from benchmarks.train import TrainBench, compare_steps, main, make_steps, nanogpt_flops
from model import GPT
from tools.shared.benchmark import NANOGPT, SHAPES, model_config


@pytest.mark.slow
def test_bench_train(poem, tmp_path, capsys, monkeypatch):
    """Catches a benchmark that times something else than the preset it was given."""
    monkeypatch.setattr(train.benchmark, "run_timed", timed_here)
    preset = tmp_path / "small.toml"
    preset.write_text(
        "block_size = 16\nn_layer = 1\nn_head = 2\nn_embd = 16\nbatch_size = 4\neval_iters = 1\n"
        f"dataset = '{poem}'"
    )
    sizes = dict(shapes="small:12", flags="--max_iters=20", repeats=1, seeds=2, device="cpu")
    main(TrainBench(**sizes, preset=str(preset), out_dir=str(tmp_path)))

    report = json.loads((tmp_path / "train_cpu.json").read_text())
    first, second = report["runs"]
    assert (first["seed"], second["seed"], second["step"]) == (0, 1, 20)
    assert first["val_loss"] != second["val_loss"]
    assert len(report["curve"]) == 10
    [[step]] = report["throughput"]
    assert step["tokens"] == 768 and step["ms"] > 0
    assert (tmp_path / "train_cpu.png").exists()
    assert "median seconds" in capsys.readouterr().out


def test_both_models_learn(monkeypatch):
    """Catches a peer that is timed for less than a step, and speeds of other tokens."""
    sizes = dict(block_size=8, n_layer=1, n_head=2, n_embd=8, vocab_size=16)
    for shapes in NANOGPT, SHAPES:
        monkeypatch.setitem(shapes, "small", sizes)
    config = TrainBench(preset="", nanogpt=str(Path(__file__).with_name("nanogpt")), repeats=2)
    cpu = torch.device("cpu")
    for step in make_steps(config, "small:2", cpu, "float32")[2].values():
        losses = [step().item() for _ in range(4)]
        assert losses[-1] < losses[0]
    ours, theirs = compare_steps(config, "small:2", cpu, {"float32": 1})
    assert (ours["time / ours"], ours["tokens"]) == (1, 16)
    assert theirs["tokens/s"] == pytest.approx(16e3 / theirs["ms"])
    assert theirs["nanoGPT's MFU"] > theirs["MFU"]


def test_the_shapes_of_a_gpu():
    """Catches another MFU than nanoGPT's estimate_mfu, and sizes that are not Llama's."""
    with torch.device("meta"):
        model = GPT(model_config("gpt2", bias=False))
        assert GPT(model_config("llama_7b")).num_params() == 6_738_415_616
    weights = 768 * (50304 + 1) + 12 * (12 * 768**2 + 2 * 768)
    assert nanogpt_flops(model) == 6 * weights + 12 * 12 * 12 * 64 * 1024
