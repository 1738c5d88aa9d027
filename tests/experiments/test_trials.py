"""What all experiments share: runs in processes, training, means with errors, settings."""

import math
import os
import signal
import time

import pytest
import torch
from conftest import refused

from experiments.shared import trials


def power(base, config, seed):
    time.sleep(0.3 * (seed == 0))
    return base**seed, os.getpid(), torch.get_num_threads(), torch.initial_seed() == seed


def fails(seed, folder):
    if seed == 0:
        raise ValueError("no run for seed 0")
    (folder / str(seed)).touch()
    time.sleep(0.3)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def test_runs_in_processes():
    """Catches results in the order of their end, runs in this process or without their seed."""
    runs = trials.run_seeds(power, [2, 3], trials.Settings(seeds=3))
    for base, found in runs.items():
        values, processes, *threads_and_seeds = zip(*found)
        assert values == (1, base, base**2) and os.getpid() not in processes
        assert threads_and_seeds == [(1, 1, 1), (True, True, True)]


def test_runs_that_fail(tmp_path):
    """Catches a failure that is lost, and runs that go on although it has made them useless."""
    with refused("no run for seed 0"):
        trials.run_jobs(fails, [(seed, tmp_path) for seed in range(20)])
    assert len([*tmp_path.iterdir()]) < 15


def test_a_run_that_is_killed():
    """Catches a traceback where the system has killed a run for lack of memory."""
    with refused("a run was killed"):
        trials.run_jobs(killed, [()])


def test_means():
    """Catches a standard deviation in place of a standard error."""
    means, errors = trials.mean_and_error([[1.0, 2.0, 3.0, 4.0], [5.0] * 4])
    assert [*means] == [2.5, 5] and errors == pytest.approx([math.sqrt(5 / 3) / 2, 0])
    assert trials.plus_minus([1.0, 3.0]) == "2.000 ± 1.000" and trials.plus_minus([1.0]) == "1.000"


def test_fit():
    """Catches a loop that does not learn, and a schedule that does not reach the optimizer."""
    model = torch.nn.Linear(4, 1)
    x = torch.randn(64, 4)
    trials.fit(model, lambda step: (model(x).T - x.sum(1)).square().mean(), 200, 0.05)
    torch.testing.assert_close(model.weight, torch.ones(1, 4), atol=0.02, rtol=0)
    before = model.bias.item()
    trials.fit(model, lambda step: model.bias.sum(), 3, 0.5, schedule=lambda step: step / 10)
    assert before - model.bias.item() == pytest.approx(0.5 * 0.3, abs=1e-4)  # Adam's own steps


def test_milliseconds():
    """Catches time in which another program had the processor, or that a call only waited."""
    assert trials.milliseconds(lambda: (time.sleep(0.05), sum(range(1_000_000)))) < 50
