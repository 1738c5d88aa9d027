"""What experiments share: processes, the training loop, means with errors."""

import math
import os
import time

import pytest
import torch
from conftest import complaint, run_here

from experiments.shared import trials


def power(base, seed):
    torch.manual_seed(seed)
    time.sleep(0.3 * (seed == 0))
    return {"value": base**seed, "process": os.getpid(), "threads": torch.get_num_threads()}


def fails(seed, folder):
    if seed == 0:
        raise ValueError("no run for seed 0")
    (folder / str(seed)).touch()
    time.sleep(1)


def test_runs_in_processes():
    """Catches results in the order in which they were ready, runs in this process, and threads that fight for cores."""
    found = trials.every(power, [(2, seed) for seed in range(5)])
    assert [run["value"] for run in found] == [1, 2, 4, 8, 16]
    assert os.getpid() not in {run["process"] for run in found} and {
        run["threads"] for run in found
    } == {1}


def test_runs_that_fail(tmp_path):
    """Catches a failure that is lost, and runs that go on although it has made them useless."""
    with pytest.raises(ValueError, match="no run for seed 0"):
        trials.every(fails, [(seed, tmp_path) for seed in range(20)])
    assert len([*tmp_path.iterdir()]) < 15


def test_results_by_kind():
    """Catches seeds that are given to another kind."""
    assert trials.by_kind("ab", [1, 2, 3, 4]) == {"a": [1, 2], "b": [3, 4]}


def test_means():
    """Catches a standard deviation in place of a standard error."""
    middle, error = trials.mean([1.0, 2.0, 3.0, 4.0])
    assert middle == 2.5 and math.isclose(error, math.sqrt(5 / 3) / 2)
    assert trials.plus_minus([1.0, 3.0]) == "2.000 ± 1.000" and trials.plus_minus([1.0]) == "1.000"


def test_fit():
    """Catches a loop that does not learn, and one that is not a function of its seed."""

    def curve():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        x = torch.randn(64, 4)
        return trials.fit(
            model, lambda step: (model(x) - x.sum(1, keepdim=True)).square().mean(), 200, 0.05
        )

    first = curve()
    assert len(first) == 200 and first[-1] < 1e-3 * first[0] and first == curve()


def test_bad_settings():
    """Catches a traceback for what cannot be."""
    assert "seeds=0 must be at least 1" in complaint(
        run_here("-m", "experiments.scaling", "--seeds=0")
    )


def test_seconds_alone():
    """Catches time in which another program had the processor, or that a call only waited."""
    assert trials.seconds_alone(lambda: (time.sleep(0.05), sum(range(1_000_000)))) < 0.05
