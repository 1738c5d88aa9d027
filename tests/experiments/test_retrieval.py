"""experiments.retrieval: which pairs belong together, and that they are found."""

import math

import pytest
import torch

from experiments import retrieval
from experiments.shared.pair import contrastive_loss


def test_contrastive_loss():
    """Catches one direction for both, a scale that divides, and pairs that are not aligned."""
    torch.manual_seed(0)
    x, y = torch.nn.functional.normalize(torch.randn(2, 5, 3, dtype=torch.float64), dim=-1)
    total = 0.0
    for n in range(5):
        for one, others in (x[n], y), (y[n], x):
            scores = [4.0 * sum(a * b for a, b in zip(one, other)).item() for other in others]
            total += math.log(sum(math.exp(score) for score in scores)) - scores[n]
    assert contrastive_loss(x, y, 4.0).item() == pytest.approx(total / 10, abs=1e-12)
    own = torch.eye(5, dtype=torch.float64)  # each pair the same vector, and no other like it
    least = contrastive_loss(own, own, 4.0).item()
    assert least == pytest.approx(math.log(1 + 4 * math.exp(-4)), abs=1e-12)
    assert contrastive_loss(own, own, 100.0) < 1e-12
    assert contrastive_loss(own, own.roll(1, 0), 4.0) > least + 3.9


def test_the_best_of_each_row():
    """Catches columns for rows."""
    scores = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]])
    right = torch.tensor([[False, True], [False, True], [False, True]])
    assert retrieval.share_right(scores, right) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_they_find_each_other(small_experiment):
    """Catches captions of other images."""
    pytest.importorskip("sklearn")
    [(pair, guess)] = small_experiment(retrieval, steps=80)["tables"].values()
    assert float(pair["digit of an image"]) > 0.5 and float(guess["digit of an image"]) == 0.1
    assert float(pair["caption of an image"]) > 0.3 > float(guess["caption of an image"])
