"""What experiments share: processes, the training loop, means with errors."""

import math
import os
import pickle
import signal
import time

import pytest
import torch
from conftest import ROOT, complaint, run, run_here

from engine.common import workers
from experiments.shared import trials


def power(base, seed):
    torch.manual_seed(seed)
    time.sleep(0.3 * (seed == 0))
    return {"value": base**seed, "process": os.getpid(), "threads": torch.get_num_threads()}


def fails(seed):
    raise ValueError(f"seed {seed} is not for this")


def ends(seed):
    raise SystemExit(f"seed {seed} ends it")


def makes_a_lambda(seed):
    return lambda: seed


def killed(seed):
    os.kill(os.getpid(), signal.SIGKILL)


def test_runs_in_processes():
    """Catches results in the order in which they were ready, runs in this process, and threads that fight for cores."""
    found = trials.every(power, [(2, seed) for seed in range(5)])
    assert [run["value"] for run in found] == [1, 2, 4, 8, 16]
    assert os.getpid() not in {run["process"] for run in found} and {
        run["threads"] for run in found
    } == {1}


@pytest.mark.parametrize(
    "function, error, reason",
    [
        (fails, ValueError, "seed 3 is not for this"),
        (ends, SystemExit, "seed 3 ends it"),
        (makes_a_lambda, (AttributeError, pickle.PicklingError), "local object"),
    ],
)
def test_runs_that_fail(function, error, reason):
    """Catches a failure that is called a killed process, and one of which nobody learns where it was."""
    with pytest.raises(error, match=reason) as raised:
        trials.every(function, [(3,)])
    assert "in serve" in raised.value.__notes__[0]


def test_a_process_that_is_killed():
    """Catches a pool that waits for ever for a process that is dead: in a call, before it, or between two."""
    with pytest.raises(ValueError, match="was killed: is there enough memory?"):
        trials.every(killed, [(seed,) for seed in range(4)])
    for calls in 0, 1:
        with workers.Pool(2) as pool:
            assert [pool.submit(abs, -1).result() for _ in range(calls)] == [1] * calls
            pool.processes[0].kill()
            found = [pool.submit(len, b"x" * 10**6) for _ in range(4)]  # more than a pipe holds
            assert any("was killed" in str(each.exception()) for each in found)


def test_a_pool_ends_at_once():
    """Catches calls of minutes that are waited for although an error or Ctrl-C has made them useless, and processes left."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), workers.Pool(1) as pool:
        futures = [pool.submit(time.sleep, 300) for _ in range(3)]
        raise KeyboardInterrupt
    assert time.monotonic() - start < 100 and all(each.done() for each in futures)
    assert not any(process.is_alive() for process in pool.processes)


POOL = """
import os, signal, time
from engine.common import workers
if __name__ == "__main__":
    os.setsid()
    with workers.Pool(2) as pool:
        pids = [each.result() for each in [pool.submit(os.getpid), pool.submit(os.getpid)]]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.killpg(0, signal.SIGINT)
        print(*pids, *{pool.submit(os.getpid).result() for _ in range(4)}, flush=True)
        for _ in pids:
            pool.submit(time.sleep, 1000)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_signals(tmp_path):
    """Catches processes that Ctrl-C ends before the one that they work for, and processes that outlive that one."""
    (tmp_path / "pool.py").write_text(POOL)
    result = run(
        tmp_path / "pool.py", PYTHONPATH=str(ROOT)
    )  # it returns as soon as nobody can write to its output
    one, other, *after = result.stdout.split()
    assert {*after} == {one, other} and not result.stderr


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
