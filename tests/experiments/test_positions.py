"""Where tokens are: order, and texts that are longer than those of training."""

import pytest

from attention import causal, full
from experiments import positions
from masks import sliding_window


def test_order():
    """Catches a path that knows positions without a mask, and a mask that makes no difference."""
    assert positions.disorder(full) < 1e-12
    assert positions.disorder(causal) > 0.1 and positions.disorder(sliding_window(4)) > 0.1


@pytest.mark.slow
def test_positions_help(small_experiment, monkeypatch):
    """Catches positions that do not reach the model, and ALiBi that fails in longer texts."""
    kinds = {name: positions.KINDS[name] for name in ("none", "learned", "rope", "alibi")}
    monkeypatch.setattr(positions, "KINDS", kinds)
    monkeypatch.setattr(positions, "T", 16)
    report = small_experiment(positions, steps=80)
    rows = report["tables"]["validation loss by position"]
    trained = {row["position"]: float(row["up to T=16"]) for row in rows}
    beyond = {row["position"]: float(row["to 8T"]) for row in rows}
    assert trained["none"] > max(trained["rope"], trained["alibi"]) + 0.02, trained
    assert beyond["alibi"] < min(beyond["rope"], beyond["learned"]) - 0.05, beyond
