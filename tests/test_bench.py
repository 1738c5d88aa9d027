"""Benchmarks are read by people who decide by them: they must measure what they say, and say what they left out."""

import json

import pytest
import torch
from conftest import complaint, run

from bench import forecast, main, peak_bytes, take_turns
from train import TrainConfig, train


def test_bench_attention(tmp_path):
    """Catches a benchmark that no longer runs, or that leaves out a path, a length or a ratio without saying so."""
    small = ("--n_head=1", "--head_size=8", "--window=4", "--repeats=1", "--naive_length=16", f"--out_dir={tmp_path}")
    result = run("bench.py", "attention", "--min_length=16", "--max_length=64", *small)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "attention_cpu.json").read_text())
    assert report["device"] and report["date"] and "bench.py attention --min_length=16" in report["command"]
    assert len(report["rows"]) == (1 + 4 * 6 + 2) * 2 * 3
    for row in report["rows"]:
        left_out = row["path"] == "naive" and row["T"] > 16
        assert ("skipped" in row) == left_out, row
        assert left_out or (row["seconds"] > 0 and row["bytes"] > 0)
    assert len(report["ratios"]) == 7 and all(found["ratio"] > 0 for found in report["ratios"])
    assert (tmp_path / "attention_cpu.png").read_bytes().startswith(b"\x89PNG")
    for text in ("sliding_window(4)", "naive, causal, forward, from T = 32", "target >= 8"):
        assert text in result.stdout


def test_bench_train(poem, tmp_path):
    """Catches a benchmark that no longer runs, or that times something else than the preset it was given."""
    preset = tmp_path / "small.toml"
    settings = dict(block_size=16, n_layer=1, n_head=2, n_embd=16, batch_size=4, max_iters=20, eval_iters=1, optimizer="muon")
    preset.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in {**settings, "dataset": poem}.items()))
    few = ("--repeats=1", "--seeds=2", f"--out_dir={tmp_path}")
    result = run("bench.py", "train", "--shapes=small", f"--preset={preset}", *few)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "train_cpu.json").read_text())
    assert [(row["seed"], row["step"]) for row in report["runs"]] == [(0, 20), (1, 20)]
    assert len(report["curve"]) == 10 and list(report["anatomy"]["seconds"]) == ["data", "forward", "backward", "optimizer"]
    assert report["throughput"][0]["tokens"] == 768 and report["throughput"][0]["lookback"]["seconds"] > 0
    assert (tmp_path / "train_cpu.png").read_bytes().startswith(b"\x89PNG")


def test_bench_sample(poem, tmp_path):
    """Catches a benchmark that no longer runs, leaves something out, or counts other tokens than were written."""
    train(TrainConfig(dataset=poem, out_dir=str(tmp_path / "out"), block_size=16, n_embd=64, max_iters=3, eval_iters=1))
    few = ("--prompt=3", "--tokens=4", "--repeats=1", "--samples=2", "--length=5", f"--out_dir={tmp_path}")
    few += (f"--trained={tmp_path / 'out'}",)
    result = run("bench.py", "sample", "--shapes=small", *few)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "sample_cpu.json").read_text())
    (shape,), trained = report["shapes"], report["trained"]
    assert [*shape["single"]] == ["lookback float32", "lookback bfloat16", "lookback int8"]
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


def test_bench_ablations(poem, tmp_path):
    """Catches a change that never reaches the run, and a difference from something else than the preset itself."""
    preset = tmp_path / "small.toml"
    settings = dict(block_size=16, n_layer=1, n_head=4, n_embd=16, batch_size=4, max_iters=5, eval_iters=1, learning_rate=0.1)
    preset.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in {**settings, "dataset": poem}.items()))
    few = ("--seeds=2", "--only=learned positions", f"--out_dir={tmp_path}")
    result = run("bench.py", "ablations", f"--preset={preset}", *few)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "some_ablations.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    itself, changed = rows["| as it is"], rows["| learned positions, no RoPE"]
    assert float(itself[3]) == 0 and changed[1] == "`--position=learned`" and float(changed[3]) != 0
    assert float(changed[3]) == pytest.approx(float(changed[2]) - float(itself[2]), abs=2e-4)


@pytest.mark.parametrize(
    "arguments, message",
    [((), "which benchmark"), (("atention",), "which benchmark"), (("attention", "--repeats=0"), "repeats=0"),
     (("attention", "--max_length=256"), "at least twice min_length"), (("attention", "--window=0"), "window=0"),
     (("train", "--shapes=large"), "large is unknown, choose from small"), (("train", "--nanogpt=/none"), "has no model.py"),
     (("train", "--seeds=0"), "seeds=0"), (("train", "--preset=none.toml"), "none.toml is not there"),
     (("sample", "--shapes=small", "--prompt=60"), "prompt=60 and tokens=128 do not fit"),
     (("sample", "--trained=none"), "no checkpoint in none"), (("sample", "--nanogpt=/none"), "has no model.py"),
     (("ablations", "--only=nothing"), "only=nothing is in none of"), (("ablations", "--preset=none.toml"), "is not there"),
     (("ablations", "--seeds=1"), "at least 2"), (("attention", "--dtype=int8"), "choose float32"),
     (("attention", "--lenght=4"), "did you mean min_length")],
)
def test_bad_input(arguments, message):
    """Catches an error of torch, or minutes of measuring before the complaint."""
    with pytest.raises(ValueError) as error:
        main(list(arguments))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_no_traceback():
    """Catches a script that does not say in one line what is wrong."""
    assert "which benchmark" in complaint(run("bench.py"))


def test_peak_bytes_is_the_peak():
    """Catches a sum of all allocations, or what is left at the end, in place of the most that was held at once."""

    def function():
        for _ in range(3):
            a = torch.empty(250_000)
            b = torch.empty(500_000)
            del a, b

    assert peak_bytes(function, torch.device("cpu")) == pytest.approx(3_000_000, rel=0.01)


def test_taking_turns():
    """Catches things that are compared one after the other, so that a noisy minute hits only one of them."""
    calls = []
    rounds = take_turns([lambda: calls.append("a"), lambda: calls.append("b")], 2, torch.device("cpu"))
    assert calls == ["a", "b"] * 3 and [len(times) for times in rounds] == [2, 2]


def test_what_would_not_fit_is_forecast():
    """Catches a benchmark that takes the machine's last byte, or hours."""
    assert forecast([], 10, 1e9) is None
    assert forecast([(0.1, 1e6), (0.4, 4e6)], 10, 1e9) is None
    assert forecast([(0.75, 1e6), (3.0, 4e6)], 10, 1e9) == "would take about 12 s"
    assert forecast([(0.1, 1e8), (0.4, 4e8)], 10, 1e9) == "would need about 2 GB"
