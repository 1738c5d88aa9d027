"""Several processes: what happens to the others when one of them is killed, stops, or is told to end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

from engine.weights import checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/task").exists(), reason="finds the processes in Linux's /proc"
    ),
]

IMPATIENT = """
import runpy, sys
from engine.common import processes
processes.BEAT, processes.PATIENCE, processes.JOIN = 0.5, 6, 20
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


@pytest.fixture
def torchrun(poem, tmp_path, request):
    """torchrun, just started, with two processes of train.py that wait for each other a few seconds only."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    settings = SMALL | dict(
        dataset=poem, out_dir=tmp_path / "out", eval_interval=50, eval_iters=1, max_iters=10**6
    )
    settings |= dict(
        gradient_accumulation_steps=2, dropout=0.1, parallel=getattr(request, "param", "ddp")
    )
    torchrun = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node=2",
            tmp_path / "impatient.py",
            *(f"--{key}={value}" for key, value in settings.items()),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 90
    while len(ranks := children(torchrun.pid)) < 2:
        assert torchrun.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    yield torchrun, ranks
    for pid in (torchrun.pid, *ranks):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    torchrun.communicate()


@pytest.fixture
def two(torchrun, tmp_path):
    """... once they are training."""
    deadline = time.monotonic() + 90
    while not checkpoint.list_checkpoints(tmp_path / "out"):
        assert torchrun[0].poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    return torchrun


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_within(seconds, pids):
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not any(map(alive, pids))


def test_torchrun_is_killed(two):
    """Catches orphans that train on, with all cores, when nobody can see or stop them any more."""
    torchrun, ranks = two
    torchrun.kill()
    assert end_within(30, ranks)
    assert "torchrun has ended" in torchrun.stderr.read()


@pytest.mark.parametrize(
    "number, which", [(signal.SIGKILL, 1), (signal.SIGSTOP, 0), (signal.SIGSTOP, 1)]
)
def test_a_process_is_lost(two, number, which):
    """Catches processes that wait for ever for one that is gone or does not answer, and a traceback in place of a line."""
    torchrun, ranks = two
    os.kill(ranks[which], number)
    assert end_within(60, [ranks[1 - which]])
    if number == signal.SIGSTOP:
        os.kill(ranks[which], signal.SIGKILL)
    _, errors = torchrun.communicate(timeout=60)
    assert torchrun.returncode != 0
    if number == signal.SIGSTOP:
        assert f"process {1 - which} ends: process {which} has not answered" in errors


def test_a_process_that_never_joins(torchrun):
    """Catches a process that waits for ever for one that was lost before it said anything."""
    torchrun, ranks = torchrun
    time.sleep(0.5)
    os.kill(ranks[1], signal.SIGSTOP)
    assert end_within(60, ranks[:1])
    os.kill(ranks[1], signal.SIGKILL)
    assert "process 0 ends: the others have not joined it" in torchrun.communicate(timeout=60)[1]


@pytest.mark.parametrize("torchrun", ["ddp", "fsdp"], indirect=True)
def test_processes_that_are_told_to_end(two, tmp_path):
    """Catches a preempted job of several processes that saves nothing, or whose processes stop at different steps."""
    torchrun, ranks = two
    os.kill(ranks[1], signal.SIGTERM)  # one of them is enough
    output, errors = torchrun.communicate(timeout=60)
    folder = checkpoint.find_checkpoint(tmp_path / "out")
    step = json.loads((folder / "config.json").read_text())["step"]
    assert f"SIGTERM: stopped at step {step}" in output and not list(
        (tmp_path / "out").glob("*.partial")
    ), errors
