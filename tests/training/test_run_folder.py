"""The folder of a run: no earlier run is mixed in or destroyed, and the best stays known."""

import json
import os

import pytest
from conftest import save

from engine.training import run_folder
from engine.weights import checkpoint
from model import GPT, GPTConfig

SHAPE = dict(block_size=8, vocab_size=20, n_layer=1, n_head=1, n_embd=8)


def saved(out_dir, step):
    """Save a checkpoint of an untrained model; return its folder."""
    return save(out_dir, GPT(GPTConfig(**SHAPE)), step)


def steps(out_dir):
    return [checkpoint.step_of(folder) for folder in checkpoint.list_checkpoints(out_dir)]


def test_pruning(tmp_path):
    """Catches a best model that is thrown away, and a disk that fills up."""
    for step, val_loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 2.5), (5, 2.6)):
        folder = saved(tmp_path, step)
        run_folder.record_best(folder, val_loss)
        run_folder.prune_checkpoints(tmp_path, keep=2)
    run_folder.prune_checkpoints(tmp_path, keep=0)
    assert steps(tmp_path) == [2, 4, 5]
    run_folder.prune_checkpoints(tmp_path, keep=1)
    assert steps(tmp_path) == [2, 5]


def test_an_earlier_run_is_moved(tmp_path):
    """Catches a new run that destroys an old one, or a user's own file that is moved with it, and
    a previous-N, or lines that stay, for a start that was killed before it saved.
    """
    for number in (1, 2):
        saved(tmp_path, number)
        (tmp_path / "metrics.jsonl").write_text("{}\n")
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "step_000009.7.partial").touch()  # of a process that was killed
        assert run_folder.start_run(tmp_path, 0, resumed=False) == {}
        assert steps(tmp_path / f"previous-{number}") == [number]
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["notes.txt"]
    for files in ["metrics.jsonl"], ["best.json", "metrics.jsonl"]:  # without any checkpoint
        for name in files:
            (tmp_path / name).write_text("{}\n")
        run_folder.start_run(tmp_path, 0, resumed=False)
        assert not (tmp_path / "metrics.jsonl").exists()
        moved = sorted(path.name for path in tmp_path.glob("previous-3/*"))
        assert moved == (files if "best.json" in files else [])
    # A run whose checkpoints somebody has removed.
    (tmp_path / "metrics.jsonl").write_text('{"step": 9, "val_loss": 2.0}\n')
    run_folder.start_run(tmp_path, 0, resumed=False)
    assert (tmp_path / "previous-4/metrics.jsonl").exists()


def test_resuming_from_an_earlier_step(tmp_path, capsys):
    """Catches later steps that mix with a resumed run, or a best checkpoint that is forgotten."""
    losses = {1: 3.0, 2: 1.5, 3: 2.0, 4: 1.0}
    for step, loss in losses.items():
        run_folder.record_best(saved(tmp_path, step), loss)
    lines = [json.dumps({"step": step, "val_loss": loss}) + "\n" for step, loss in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert run_folder.start_run(tmp_path, 3, resumed=True) == {"step": 3, "val_loss": 2.0}
    assert steps(tmp_path) == [1, 2, 3]
    assert steps(tmp_path / "previous-1") == [4]
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:3])
    assert (tmp_path / "previous-1" / "metrics.jsonl").read_text() == "".join(lines)
    assert checkpoint.best_checkpoint(tmp_path)["checkpoint"] == "step_000002"
    run_folder.start_run(tmp_path, 3, resumed=True)
    assert not (tmp_path / "previous-2").exists()


def test_the_best_belongs_to_its_data(tmp_path):
    """Catches losses on different data that are compared: an old checkpoint would stay the best."""
    first, second, third = (saved(tmp_path, step) for step in (1, 2, 3))
    run_folder.record_best(first, 1.0, "one")
    run_folder.record_best(second, 2.0, "one")
    assert checkpoint.best_checkpoint(tmp_path)["checkpoint"] == first.name
    run_folder.record_best(third, 3.0, "other")
    best = {"checkpoint": third.name, "val_loss": 3.0, "data": "other"}
    assert checkpoint.best_checkpoint(tmp_path) == best


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n", b"{\n", b"[]\n", b'{"step": null}\n', b"[" * 100000 + b"\n"]
)
def test_damaged_metrics(tmp_path, content, capsys):
    """Catches a run that cannot go on, or silence, where metrics.jsonl has been damaged."""
    good = [b'{"step": 1, "lr": null, "mine": "x"}\n', b'{"step": 3, "lr": 0.5}\n']
    (tmp_path / "metrics.jsonl").write_bytes(good[0] + content + good[1])
    last = {"step": 1, "lr": None, "mine": "x"}
    assert run_folder.start_run(tmp_path, 2, resumed=True) == last
    assert "metrics.jsonl is damaged: 1 of its lines" in capsys.readouterr().out
    assert (tmp_path / "metrics.jsonl").read_bytes() == good[0]


def test_a_folder_that_is_not_writable(tmp_path, monkeypatch):
    """Catches a run that finds out when it saves."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    with pytest.raises(ValueError, match="is not writable"):
        run_folder.start_run(tmp_path, 0, resumed=False)
