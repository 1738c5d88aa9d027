"""Processes on several machines: what each has of its own, and how all end together."""

import os
import shutil
import signal
import time

import torch
import torch.distributed as dist
from conftest import POEM, losses, newest, parametrize, ranks_here, run_ranks, same_weights, steps

from engine import parallel, prepare


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
    "own, said",
    [
        (["--seed=1"], "seed is"),
        (["--n_embd=32"], "n_embd is"),
        (["--learning_rat=1"], "learning_rat"),
        (["--gradient_accumulation_steps=3"], "gradient_accumulation_steps is"),
        (["--dataset=pome"], "'pome' has no train.bin"),
        (["--dataset={other}"], "dataset is {"),
        (["--init_from={other}"], "init_from is"),
    ],
    ids=lambda value: "".join(value[:1]).split("=")[0],
)
def test_what_differs_ends_all(flags, tmp_path, networks, own, said):
    """Catches processes that train a mixture, or of which one ends and the others wait for it."""
    prepare.write_dataset(tmp_path / "other", [POEM * 31], "char", "a poem")
    own = [word.format(other=tmp_path / "other") for word in own]
    flags += ["--max_iters=8", f"--out_dir={tmp_path / 'out'}"]
    begun = time.monotonic()
    results = ranks_here(2, "train.py", *flags, own=([], own), networks=networks)
    assert time.monotonic() - begun < 30
    assert [status for status, _ in results] == [2, 2], results
    last = [output.splitlines()[-1] for _, output in results]
    assert any(said in line for line in last), results
    assert all(said in line or "another process has ended" in line for line in last), results


def test_an_earlier_start_counts_no_more(monkeypatch):
    """Catches a run that torchrun starts again, and that takes a dead process for a live one."""
    store = dist.HashStore()
    given = {}
    monkeypatch.setattr(parallel, "rendezvous", lambda url: iter([(store, 0, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: given.update(how))
    monkeypatch.setattr(parallel.atexit, "register", lambda *_: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for count, found in ("0", False), ("0", True), ("1", False):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        parallel.join()
        assert given["store"].check(["address"]) == found
        given["store"].set("address", "here")


def test_torchrun_of_another_machine_gets_the_signal(monkeypatch):
    """Catches a machine that starts again by --max-restarts, and waits for one taken away."""
    called = []
    monkeypatch.setattr(parallel.atexit, "register", lambda *call: called.append(call))
    monkeypatch.setattr(parallel, "all_reduce", lambda *_: torch.tensor(signal.SIGTERM))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert parallel.agree([signal.SIGTERM]) == signal.SIGTERM and not called
    noted = []
    assert parallel.agree(noted) == signal.SIGTERM and noted == [signal.SIGTERM]
    assert called == [(os.kill, os.getppid(), signal.SIGTERM)]
