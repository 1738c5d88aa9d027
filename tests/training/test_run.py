"""The folder of a run: no earlier run is mixed in or destroyed, and the best stays known."""

import contextlib
import json
from pathlib import Path

from conftest import parametrize, save, steps, tiny

from engine import checkpoint
from engine.checkpoint import prune, start_run


def evaluated(out_dir, losses):
    """Save checkpoints with these validation losses, {step: loss}; return the lines of metrics."""
    for step in losses:
        save(out_dir, tiny(), step)
    lines = [json.dumps({"step": step, "val_loss": loss}) + "\n" for step, loss in losses.items()]
    (out_dir / "metrics.jsonl").write_text("".join(lines))
    return lines


def test_pruning(tmp_path):
    """Catches a best model that is thrown away, and a disk that fills up."""
    evaluated(tmp_path, {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: 2.6})
    for keep, left in (0, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (1, [2, 5]):
        prune(tmp_path, keep)
        assert steps(tmp_path) == left and not [*tmp_path.glob("*.partial")]


def test_an_earlier_run_is_moved(tmp_path):
    """Catches a new run that destroys an old one, or moves a user's own file with it, and a
    previous-N, or lines that stay, for a start that was killed before it saved.
    """
    metrics = tmp_path / "metrics.jsonl"
    (tmp_path / "notes.txt").write_text("mine")
    for number in (1, 2):
        lines = evaluated(tmp_path, {number: 2.0})
        (tmp_path / "step_000009.7.partial").touch()  # of a process that was killed
        start_run(tmp_path, -1)
        assert steps(tmp_path / f"previous-{number}") == [number] and not steps(tmp_path)
        assert (tmp_path / f"previous-{number}" / "metrics.jsonl").read_text() == lines[0]
        names = {path.name for path in tmp_path.iterdir() if path.is_file()}
        assert names == {"notes.txt", "metrics.jsonl"} and not metrics.read_text()
    metrics.write_text('{"step": 9}\n')
    start_run(tmp_path, -1)
    assert not (tmp_path / "previous-3").exists() and not metrics.read_text()
    metrics.write_text('{"step": 9, "val_loss": 2.0}\n')  # somebody has removed its checkpoints
    start_run(tmp_path, -1)
    assert (tmp_path / "previous-3" / "metrics.jsonl").exists()


def test_resuming_from_an_earlier_step(tmp_path):
    """Catches later steps that mix with a resumed run, or a best checkpoint that is forgotten."""
    lines = evaluated(tmp_path, {1: 3.0, 2: 1.5, 3: 2.0, 4: 1.0})
    start_run(tmp_path, 3)
    assert steps(tmp_path) == [1, 2, 3]
    assert steps(tmp_path / "previous-1") == [4]
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:3])
    assert (tmp_path / "previous-1" / "metrics.jsonl").read_text() == "".join(lines)
    assert checkpoint.best_checkpoint(tmp_path).name == "step_000002"
    start_run(tmp_path, 3)
    assert not (tmp_path / "previous-2").exists()


@parametrize("killed", range(4))
def test_a_kill_while_a_run_moves(tmp_path, monkeypatch, killed):
    """Catches a checkpoint, or a line of metrics, that is nowhere if the moving ends in between."""
    evaluated(tmp_path, {1: 3.0, 2: 1.5})
    moves = iter(range(9))

    def move(path, target, really=Path.rename):
        if next(moves) == killed:
            raise KeyboardInterrupt
        return really(path, target)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", move)
        start_run(tmp_path, -1)
    assert next(moves) == (killed + 1 if killed < 2 else 2)
    start_run(tmp_path, -1)
    found = [path.name for path in tmp_path.glob("previous-*/step_*")]
    assert sorted(found) == ["step_000001", "step_000002"] and not steps(tmp_path)
    for path in tmp_path.glob("previous-*/metrics.jsonl"):
        assert [*checkpoint.read_metrics(path)] == [1, 2]


@parametrize(
    "content", [b"\xff\n", b"{\n", b"7\n", b'{"step": "2"}\n', b'{"step": 2, "val_loss": null}\n']
)
def test_damaged_metrics(tmp_path, content, capsys):
    """Catches a run that cannot go on, or silence, where metrics.jsonl has been damaged."""
    good = [b'{"step": 1, "lr": null, "mine": "x"}\n', b'{"step": 3, "lr": 0.5}\n']
    (tmp_path / "metrics.jsonl").write_bytes(good[0] + content + good[1])
    start_run(tmp_path, 2)
    assert "note: damaged, and left out: " in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_bytes() == good[0]
