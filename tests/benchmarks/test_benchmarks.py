"""Benchmarks are read by people who decide by them: they say what they measured and left out."""

import sys
from pathlib import Path

import pytest
import torch
from conftest import CPU, parametrize, refused, timed_here, tiny

from attention import ATTENTION, FEATURE
from benchmarks import attention, sample, train
from engine.files import read_json
from masks import VISIBLE
from model import GPT
from tools.shared import benchmark
from tools.shared.benchmark import NANOGPT, SHAPES, model_config

CLONE = str(Path(__file__).with_name("nanogpt"))


SHORT = dict(tokens=5, repeats=1, samples=2, length=5)
CASES = len(FEATURE) + len(ATTENTION) * len(VISIBLE)
WHOLE = {  # name: settings of a small one, and how many of what its report has
    "attention": (attention.AttentionBench(window=4), "rows", 2 * CASES),
    "sample": (sample.SampleBench(shapes="small,small:2", **SHORT), "shapes", 2),
    "train": (train.TrainBench(shapes="small:12", repeats=1, seeds=2), "runs", 2),
}


@pytest.mark.slow
@parametrize("name", WHOLE)
def test_a_whole_benchmark(name, poem, tmp_path, monkeypatch):
    """Catches a path, a mask, a shape or a seed that is left out in silence."""
    monkeypatch.setattr(benchmark, "run_timed", timed_here)
    monkeypatch.setattr(attention, "SHORTEST", 16)
    preset = tmp_path / "small.toml"
    preset.write_text(f"n_embd = 16\nmax_iters = 20\neval_iters = 1\ndataset = '{poem}'")
    config, part, count = WHOLE[name]
    own = dict(device="cpu", out_dir=str(tmp_path), nanogpt=CLONE, preset=str(preset))
    vars(config).update(own, max_length=32)
    globals()[name].main(config)
    report = read_json(tmp_path / f"{name}_cpu.json")
    assert len(report[part]) == count and (tmp_path / f"{name}_cpu.png").exists()


# ---- Their parts


def test_both_models_learn(monkeypatch):
    """Catches a peer that is timed for less than a step, and speeds of other tokens."""
    sizes = dict(block_size=8, n_layer=1, n_head=2, n_embd=8, vocab_size=16)
    for shapes in NANOGPT, SHAPES:
        monkeypatch.setitem(shapes, "small", sizes)
    config = train.TrainBench(preset="", nanogpt=CLONE, repeats=2)
    for step in train.make_steps(config, "small:2", CPU, "float32")[2].values():
        losses = [step().item() for _ in range(4)]
        assert losses[-1] < losses[0]
    ours, theirs = train.compare_steps(config, "small:2", CPU, {"float32": 1})
    assert (ours["time / ours"], ours["tokens"]) == (1, 16)
    assert theirs["tokens/s"] == pytest.approx(16e3 / theirs["ms"])
    assert theirs["nanoGPT's MFU"] > theirs["MFU"]


def test_our_writer():
    """Catches a text that is shorter than it is said to be, and another way to sample."""
    model = tiny(block_size=64)
    read = []
    seconds = []
    forward = model.hidden
    model.hidden = lambda idx, cache: read.append((*idx.shape,)) or forward(idx, cache)
    sample.our_writer(model, torch.arange(8).view(2, 4), 32, None, seconds)()
    assert read == [(2, 4)] + [(2, 1)] * 31 and seconds[0] > 0


def test_the_shapes_of_a_gpu():
    """Catches another MFU than nanoGPT's estimate_mfu, sizes that are not Llama's, its weights in
    float32, and embeddings that a step would read.
    """
    model = sample.make_model("llama_7b", torch.device("meta"))
    assert model.num_params() == 6_738_415_616
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert sample.bytes_of_step(model, "bfloat16") == 2 * (6_738_415_616 - 32000 * 4096)
    with torch.device("meta"):
        model = GPT(model_config("gpt2", bias=False))
    weights = 768 * (50304 + 1) + 12 * (12 * 768**2 + 2 * 768)
    assert train.nanogpt_flops(model) == 6 * weights + 12 * 12 * 12 * 64 * 1024


def test_taking_turns():
    """Catches cases compared one after the other: a noisy minute would hit only one of them."""
    calls = []
    functions = [lambda: calls.append("a"), lambda: calls.append("b")]
    first, times = benchmark.time_rounds(functions, 2, CPU)
    assert calls == ["a", "b"] * 3  # a round to warm up first
    assert len(first) == len(times) == len(times[0]) == 2


def test_processes():
    """Catches lines that arrive at the end, a process that blocks on a full pipe, and a failure
    that is taken for a result.
    """
    code = (
        "import sys, time; print('now'); time.sleep(0.3); "
        "sys.stderr.write(' ' * 10**6); print('later')"
    )
    seconds, lines = benchmark.run_timed([sys.executable, "-c", code])
    (first, now), (second, later) = lines
    assert (now, later.strip()) == ("now\n", "later")
    assert second - first >= 0.3 and seconds >= second
    with refused("-c .* failed: exit code 3$"):
        benchmark.run_timed([sys.executable, "-c", "import sys; sys.exit(3)"])
