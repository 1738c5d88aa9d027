"""How attention grows: exponents, and the two kinds that are written out in the experiment."""

import pytest
import torch

from attention import full, masked_fill
from experiments import efficient
from experiments.shared import trials
from experiments.shared.chosen import chosen
from masks import sliding_window


def test_exponents():
    """Catches a fit that includes the lower half, and an error that is not zero on a line."""
    lengths = [2**n for n in range(8, 14)]
    p, error = efficient.exponent(lengths, [1e6, 1e6, 1e6, *(3 * n**1.5 for n in lengths[3:])])
    assert p == pytest.approx(1.5) and error == pytest.approx(0, abs=1e-9)


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


def test_chosen_keys():
    """Catches keys of the future, rows in another order, and choices by something else."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 300, 8, dtype=torch.float64, generator=random)
    full_attention = masked_fill(q, k, v)
    torch.testing.assert_close(chosen(q, k, v, keys=300), full_attention)
    last = chosen(q[:, :, -5:], k, v, keys=400)
    torch.testing.assert_close(last, full_attention[:, :, -5:])
    few = chosen(q, k, v, keys=4)
    assert torch.equal(few[:, :, :200], chosen(*(x[:, :, :200] for x in (q, k, v)), keys=4))
    torch.testing.assert_close(few[:, :, :4], full_attention[:, :, :4])


def test_the_best_keys_are_chosen(monkeypatch):
    """Catches the worst keys, and scores of other pairs."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 40, 8, dtype=torch.float64, generator=random)
    monkeypatch.setattr(torch, "randn", lambda *shape, generator: torch.eye(8))
    scores = (q @ k.mT)[0, 0].masked_fill(torch.ones(40, 40).triu(1) > 0, -torch.inf)
    fifth = scores.topk(5, 1).values[:, -1:]
    right = masked_fill(q, k, v, lambda i, j: (scores >= fifth) & (j <= i))
    torch.testing.assert_close(chosen(q, k, v, keys=5), right)


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
