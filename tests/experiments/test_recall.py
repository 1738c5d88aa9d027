"""Recall against cost: the task, the models, and what each can remember."""

import json
import sys

import torch
from conftest import complaint, run_here

from experiments import recall
from experiments.shared import trials


def test_the_task():
    """Catches a key with two values, a question without an answer, and one that is asked while the pairs are read."""
    x, y = recall.sequences(8, 5, 16, 0)
    for row, target in zip(x, y):
        value_of = dict(zip(row[:16:2].tolist(), row[1:16:2].tolist()))
        assert (
            len(value_of) == 8
            and value_of.keys() == set(row[16:].tolist())
            and set(target[:16].tolist()) == {-1}
        )
        assert [value_of[key] for key in row[16:].tolist()] == target[16:].tolist()
    assert not torch.equal(x, recall.sequences(8, 5, 16, 1)[0])


def test_softmax_remembers_what_others_forget(monkeypatch, tmp_path):
    """Catches a model that cannot find a pair, one that sees past its window, and a sum that forgets nothing."""
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    monkeypatch.setattr(sys, "argv", ["recall.py"])
    monkeypatch.setattr(
        recall,
        "MECHANISMS",
        {"softmax": {}, "linear": {"attention": "linear"}, "window": {"window": 8}},
    )
    recall.main(
        recall.Settings(
            seeds=1, steps=70, most_pairs=16, most_timed=16, keys=32, out_dir=str(tmp_path)
        )
    )
    found = {
        name: run["16"]
        for name, [run] in json.loads((tmp_path / "recall.json").read_text())["runs"].items()
    }
    assert found["softmax"] > 0.95 and found["linear"] < 0.5 and found["window"] < 0.5, found
    assert (tmp_path / "recall.png").stat().st_size > 10_000


def test_memory():
    """Catches a memory that does not grow with softmax, or that grows with a window or a sum."""
    short, long = (
        [recall.memory(name, pairs) for name in recall.MECHANISMS] for pairs in (64, 1024)
    )
    assert long[0] == 16 * short[0] and long[1:] == short[1:] and max(short[1:]) < short[0]


def test_bad_settings():
    """Catches sequences with more pairs than there are keys."""
    assert "keys=8 must be at least 64" in complaint(
        run_here("-m", "experiments.recall", "--keys=8")
    )
