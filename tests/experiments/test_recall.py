"""Recall against cost: the task, the models, and what each can remember."""

import pytest
import torch

from experiments import recall


def test_the_task():
    """Catches a key with two values, a question without an answer, and one among the pairs."""
    x, y = recall.sequences(8, 5, 0)
    for row, target in zip(x.tolist(), y.tolist()):
        value_of = dict(zip(row[:16:2], row[1:16:2]))
        assert len(value_of) == 8 and value_of.keys() == set(row[16:])
        assert target == [-1] * 16 + [value_of[key] for key in row[16:]]
    assert not torch.equal(x, recall.sequences(8, 5, 1)[0])


@pytest.mark.slow
def test_softmax_remembers_what_others_forget(small_experiment, monkeypatch):
    """Catches a model that finds no pair, a wider window, and a sum that forgets nothing."""
    kinds = {"softmax": {}, "linear": {"attention": "linear"}, "window": {"window": 8}}
    monkeypatch.setattr(recall, "MECHANISMS", kinds)
    monkeypatch.setattr(recall, "PAIRS", [4, 8, 16])
    monkeypatch.setattr(recall, "TIMED", [4, 8, 16])
    monkeypatch.setattr(recall, "KEYS", 32)
    rows = small_experiment(recall, steps=70)["tables"]["share of right answers"]
    softmax, linear, window = (float(row["16 pairs"]) for row in rows)
    assert softmax > 0.95 and linear < 0.5 and window < 0.5, rows
