"""Threads that follow what other programs leave free."""

import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from engine import threads


@pytest.fixture
def four_cores(monkeypatch):
    """A machine with four cores, four threads, and a clock that the test moves: (seconds, seconds of other programs)."""
    clock, count = [0.0, 0.0], [4]
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(threads, "seconds_elsewhere", lambda: clock[1])
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: count.__setitem__(0, n))
    return clock, count


def test_threads_follow_the_free_cores(four_cores):
    """Catches threads that wait for cores which others have, or that never come back when the others have gone."""
    clock, count = four_cores
    with threads.FreeCores() as cores:
        for others, expected in (0.0, 4), (0.4, 4), (0.8, 3), (2.1, 2), (4.0, 1), (9.0, 1), (1.0, 3), (0.0, 4):
            clock[0], clock[1] = clock[0] + 1, clock[1] + others
            cores.follow()
            assert count == [expected]
        clock[1] += 5
        cores.follow()  # too soon to know
        assert count == [4]
        clock[0] += 1
        cores.follow()
        assert count == [1]
    assert count == [4]


def test_a_system_that_does_not_say(four_cores, monkeypatch):
    """Catches an error, or fewer threads, where there is no /proc/stat."""
    clock, count = four_cores
    monkeypatch.setattr(threads, "seconds_elsewhere", lambda: None)
    with threads.FreeCores() as cores:
        clock[0] += 1
        cores.follow()
    assert count == [4]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat")
def test_another_program_is_seen():
    """Catches figures that count this process as another one, or others not at all."""
    begin = threads.seconds_elsewhere(), threads.time.process_time()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"])
    assert threads.seconds_elsewhere() - begin[0] > 0.4
    begin = threads.seconds_elsewhere()
    assert begin <= threads.seconds_elsewhere() + 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp")
@pytest.mark.parametrize("given, expected", [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77")])
def test_training_waits_a_short_time(given, expected, monkeypatch):
    """Catches a setting that comes after torch has read it, or one of the user's that is overwritten."""
    for name in "GOMP_SPINCOUNT", "OMP_WAIT_POLICY":
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    result = subprocess.run([sys.executable, "-c", "import train"], cwd=ROOT, capture_output=True, text=True)
    assert f"GOMP_SPINCOUNT = '{expected}'" in result.stderr
