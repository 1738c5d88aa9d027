"""Benchmarks are read by people who decide by them: they say what they measured and left out."""

import json
import sys
from pathlib import Path

import pytest
import torch
from conftest import timed_here, tiny

from attention import ATTENTION, FEATURE
from benchmarks import attention, sample, train
from masks import VISIBLE
from model import GPT
from tools.shared import benchmark
from tools.shared.benchmark import NANOGPT, SHAPES, model_config

CPU = torch.device("cpu")
CLONE = str(Path(__file__).with_name("nanogpt"))


def measured(main, config):
    """The report of a benchmark, which is also drawn."""
    main(config)
    path = Path(config.out_dir, f"{config.name}_cpu.json")
    assert path.with_suffix(".png").exists()
    return json.loads(path.read_text())


# ---- Whole benchmarks


@pytest.mark.slow
def test_attention(tmp_path, monkeypatch):
    """Catches a path, a mask or a length that is left out in silence."""
    for length in "NAIVE_LENGTH", "SHORTEST":
        monkeypatch.setattr(attention, length, 16)
    monkeypatch.setattr(attention, "memory_bytes", lambda device: None)  # as on Windows
    sizes = dict(max_length=64, window=4, out_dir=str(tmp_path))
    report = measured(attention.main, attention.AttentionBench(**sizes))
    assert len(report["rows"]) == (len(FEATURE) + len(ATTENTION) * len(VISIBLE)) * 3
    skipped = {(row["path"], row["T"]) for row in report["rows"] if "skipped" in row}
    assert skipped == {("naive", 32), ("naive", 64)}


@pytest.mark.slow
def test_sample(tmp_path, monkeypatch):
    """Catches a benchmark that leaves something out, or counts other tokens than were written."""
    monkeypatch.setattr(benchmark, "run_timed", timed_here)
    sizes = dict(shapes="small,small:2", tokens=5, repeats=1, samples=2, length=5, device="cpu")
    config = sample.SampleBench(**sizes, nanogpt=CLONE, out_dir=str(tmp_path))
    shape, two = measured(sample.main, config)["shapes"]
    names = [*(f"lookback {kind}" for kind in sample.WEIGHTS), "nanoGPT float32"]
    assert [*shape["single"]] == [*two["single"]] == names
    assert [*shape["job"]] == ["lookback default", *names]
    for row in two["single"].values():
        assert row["tokens_per_s"] == pytest.approx(10 / row["seconds"])


@pytest.mark.slow
def test_train(poem, tmp_path, monkeypatch):
    """Catches a benchmark that times something else than the preset it was given."""
    monkeypatch.setattr(benchmark, "run_timed", timed_here)
    preset = tmp_path / "small.toml"
    preset.write_text(
        "block_size = 16\nn_layer = 1\nn_head = 2\nn_embd = 16\nbatch_size = 4\neval_iters = 1\n"
        f"dataset = '{poem}'"
    )
    sizes = dict(shapes="small:12", flags="--max_iters=20", repeats=1, seeds=2, device="cpu")
    config = train.TrainBench(**sizes, preset=str(preset), out_dir=str(tmp_path))
    report = measured(train.main, config)
    assert [(run["seed"], run["step"]) for run in report["runs"]] == [(0, 20), (1, 20)]
    assert len(report["curve"]) == 10


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
    with pytest.raises(ValueError, match="-c .* failed: exit code 3$"):
        benchmark.run_timed([sys.executable, "-c", "import sys; sys.exit(3)"])
