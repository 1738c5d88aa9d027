"""Where tokens are: order, and texts that are longer than those of training."""

import json
import sys

from conftest import complaint, run_here

from attention import causal, full
from engine.text import dataset
from experiments import positions
from experiments.shared import trials
from masks import sliding_window


def test_order():
    """Catches a path that knows where tokens are without a mask, and a causal one for which it makes no difference."""
    assert (
        positions.disorder(full) < 1e-12
        and positions.disorder(causal) > 0.1
        and positions.disorder(sliding_window(4)) > 0.1
    )


def test_positions_help(poem, monkeypatch, tmp_path):
    """Catches positions that do not reach the model, and a bias of ALiBi that fails beyond the trained length."""
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    monkeypatch.setattr(trials, "text", lambda: dataset.load_dataset(poem, 1))
    monkeypatch.setattr(sys, "argv", ["positions.py"])
    monkeypatch.setattr(
        positions,
        "KINDS",
        {name: positions.KINDS[name] for name in ("none", "learned", "rope", "alibi")},
    )
    positions.main(positions.Settings(seeds=1, steps=80, T=16, out_dir=str(tmp_path)))
    rows = json.loads((tmp_path / "positions.json").read_text())["tables"][
        "validation loss by position"
    ]
    trained, beyond = (
        {row["position"]: float(row[part]) for row in rows} for part in ("up to T=16", "to 8T")
    )
    assert trained["none"] > max(trained["rope"], trained["alibi"]) + 0.02, trained
    assert beyond["alibi"] < min(beyond["rope"], beyond["learned"]) - 0.05, beyond
    assert (tmp_path / "positions.png").stat().st_size > 10_000


def test_bad_settings():
    """Catches a traceback for a length that cannot be."""
    assert "T=1 must be at least 16" in complaint(run_here("-m", "experiments.positions", "--T=1"))
