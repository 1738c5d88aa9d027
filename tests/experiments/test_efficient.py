"""How attention grows: exponents, and the two kinds that are written out in the experiment."""

import pytest
import torch

from attention import full, masked_fill
from experiments import efficient
from experiments.shared import trials
from experiments.shared.chosen import chosen
from masks import sliding_window


def test_paths_written_out_here():
    """Catches columns in the wrong order, other keys than strided's, projections of features."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 512, 8, dtype=torch.float64, generator=random)
    S = efficient.stride(512)
    local, columns = efficient.two_heads(q, k, v)
    torch.testing.assert_close(local, masked_fill(q, k, v, sliding_window(S)))
    right = masked_fill(q, k, v, lambda i, j: (j <= i) & ((i - j) % S == 0))
    torch.testing.assert_close(columns, right)
    identity = torch.eye(512, dtype=torch.float64)
    mixed = efficient.linformer(q, k, v, identity, identity)
    torch.testing.assert_close(mixed, masked_fill(q, k, v, full))


def test_the_best_keys_are_chosen(monkeypatch):
    """Catches the worst keys, those of the future, scores of other pairs, rows in another order."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 300, 8, dtype=torch.float64, generator=random)
    monkeypatch.setattr(torch, "randn", lambda *shape, generator: torch.eye(8))
    scores = (q @ k.mT).masked_fill(torch.ones(300, 300).triu(1) > 0, -torch.inf)
    best = scores >= scores.topk(5).values[..., -1:]
    right = torch.softmax((scores / 8**0.5).masked_fill(~best, -torch.inf), -1) @ v
    torch.testing.assert_close(chosen(q, k, v, keys=5), right)
    torch.testing.assert_close(chosen(q[:, :, -5:], k, v, keys=5), right[:, :, -5:])


@pytest.mark.slow
def test_growth(small_experiment, monkeypatch):
    """Catches memory of n² where O(n) is claimed, and pairs that do not grow as the claim says."""
    monkeypatch.setattr(trials, "seconds_alone", lambda call: 0.001)  # no test can rely on time
    monkeypatch.setattr(trials, "text_loss", lambda *args, **settings: 2.5)
    lengths = [256, 512, 1024, 2048, 4096]
    monkeypatch.setattr(efficient, "LENGTHS", lengths)
    report = small_experiment(efficient, steps=2)
    pairs, memory = {}, {}
    for name, values in report["costs"].items():
        pairs[name], _ = efficient.exponent(lengths, values["pairs"])
        memory[name], _ = efficient.exponent(lengths, values["MB"])
    assert memory.pop("masked_fill") > 1.9 and max(memory.values()) < 1.3, memory
    assert pairs["fused"] > 1.9 and pairs["sliding window, 64"] < 1.1, pairs
    assert 1.3 < pairs["strided, as a mask"] < 1.8, pairs
    assert report["losses"].keys() == efficient.TRAINED.keys()
