"""experiments.induction: the heads form in two layers, and cannot in one."""

import pytest
import torch

from experiments import induction
from experiments.shared import trials


def test_sequences():
    """Catches a period that is not the one that is told, and one for all rows."""
    ids, period = induction.sequences(32, torch.Generator().manual_seed(0))
    assert ids.shape == (32, induction.T + 1) and len(period.unique()) > 5
    for row, p in zip(ids, period.flatten()):
        assert torch.equal(row[p:], row[:-p])


def test_scores(monkeypatch):
    """Catches a score that counts the copy itself, or only the last of several."""
    T = induction.T
    ids, period = torch.arange(6).repeat(9)[None, : T + 1], torch.tensor([[6]])

    def looking(q, k, visible, score, normalize):
        i, j = torch.arange(T)[:, None], torch.arange(T)
        copies = ((i + 1 - j) % 6 == 0) & (j <= i) & (j > 0)
        return (copies / copies.sum(-1, keepdim=True).clamp_min(1)).expand(1, 2, T, T)

    monkeypatch.setattr(induction, "attention_weights", looking)
    model = trials.new_gpt(block_size=T, vocab_size=6, n_layer=1, n_head=2, n_embd=8)
    found, maps = induction.measure(model, ids, period)
    assert torch.allclose(torch.tensor(found["induction"]), torch.ones(1, 2))
    assert found["previous token"] == [[0, 0]] and maps.shape == (1, 1, 2, T, T)


@pytest.mark.slow
def test_two_layers_do_what_one_cannot(small_experiment):
    """Catches scores and losses of the wrong tokens: only two layers foresee what comes again."""
    one, two = small_experiment(induction, steps=270)["tables"].popitem()[1]
    assert float(two["loss, again"]) < 1.5 < float(one["loss, again"])
    assert float(two["loss, new tokens"]) > 3  # of log(32) = 3.47: new tokens cannot be foreseen
    heads = [row["runs with an induction head"] for row in (one, two)]
    assert heads == ["0 of 1", "1 of 1"]
