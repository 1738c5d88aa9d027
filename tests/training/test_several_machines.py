"""Processes on several machines: what each has of its own, and how all end together."""

import os
import shutil
import signal
import time

import pytest
import torch.distributed as dist
from conftest import (
    POEM,
    configure,
    exit_code,
    losses,
    newest,
    parametrize,
    ranks_here,
    read_back,
    refused,
    run_ranks,
    same_weights,
    start_ranks,
    steps,
)

from engine import processes
from engine.parallel import Signals
from train import make_trainer


@parametrize("parallel", ["ddp", "fsdp"])
def test_only_the_first_has_a_checkpoint(flags, tmp_path, networks, parallel):
    """Catches a machine that begins at step 0, beside one that goes on at 4, and says nothing; and
    three processes that add in another order once they are resumed.
    """
    whole, a, b = (tmp_path / name for name in ("whole", "a", "b"))
    flags += ["--gradient_accumulation_steps=3", f"--parallel={parallel}"]
    flags += ["--max_iters=8", "--eval_interval=4"]
    run_ranks(3, "train.py", *flags, f"--out_dir={whole}")
    shutil.copytree(whole, a)
    shutil.rmtree(newest(a))
    own = [[f"--out_dir={out}"] for out in (a, b, b)]
    results = ranks_here(3, "train.py", "--init_from=auto", own=own, networks=networks)
    assert [status for status, _ in results] == [0, 0, 0], results
    assert not b.exists() and steps(a) == [4, 8]
    assert same_weights(whole, a) and losses(whole) == losses(a)


@parametrize(
    "own, words",
    [
        (
            ["--seed=1", "--learning_rate=1", "--eval_interval=3", "--n_embd=32"],
            ["seed is 1337 on", ", 1 on", "rate is 0.02", "interval is 300", "n_embd is 16"],
        ),
        (["--learning_rat=1"], ["unknown setting 'learning_rat'"]),
        (["--gradient_accumulation_steps=3"], ["steps is 4 on"]),
        (["--dataset=pome"], ["'pome' has no train.bin"]),
        (["--dataset={other}"], ["data is {"]),
        (["--init_from={other}"], []),
        (["--device=auto"], ["device is cpu on", ", auto on"]),
    ],
    ids=lambda value: "".join(value[:1]).split("=")[0],
)
def test_what_differs_ends_all(flags, tmp_path, networks, own, words):
    """Catches processes that train a mixture, or of which one ends and the others wait for it."""
    prepare.write_dataset(tmp_path / "other", [POEM * 31], "char", "a poem")
    own = [word.format(other=tmp_path / "other") for word in own]
    flags += ["--max_iters=8", f"--out_dir={tmp_path / 'out'}"]
    begun = time.monotonic()
    results = ranks_here(2, "train.py", *flags, own=([], own), networks=networks)
    assert time.monotonic() - begun < 30
    for status, output in results:
        *_, line = ["", *output.splitlines()]
        assert status == (2 if words else 0) and all(word in line for word in words), results


def test_data_whose_hash_is_not_known(poem_here, monkeypatch):
    """Catches another train.bin on one machine, in nanoGPT's layout, that nobody notices."""
    other = POEM.replace("Tyger", "Tiger")  # as many letters, and the same ones
    prepare.write_dataset("other", [other * 30], "char", "a poem")
    known = []
    monkeypatch.setattr(processes, "compare", lambda **facts: known.append(facts | {"data": None}))
    for name in "poem", "other", "poem":
        make_trainer(configure(dataset=name))
    assert known[0] == known[2] != known[1]


def test_one_that_never_joins(flags, networks):
    """Catches processes that wait for an hour, and do not say for whom."""
    for there in 0, 1:
        begun = time.monotonic()
        command = "train.py", *flags, "--join_minutes=0.02"
        started = start_ranks(2, *command, networks=networks)
        os.kill(started[1 - there][0], signal.SIGKILL)
        codes = [exit_code(pid) for pid, _ in started]
        assert codes[there] == 2 and time.monotonic() - begun < 20
        *_, line = read_back(started[there][1]).splitlines()  # c10d warns above it
        assert f"waits for rank {1 - there} at 1" in line


def test_an_earlier_start_counts_no_more(monkeypatch):
    """Catches a run that torchrun starts again, and takes those who joined before for present."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    place = dict(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=store.port)
    for name, value in (place | dict(TORCHELASTIC_USE_AGENT_STORE=True)).items():
        monkeypatch.setenv(name, str(value))
    dist.PrefixStore("0", store).set("1", "there")
    parallel.meet(0.1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with refused("waits for rank 1"):
        parallel.meet(0.01)


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
