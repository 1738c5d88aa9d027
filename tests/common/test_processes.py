"""Several processes under torchrun: what happens to the others when one of them is told to end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, as_flags

from engine.weights import checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc"),
]


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


@pytest.fixture
def two_processes(poem, tmp_path):
    """torchrun with two processes of train.py that have saved a checkpoint, and their numbers."""
    settings = SMALL | dict(dataset=poem, out_dir=tmp_path / "out", eval_iters=1, max_iters=10**6)
    settings |= dict(gradient_accumulation_steps=2, eval_interval=50)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["train.py", *as_flags(settings)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as torchrun:
        deadline = time.monotonic() + 120
        while not checkpoint.list_checkpoints(tmp_path / "out"):
            assert torchrun.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        ranks = children(torchrun.pid)
        yield torchrun, ranks
        for pid in (torchrun.pid, *ranks):
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
        torchrun.communicate()


def test_one_process_is_told_to_end(two_processes, tmp_path):
    """Catches a preempted job that saves nothing, or whose processes stop at different steps."""
    torchrun, ranks = two_processes
    os.kill(ranks[1], signal.SIGTERM)
    output, errors = torchrun.communicate(timeout=60)
    folder = checkpoint.find_checkpoint(tmp_path / "out")
    step = json.loads((folder / "config.json").read_text())["step"]
    assert f"SIGTERM: stopped at step {step}" in output, errors
    assert not list((tmp_path / "out").glob("*.partial"))


def test_one_process_is_killed(two_processes):
    """Catches a process that waits for ever for one that is gone."""
    torchrun, ranks = two_processes
    os.kill(ranks[1], signal.SIGKILL)
    torchrun.communicate(timeout=90)
    assert torchrun.returncode != 0 and not Path(f"/proc/{ranks[0]}").exists()
