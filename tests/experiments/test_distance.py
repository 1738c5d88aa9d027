"""experiments.distance: the gradient by hand, and that it vanishes in one kind of layer alone."""

import math

import pytest
import torch

from experiments import distance


class Fading(distance.Model):
    """y = x + 0.8 · the y before."""

    def last_state(self, x):
        ago = torch.arange(x.shape[1] - 1, -1, -1)
        return (0.8 ** ago.double())[:, None].mul(x).sum(1)


def test_gradient_by_hand():
    """Catches the gradient of another input, and a norm that is not the Jacobian's."""
    torch.manual_seed(0)
    model = Fading("GRU").double()
    norm = math.sqrt(distance.WIDTH)  # of the identity
    assert distance.gradient(model, 3).item() == pytest.approx(0.8**3 * norm, rel=0.05)
    right = {n: (n - 1) * math.log10(0.8) for n in distance.DISTANCES}
    assert distance.gradients(model) == pytest.approx(right, abs=0.03)


def test_the_first_symbol_is_another_kind():
    """Catches a task that could be solved by looking anywhere."""
    symbols = distance.sequences(50, 7)
    assert symbols.shape == (50, 8)
    assert ((symbols < distance.SYMBOLS).nonzero()[:, 1] == 0).all()


@pytest.mark.slow
def test_attention_reaches_the_first_symbol(small_experiment, monkeypatch):
    """Catches attention whose gradient vanishes, and a task that it does not learn."""
    monkeypatch.setattr(distance, "DISTANCES", [1, 32])
    monkeypatch.setattr(distance, "TRAINED_ALONE", [32])
    monkeypatch.setattr(distance, "NAMES", ["tanh RNN", distance.ATTENTION])
    recurrent, attention = small_experiment(distance, steps=60)["runs"].values()
    for what, gap in (distance.BEFORE, 5), (distance.AFTER, 1), (distance.ALONE, 0.3):
        assert attention[0][what]["32"] > recurrent[0][what]["32"] + gap
    assert attention[0][distance.BEFORE]["32"] > -2
