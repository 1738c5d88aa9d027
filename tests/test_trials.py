"""What experiments share: processes, the training loop, means with errors."""

import math
import os
import pickle
import signal
import time

import pytest
import torch
from conftest import complaint, run_here

from engine import trials, workers


def power(base, seed):
    torch.manual_seed(seed)
    return {"value": base**seed, "process": os.getpid(), "threads": torch.get_num_threads()}


def fails(seed):
    raise ValueError(f"seed {seed} is not for this")


def lambdas(seed):
    return lambda: seed


def killed(seed):
    os.kill(os.getpid(), signal.SIGKILL)


def test_runs_in_processes():
    """Catches results in the order in which they were ready, runs in this process, and threads that fight for cores."""
    found = trials.every(power, [(2, seed) for seed in range(5)])
    assert [run["value"] for run in found] == [1, 2, 4, 8, 16]
    assert os.getpid() not in {run["process"] for run in found} and {run["threads"] for run in found} == {1}
    for function, reason in (fails, "seed 3 is not for this"), (lambdas, "local object"):  # which cannot be sent
        with pytest.raises((ValueError, AttributeError, pickle.PicklingError), match=reason) as raised:
            trials.every(function, [(3,)])
        assert "in serve" in raised.value.__notes__[0]  # where it was, for who wrote it


def test_a_process_that_is_killed():
    """Catches a pool that waits for ever for a process that is dead: in a call, before the first one, or between two."""
    with pytest.raises(ValueError, match="was killed: is there enough memory?"):
        trials.every(killed, [(seed,) for seed in range(4)])
    for calls in 0, 1:
        with workers.Pool(2, int) as pool:
            assert [pool.submit(abs, -1).result() for _ in range(calls)] == [1] * calls
            pool.processes[0].kill()
            found = [pool.submit(abs, -1) for _ in range(4)]
            assert any("was killed" in str(each.exception()) for each in found)
        assert not any(process.is_alive() for process in pool.processes)


def test_a_pool_ends_at_once():
    """Catches calls of minutes that are waited for although an error or Ctrl-C has made them useless."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), workers.Pool(1, int) as pool:
        futures = [pool.submit(time.sleep, 300) for _ in range(3)]
        raise KeyboardInterrupt
    assert time.monotonic() - start < 100 and all(each.done() for each in futures)


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
        return trials.fit(model, lambda step: (model(x) - x.sum(1, keepdim=True)).square().mean(), 200, 0.05)

    first = curve()
    assert len(first) == 200 and first[-1] < 1e-3 * first[0] and first == curve()


def test_bad_settings():
    """Catches a traceback for what cannot be."""
    assert "seeds=0 must be at least 1" in complaint(run_here("-m", "experiments.scaling", "--seeds=0"))


def test_seconds_alone():
    """Catches time in which another program had the processor, or that a call only waited."""
    assert trials.seconds_alone(lambda: (time.sleep(0.05), sum(range(1_000_000)))) < 0.05
