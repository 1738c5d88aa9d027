"""A run in a process of its own: the signals that stop it, and the files it leaves."""

import os
import signal
import time
from pathlib import Path
from threading import Timer

import pytest
from conftest import (
    SMALL,
    as_flags,
    complaint,
    exit_code,
    fit,
    forked,
    losses,
    newest,
    output_of,
    parametrize,
    read_back,
    run_here,
    same_weights,
    start_ranks,
    steps,
)

from engine.parallel import noted_signals

pytestmark = pytest.mark.usefixtures("poem_here")
SETTINGS = dict(eval_iters=1, dropout=0.1, lr_decay_iters=1000)


class Started:
    """train.py for a million steps, in a fork, into out; `with` leaves none behind."""

    def __init__(self, **changes):
        self.status = None
        place = dict(dataset=Path("poem").resolve(), out_dir=Path("out").resolve())
        flags = as_flags(SMALL | SETTINGS | place | changes)
        with open("output", "w") as file:
            self.pid = forked(["train.py", *flags, "--max_iters=1000000"], file, file)

    def text(self):
        return Path("output").read_text()

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


@parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_saves_and_ends(tmp_path, name):
    """Catches steps that are lost to a preemption, and a user who must find out how to continue."""
    number = getattr(signal, name)
    out = tmp_path / "my out"
    with Started(eval_interval=7, out_dir=out) as process:
        process.until(lambda: "step 7:" in process.text())
        assert process.stopped(number) == 128 + number and "Traceback" not in process.text()
    step = steps(out)[-1]
    assert f"{name}: stopped at step {step}; {newest(out)} is the last good" in process.text()
    assert f"--init_from=resume --out_dir='{out}'" in process.text()
    settings = SETTINGS | dict(eval_interval=7, max_iters=step + 9)
    fit(**settings, out_dir=str(out), init_from="resume")
    fit(**settings)
    assert same_weights(out, "out") and losses(out) == losses("out")


@parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_signal_to_one_of_two_processes(poem, tmp_path, name):
    """Catches a preempted job that saves nothing, or whose processes stop at different steps; and a
    process that waits for ever for one that is gone.
    """
    number = getattr(signal, name)
    settings = SMALL | SETTINGS | dict(dataset=poem, out_dir=tmp_path / "out", max_iters=10**6)
    settings |= dict(gradient_accumulation_steps=2, eval_interval=20)
    (first, file), (second, _) = start_ranks(2, "train.py", *as_flags(settings))
    late = Timer(60, os.kill, (first, signal.SIGKILL))
    late.start()
    while not steps("out") and late.is_alive():
        time.sleep(0.01)
    os.kill(second, number)
    codes = exit_code(first), exit_code(second)
    late.cancel()
    if name == "SIGKILL":
        assert codes == (2, -number) and "another process has ended" in read_back(file)
        return
    step = steps("out")[-1]
    assert codes == (128 + number, 128 + number)
    assert f"SIGTERM: stopped at step {step}" in read_back(file)


def test_a_second_ctrl_c_ends_at_once(monkeypatch):
    """Catches an impatient user who must wait; and under torchrun, which repeats what the terminal
    has already sent, one Ctrl-C that is taken for two.
    """
    with noted_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        monkeypatch.setenv("WORLD_SIZE", "2")
        signal.raise_signal(signal.SIGINT)
    assert set(signals) == {signal.SIGINT}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_runs_in_one_folder(poem, tmp_path):
    """Catches a second run that moves the checkpoints of the first one away, under its feet."""
    out = f"--out_dir={tmp_path / 'out'}"
    with Started(eval_interval=5) as process:
        process.until(lambda: "step 5:" in process.text())
        for flags in [], ["--init_from=resume"]:
            result = run_here("train.py", f"--dataset={poem}", out, *flags)
            assert f"{tmp_path / 'out'} is in use by another process" in complaint(result)
        process.stopped(signal.SIGKILL)
    assert not [*tmp_path.glob("out/previous-*")]
    output_of("train.py", "--init_from=resume", out, "--max_iters=1")  # the dead lock nothing
