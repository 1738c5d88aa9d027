"""experiments/scaling.py at a small size: what the square root of D does."""

import json

from conftest import complaint, run_here

from experiments import scaling
from experiments.shared import trials


def test_random_queries_and_keys():
    """Catches a variance of something else than scores, and a slope that is not softmax's."""
    small, large = scaling.at_random(4, 0), scaling.at_random(512, 0)
    assert 3.5 < small["dot"]["variance"] < 4.5 and 480 < large["dot"]["variance"] < 544
    for found in small, large:
        assert (
            0.9 < found["scaled_dot"]["variance"] < 1.1
            and 5.2 < found["scaled_dot"]["entropy"] < 5.5
        )
    assert (
        large["dot"]["entropy"] < 0.5 and large["dot"]["slope"] < 0.6 * large["scaled_dot"]["slope"]
    )
    assert small["dot"]["slope"] > small["scaled_dot"]["slope"]  # where the claim does not hold


def test_a_small_run(tmp_path, monkeypatch):
    """Catches a script that no longer runs, and large heads that are as undecided without the scale as with it."""
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    scaling.main(scaling.Settings(seeds=1, steps=8, sizes=(128,), out_dir=str(tmp_path)))
    (name,) = {path.stem for path in tmp_path.iterdir()}
    rows = json.loads((tmp_path / f"{name}.json").read_text())["tables"]["the same GPT, trained"]
    entropy = {
        (row["init"], row["score"]): float(row["entropy before training (bits)"]) for row in rows
    }
    assert (
        entropy["zero_out", "dot"]
        < 1
        < 5
        < entropy["zero_out", "scaled_dot"]
        < entropy["gpt2", "dot"]
        < 6
    )
    assert all(3 < float(row["validation loss"]) < 5.6 for row in rows)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_bad_settings():
    """Catches a traceback for a size of a head that does not fit."""
    assert "sizes=48 must divide 128" in complaint(
        run_here("-m", "experiments.scaling", "--sizes", "16", "48")
    )
