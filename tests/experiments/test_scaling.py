"""experiments/scaling.py at a small size: what the square root of D does."""

import pytest

from experiments import scaling


def test_random_queries_and_keys():
    """Catches a variance of something else than scores, and a slope that is not softmax's."""
    for D in 4, 512:
        found = scaling.measure_softmax(D)
        scaled, dot = found["scaled_dot"], found["dot"]
        assert 0.9 * D < dot["variance"] < 1.1 * D and 0.9 < scaled["variance"] < 1.1
        assert 5.2 < scaled["entropy"] < 5.5
        if D == 4:
            assert dot["slope"] > scaled["slope"]  # where the claim does not hold
        else:
            assert dot["entropy"] < 0.5 and dot["slope"] < 0.6 * scaled["slope"]


@pytest.mark.slow
def test_a_small_run(small_experiment, monkeypatch):
    """Catches large heads that are as undecided without the scale as with it."""
    monkeypatch.setattr(scaling, "SIZES", (128,))
    rows = small_experiment(scaling, steps=8)["tables"]["the same GPT, trained"]
    scaled, dot, _, small_dot = (float(row["entropy before training (bits)"]) for row in rows)
    assert dot < 2 < 5 < scaled < small_dot < 6
    assert all(3 < float(row["validation loss"]) < 5.6 for row in rows)
