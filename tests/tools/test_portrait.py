"""The self-portrait is the first thing that a newcomer runs: it says the truth about all paths."""

import math

import pytest
import torch
from conftest import complaint, run_here

from attention import ATTENTION, causal, fused
from masks import VISIBLE
from tools import portrait
from tools.shared.worked import EXAMPLES


def test_the_self_portrait(capsys):
    """Catches a path or a mask that is left out, and an example that is not worked right."""
    assert portrait.self_portrait(lengths=(16,))
    printed = capsys.readouterr().out
    row_8_of_local_global = "■ ■ · · · · ■ ■ ■ ·"
    worked = "0.33     0.67", "3.30     6.70", row_8_of_local_global, "all agree"
    assert all(text in printed for text in (*worked, *ATTENTION, *VISIBLE))


def share(scores):
    """Softmax in plain Python."""
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def average(weights, values):
    return [sum(w * x for w, x in zip(weights, column)) for column in zip(*values)]


def look_up(temperature):
    weights = share([0, 0.8 / temperature, 1 / temperature])
    return average(weights, [[120], [80], [45]])


def self_attention():
    scores = [[s / 2**0.5 for s in row] for row in ([1, 0, 1], [0, 2, 1], [1, 2, 2])]
    weights = [share(row) for row in scores]
    return [*scores, *weights, *(average(row, [[1, 0], [0, 1], [2, 2]]) for row in weights)]


TWO = share([0.5**0.5, 2**0.5])
THREE = share([0.44, 3.12, 0.68])
CAUSAL = [[1, 0, 0], [*share([1, 0]), 0], share([2, 2, 2])]
TANH = [math.tanh(0.6 + 0.16), math.tanh(-0.1 + 0.42)]
SCALED = [22 / 512**0.5, 0, -22 / 512**0.5]
BY_HAND = {  # the last rows of each example
    "two-tokens": [TWO, average(TWO, [[10, 0], [0, 10]])],
    "look-up": [*map(look_up, (1.0, 0.3, 0.1, 0.01)), [45]],
    "translation": [THREE, average(THREE, [[0.2, 0.1], [1.5, 0.3], [0.1, 1.2]])],
    "additive": [[0.6, -0.1], [0.16, 0.42], TANH, [TANH[0] - TANH[1] / 2]],
    "projections": [[1, 2], [2, 2], [0.5, 3], [2, 4]],
    "self-attention": self_attention(),
    "causal-mask": [[0, -math.inf, -math.inf], [1, 0, -math.inf], [2, 2, 2], *CAUSAL],
    "temperatures": [share([s / t for s in (2, 1, 0.5, 0.1)]) for t in (0.1, 0.5, 1, 2, 4)],
    "scale": [SCALED, share(SCALED)],
    # 10 of the 4 x 4 tiles of 256 are not all future
    "traffic": [[262.144], [4194.304], [131.072], [10 * 2 * 256 * 64 / 1000]],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example(name):
    """Catches an example whose numbers are not what its words say."""
    rows = []
    for numbers in EXAMPLES[name]().values():
        numbers = torch.as_tensor(numbers)
        rows += numbers.reshape(-1, numbers.shape[-1]).tolist()
    expected = BY_HAND[name]
    assert len(expected) > 1
    for found, row in zip(rows[-len(expected) :], expected, strict=True):
        assert found == pytest.approx(row, rel=1e-5, abs=1e-5)


def test_one_worked_example():
    """Catches a name that is ignored, and an unknown one that is a traceback."""
    result = run_here("attention.py", "look-up")
    assert "database['order_106']" in result.stdout and "two-tokens" not in result.stdout
    assert "choose from two-tokens, look-up" in complaint(run_here("attention.py", "lookup"))


def wrong_value(q, k, v, visible=causal):
    return fused(q, k, v, visible) + 1e-9


def wrong_gradient(q, k, v, visible=causal):
    return fused(q, k, v, visible) + 1e-9 * (q - q.detach())


@pytest.mark.parametrize("path", [wrong_value, wrong_gradient])
def test_a_wrong_path(path, monkeypatch, capsys):
    """Catches "all agree" of a fork's own path whose value or gradient is wrong."""
    monkeypatch.setattr(portrait, "ATTENTION", {"wrong": path})
    assert not portrait.self_portrait(lengths=(16,))
    assert "THEY DO NOT AGREE" in capsys.readouterr().out
