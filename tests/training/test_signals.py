"""A run in a process of its own: what stops it, what does not, and what is left."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, complaint, forked, metrics, run_here, same_weights

from engine.training import signals
from engine.weights import checkpoint
from model import GPT
from train import TrainConfig, train

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs the signals and forks of Unix"
)


class Started:
    """train.py for a million steps, in a fork, which need not import torch again; `with` leaves none behind."""

    def __init__(self, poem, out_dir, *flags):
        self.output, self.status = Path(f"{out_dir}.txt"), None
        settings = [f"--{key}={value}" for key, value in SMALL.items()]
        settings += [
            f"--dataset={poem}",
            f"--out_dir={out_dir}",
            "--eval_iters=1",
            "--max_iters=1000000",
            *flags,
        ]
        with self.output.open("w") as file:
            self.pid = forked(["train.py", *settings], file, file)

    def text(self):
        return self.output.read_text()

    def until(self, condition):
        while not condition():
            assert not os.waitpid(self.pid, os.WNOHANG)[0], self.text()
            time.sleep(0.001)

    def stopped(self, number):
        """Its exit code after a signal."""
        os.kill(self.pid, number)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.status is None:
            self.stopped(signal.SIGKILL)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_saves_and_ends(poem, tmp_path, name):
    """Catches steps that are lost to a preemption, and a user who must find out what was saved and how to continue."""
    number, out = getattr(signal, name), tmp_path / "my out"
    with Started(
        poem, out, "--eval_interval=7", "--dropout=0.1", "--lr_decay_iters=1000"
    ) as process:
        process.until(lambda: "step 7:" in process.text())
        assert process.stopped(number) == 128 + number and "Traceback" not in process.text()
    folder = checkpoint.find_checkpoint(out)
    step = checkpoint.load_config(folder)["step"]
    assert f"{name}: stopped at step {step}; {folder} is the last good" in process.text()
    assert f"--init_from=resume --out_dir='{out}'" in process.text()
    settings = SMALL | dict(
        dataset=poem, eval_iters=1, eval_interval=7, dropout=0.1, lr_decay_iters=1000
    )
    train(TrainConfig(**settings, out_dir=str(out), max_iters=step + 9, init_from="resume"))
    train(TrainConfig(**settings, out_dir=str(tmp_path / "whole"), max_iters=step + 9))
    assert same_weights(out, tmp_path / "whole")
    for key in "step", "train_loss", "val_loss", "lr":
        assert [line.get(key) for line in metrics(out)] == [
            line.get(key) for line in metrics(tmp_path / "whole")
        ]


@pytest.mark.parametrize("signals_sent", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_signals_at_random_moments(poem, tmp_path, signals_sent):
    """Catches a moment (in a step, an evaluation or a save) at which a signal loses steps or ends with another exit code."""
    settings = SMALL | dict(
        dataset=poem,
        eval_iters=1,
        save_interval=1,
        eval_interval=7,
        dropout=0.1,
        keep_checkpoints=0,
    )
    settings |= dict(lr_decay_iters=1000, write_tokens=0)
    train(TrainConfig(**settings, out_dir=str(tmp_path / "whole"), max_iters=150))
    whole, rng, steps = tmp_path / "whole", random.Random(signals_sent), set()
    for n in range(signals_sent):
        number, out = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]), tmp_path / str(n)
        with Started(
            poem, out, *(f"--{key}={value}" for key, value in settings.items())
        ) as process:
            process.until((out / "metrics.jsonl").exists)  # then it listens
            time.sleep(rng.uniform(0, 0.4))
            assert process.stopped(number) == 128 + number, process.text()
        step = int(process.text().partition("stopped at step ")[2].partition(";")[0])
        folder = checkpoint.find_checkpoint(out)
        assert (
            folder == checkpoint.newest_valid(out)
            and checkpoint.load_trainer(folder)["step"] == step
        )
        if (whole / folder.name).exists():
            steps.add(step)
            ours, theirs = (
                GPT.from_checkpoint(run / folder.name).state_dict() for run in (out, whole)
            )
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert steps  # some were compared


def test_a_checkpoint_on_demand(poem, tmp_path):
    """Catches a SIGUSR1 that ends the run, and a second Ctrl-C that waits for the end of something long."""
    with Started(poem, tmp_path, "--eval_interval=1000000") as process:
        process.until((tmp_path / "metrics.jsonl").exists)  # then it listens
        os.kill(process.pid, signal.SIGUSR1)
        process.until(lambda: checkpoint.list_checkpoints(tmp_path))
        assert process.stopped(signal.SIGTERM) == 128 + signal.SIGTERM
    assert len(checkpoint.list_checkpoints(tmp_path)) >= 2


def test_a_second_ctrl_c_ends_at_once():
    """Catches an impatient user who must wait."""
    asked = signals.Requests()
    asked.patience = 1  # under torchrun
    asked.note(signal.SIGINT, None)
    asked.note(signal.SIGINT, None)  # torchrun hands on what the terminal has already sent
    assert asked.stop == signal.SIGINT
    asked.stopped_at -= 2
    with pytest.raises(KeyboardInterrupt):
        asked.note(signal.SIGINT, None)


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(),
    reason="needs a system that says what a process has loaded",
)
@pytest.mark.parametrize("delay", [0, 0.2])
def test_ctrl_c_while_torch_is_imported(delay):
    """Catches a page of traceback from the middle of PyTorch."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "train.py", "--help"], cwd=ROOT, **pipes) as process:
        while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "flags, expected", [(dict(save_interval=4), 4), (dict(save_minutes=1e-6), 1)]
)
def test_a_save_interval_of_its_own(poem, tmp_path, flags, expected):
    """Catches checkpoints that come only with evaluations, or evaluations and lines of metrics.jsonl that come with them."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), eval_iters=1, eval_interval=10, keep_checkpoints=0
    )
    train(TrainConfig(**settings, **flags, max_iters=12))
    assert [int(folder.name[5:]) for folder in checkpoint.list_checkpoints(tmp_path)] == sorted(
        {*range(expected, 13, expected), 10, 12}
    )
    assert [line["step"] for line in metrics(tmp_path) if "val_loss" in line] == [10, 12]
    shutil.rmtree(tmp_path / "step_000012")
    shutil.rmtree(tmp_path / "step_000010")
    undisturbed = metrics(tmp_path)
    train(
        TrainConfig(**settings, max_iters=12, init_from="resume")
    )  # from step 8 or 9, where nothing is owed
    for key in "step", "train_loss", "val_loss":
        assert [line.get(key) for line in metrics(tmp_path)] == [
            line.get(key) for line in undisturbed
        ]


def test_two_runs_in_one_folder(poem, tmp_path):
    """Catches a second run that moves the checkpoints of the first one away, under its feet."""
    with Started(poem, tmp_path, "--eval_interval=5") as process:
        process.until(lambda: "step 5:" in process.text())
        for flags in [], ["--init_from=resume"]:
            result = run_here("train.py", f"--dataset={poem}", f"--out_dir={tmp_path}", *flags)
            assert f"{tmp_path} is in use by another process" in complaint(result)
        process.stopped(signal.SIGKILL)
    assert not list(tmp_path.glob("previous-*"))
    result = run_here(
        "train.py", "--init_from=resume", f"--out_dir={tmp_path}", "--max_iters=1"
    )  # dead processes hold nothing
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("redirection", ["2>&1 | head -1", ">&- 2>&-"])
def test_training_outlives_its_reader(poem, tmp_path, redirection):
    """Catches a run that ends after a few steps, in silence and with exit code 0, because nobody reads its output."""
    flags = [f"--{key}={value}" for key, value in SMALL.items()] + [
        f"--dataset={poem}",
        "--max_iters=30",
        "--eval_interval=10",
    ]
    command = shlex.join([sys.executable, "train.py", *flags, f"--out_dir={tmp_path}"])
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {redirection}"], cwd=ROOT, capture_output=True
    )
    assert result.returncode == 0 and checkpoint.find_checkpoint(tmp_path).name == "step_000030", (
        result.stderr
    )
