"""How attention grows: exponents, and the two kinds that are written out in the experiment."""

import json
import sys

import pytest
import torch
from conftest import complaint, run_here

from attention import full, masked_fill
from engine.text import dataset
from experiments import efficient
from experiments.shared import trials
from masks import sliding_window


def test_exponents():
    """Catches a fit of all lengths, whose first half has other costs, and an error that is not zero on a line."""
    lengths = [2**n for n in range(8, 14)]
    p, error = efficient.exponent(lengths, [1e6, 1e6, 1e6, *(3 * n**1.5 for n in lengths[3:])])
    assert p == pytest.approx(1.5) and error == pytest.approx(0, abs=1e-9)
    assert efficient.exponent(lengths, [n**2 * (1 + 0.1 * (n % 3)) for n in lengths])[1] > 0.01


def test_two_heads():
    """Catches columns that are folded in the wrong order, and keys that neither head sees, or that are not strided's."""
    q, k, v = torch.randn(
        3, 2, 2, 512, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    S = efficient.stride(512)
    local, columns = efficient.two_heads(q, k, v)
    torch.testing.assert_close(local, masked_fill(q, k, v, sliding_window(S)))
    torch.testing.assert_close(
        columns, masked_fill(q, k, v, lambda i, j: (j <= i) & ((i - j) % S == 0))
    )


def test_linformer():
    """Catches projections of features in place of positions: those that keep all positions change nothing."""
    q, k, v = torch.randn(
        3, 1, 1, 32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    identity = torch.eye(32, dtype=torch.float64)
    torch.testing.assert_close(
        efficient.linformer(q, k, v, identity, identity), masked_fill(q, k, v, full)
    )


def test_growth(poem, monkeypatch, tmp_path):
    """Catches memory of n² where O(n) is claimed, and pairs that do not grow as the claim says."""
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    monkeypatch.setattr(trials, "text", lambda: dataset.load_dataset(poem, 1))
    text_loss = trials.text_loss
    monkeypatch.setattr(
        trials, "text_loss", lambda model, tokens, T, batches: text_loss(model, tokens, T, 1, 2)
    )
    monkeypatch.setattr(trials, "seconds_alone", lambda call: 0.001)  # no test can rely on time
    monkeypatch.setattr(sys, "argv", ["efficient.py"])
    efficient.main(efficient.Settings(seeds=1, steps=2, longest=2048, out_dir=str(tmp_path)))
    report = json.loads((tmp_path / "efficient.json").read_text())
    growth = {
        what: {
            name: efficient.exponent(report["lengths"], values[what])[0]
            for name, values in report["costs"].items()
        }
        for what in ("pairs", "MB")
    }
    assert growth["MB"].pop("masked_fill") > 1.9 and max(growth["MB"].values()) < 1.3, growth
    pairs = growth["pairs"]
    assert (
        pairs["fused"] > 1.9
        and 1.3 < pairs["strided, as a mask"] < 1.8
        and pairs["sliding window, 64"] < 1.1
    ), pairs
    assert (
        set(report["losses"]) == set(efficient.QUALITY)
        and (tmp_path / "efficient.png").stat().st_size > 10_000
    )


def test_bad_settings():
    """Catches lengths too few for a line through their upper half."""
    assert "longest=512 must be at least 1024" in complaint(
        run_here("-m", "experiments.efficient", "--longest=512")
    )
