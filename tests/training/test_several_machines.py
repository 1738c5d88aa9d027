"""Processes on several machines: what each has of its own, and how all end together."""

import os
import shutil
import signal
import time

import pytest
from conftest import (
    POEM,
    SMALL,
    as_flags,
    assert_the_same_run,
    exit_code,
    output_of,
    parametrize,
    ranks_here,
    read_back,
    start_ranks,
)

from engine.common.processes import Signals
from engine.text import dataset


@pytest.fixture
def flags(poem):
    return as_flags(SMALL | dict(dataset=poem, gradient_accumulation_steps=2, max_iters=8))


@parametrize("parallel", ["ddp", "fsdp"])
def test_only_the_first_has_a_checkpoint(flags, tmp_path, parallel):
    """Catches a machine that begins at step 0, beside one that goes on at 8, and says nothing."""
    outs = [f"--out_dir={tmp_path / name}" for name in "ab"]
    more = ["--init_from=auto", "--max_iters=12", "--lr_decay_iters=8"]
    for out in outs:
        output_of("train.py", *flags, out)
    shutil.move(tmp_path / "b", tmp_path / "one")
    output_of("train.py", *more, f"--out_dir={tmp_path / 'one'}")
    own = [[out] for out in outs]
    results = ranks_here(2, "train.py", *more, f"--parallel={parallel}", own=own)
    assert [status for status, _ in results] == [0, 0], results
    assert not (tmp_path / "b").exists()
    assert_the_same_run(tmp_path / "one", tmp_path / "a")


@parametrize(
    "own, words",
    [
        (["--seed=1", "--n_embd=32"], ["seed is 1337 on", ", 1 on", "n_embd is 16 on"]),
        (["--learning_rat=1"], ["unknown setting 'learning_rat'"]),
        (["--dataset=pome"], ["'pome' has no train.bin"]),
        (["--dataset={other}"], ["data is {"]),
        (["--init_from={other}"], []),
        (["--device=cuda"], ["device=cuda is not available"]),
    ],
    ids=lambda value: "".join(value[:1]).split("=")[0],
)
def test_what_differs_ends_all(flags, tmp_path, own, words):
    """Catches processes that train a mixture, or of which one ends and the others wait for it."""
    dataset.write_dataset(tmp_path / "other", [POEM * 31], "char", "a poem")
    own = [word.format(other=tmp_path / "other") for word in own]
    out = f"--out_dir={tmp_path / 'out'}"
    results = ranks_here(2, "train.py", *flags, out, own=([], own))
    for status, output in results:
        *_, line = ["", *output.splitlines()]
        assert status == (2 if words else 0) and all(word in line for word in words), results


def test_one_that_never_joins(flags, tmp_path):
    """Catches processes that wait for an hour, and do not say for whom."""
    for there in 0, 1:
        begun = time.monotonic()
        started = start_ranks(2, "train.py", *flags, "--join_minutes=0.02", own=([], []))
        os.kill(started[1 - there][0], signal.SIGKILL)
        codes = [exit_code(pid) for pid, _ in started]
        assert codes[there] == 2 and time.monotonic() - begun < 20
        assert f"waits for rank {1 - there} at 127.0.0.1" in read_back(started[there][1])


def test_torchrun_of_another_machine_gets_the_signal(monkeypatch):
    """Catches a machine that starts again by --max-restarts, and waits for one taken away."""
    killed = []
    monkeypatch.setattr(os, "kill", lambda *about: killed.append(about))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for told, expected in (False, []), (True, [(os.getppid(), signal.SIGTERM)]):
        signals = Signals()
        signals.note(signal.SIGTERM)
        signals.told = told
        with pytest.raises(SystemExit, match="143"):
            signals.exit()
        assert killed == expected
