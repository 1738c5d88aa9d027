"""Processes on several machines: what each has of its own, and how all end together."""

import shutil
import time

from conftest import POEM, losses, newest, parametrize, ranks_here, run_ranks, same_weights, steps

from engine import prepare


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
