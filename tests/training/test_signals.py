"""A run in a process of its own: the signals that stop it, and the files it leaves."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import (
    ROOT,
    SMALL,
    as_flags,
    complaint,
    exit_code,
    forked,
    losses,
    output_of,
    run_here,
    same_weights,
)

from engine.training import signals
from engine.weights import checkpoint
from train import TrainConfig, train


@pytest.fixture
def settings(poem):
    return SMALL | dict(dataset=poem, eval_iters=1, dropout=0.1, lr_decay_iters=1000)


class Started:
    """train.py for a million steps, in a fork; `with` leaves none behind."""

    def __init__(self, settings, out_dir):
        self.output = Path(f"{out_dir}.txt")
        self.status = None
        settings = settings | dict(out_dir=out_dir, max_iters=10**6)
        with self.output.open("w") as file:
            self.pid = forked(["train.py", *as_flags(settings)], file, file)

    def text(self):
        return self.output.read_text()

    def until(self, condition):
        while not condition():
            assert exit_code(self.pid, os.WNOHANG) is None, self.text()
            time.sleep(0.001)

    def stopped(self, number):
        """Return its exit code after a signal."""
        os.kill(self.pid, number)
        self.status = exit_code(self.pid)
        return self.status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.status is None:
            self.stopped(signal.SIGKILL)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_saves_and_ends(settings, tmp_path, name):
    """Catches steps that are lost to a preemption, and a user who must find out how to continue."""
    number = getattr(signal, name)
    out = tmp_path / "my out"
    settings["eval_interval"] = 7
    with Started(settings, out) as process:
        process.until(lambda: "step 7:" in process.text())
        assert process.stopped(number) == 128 + number and "Traceback" not in process.text()
    folder = checkpoint.find_checkpoint(out)
    step = checkpoint.step_of(folder)
    assert f"{name}: stopped at step {step}; {folder} is the last good" in process.text()
    assert f"--init_from=resume --out_dir='{out}'" in process.text()
    settings["max_iters"] = step + 9
    train(TrainConfig(**settings, out_dir=str(out), init_from="resume"))
    train(TrainConfig(**settings, out_dir=str(tmp_path / "whole")))
    assert same_weights(out, tmp_path / "whole")
    assert losses(out) == losses(tmp_path / "whole")


def test_a_checkpoint_on_demand(settings, tmp_path):
    """Catches a SIGUSR1 that ends the run, or saves nothing."""
    with Started(settings | dict(eval_interval=10**6), tmp_path) as process:
        process.until((tmp_path / "metrics.jsonl").exists)  # then it listens
        os.kill(process.pid, signal.SIGUSR1)
        process.until(lambda: checkpoint.list_checkpoints(tmp_path))
        assert process.stopped(signal.SIGTERM) == 128 + signal.SIGTERM
    assert len(checkpoint.list_checkpoints(tmp_path)) >= 2


def test_a_request_is_answered_once():
    """Catches a SIGUSR1 after which each step is saved, and one that is forgotten."""
    requests = signals.Requests()
    requests.note(signal.SIGUSR1, None)
    assert [requests.agree(), requests.agree(), requests.agree(save=True)] == [
        (0, True),
        (0, False),
        (0, True),
    ]
    requests.note(signal.SIGTERM, None)
    assert requests.agree() == requests.agree() == (signal.SIGTERM, False)


def test_a_second_ctrl_c_ends_at_once():
    """Catches an impatient user who must wait."""
    requests = signals.Requests()
    requests.patience = 1  # under torchrun
    requests.note(signal.SIGINT, None)
    requests.note(signal.SIGINT, None)  # torchrun hands on what the terminal has already sent
    assert requests.stop == signal.SIGINT
    requests.stopped_at -= 2
    with pytest.raises(KeyboardInterrupt):
        requests.note(signal.SIGINT, None)


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="reads the loaded libraries in /proc"
)
@pytest.mark.parametrize("name, status", [("SIGINT", -signal.SIGINT), ("SIGUSR1", 0)])
def test_a_signal_while_torch_is_imported(name, status):
    """Catches a page of traceback from the middle of PyTorch, and a request to save that kills."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "train.py", "--help"], cwd=ROOT, **pipes) as process:
        while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        _, errors = process.communicate()
    assert process.returncode == status and "Traceback" not in errors


def test_a_save_interval_of_its_own(settings, tmp_path):
    """Catches checkpoints that come only with evaluations, or evaluations that come with them."""
    settings |= dict(out_dir=str(tmp_path), eval_interval=10, keep_checkpoints=0, max_iters=12)
    train(TrainConfig(**settings, save_interval=4))
    folders = checkpoint.list_checkpoints(tmp_path)
    assert [checkpoint.step_of(folder) for folder in folders] == [4, 8, 10, 12]
    undisturbed = losses(tmp_path)
    assert [line["step"] for line in undisturbed if "val_loss" in line] == [10, 12]
    between = folders[1]
    train(TrainConfig(**settings, init_from="resume", checkpoint=between.name))
    assert losses(tmp_path) == undisturbed


def test_two_runs_in_one_folder(settings, tmp_path):
    """Catches a second run that moves the checkpoints of the first one away, under its feet."""
    out = f"--out_dir={tmp_path}"
    with Started(settings | dict(eval_interval=5), tmp_path) as process:
        process.until(lambda: "step 5:" in process.text())
        for flags in [], ["--init_from=resume"]:
            result = run_here("train.py", f"--dataset={settings['dataset']}", out, *flags)
            assert f"{tmp_path} is in use by another process" in complaint(result)
        process.stopped(signal.SIGKILL)
    assert not list(tmp_path.glob("previous-*"))
    output_of("train.py", "--init_from=resume", out, "--max_iters=1")  # the dead lock nothing


@pytest.mark.parametrize("redirection", ["2>&1 | head -1", ">&- 2>&-"])
def test_training_outlives_its_reader(settings, tmp_path, redirection):
    """Catches a run that ends in silence after a few steps because nobody reads its output."""
    settings |= dict(max_iters=30, eval_interval=10, out_dir=tmp_path)
    command = shlex.join([sys.executable, "train.py", *as_flags(settings)])
    command = f"set -o pipefail; {command} {redirection}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000030"
