"""Checkpoints: what is saved comes back, whole or not at all, and damage is named."""

import json
import os

import torch
from conftest import refused, tiny

from engine import checkpoint
from engine.files import list_checkpoints
from engine.tokenizer import create_tokenizer


def test_the_trainers_state(tmp_path):
    """Catches a tensor or a value of the trainer's state that is lost, rounded or misplaced."""
    scaler = torch.amp.GradScaler("cpu").state_dict()
    values = {"dtype": "float16", "threads": 2, "scaler": scaler}
    tensors = {
        "optimizer": {"wte.weight/momentum": torch.rand(4, 3).t(), "step": torch.tensor(3.0)},
        "average": {"lm_head.weight": torch.rand(2, dtype=torch.float64)},
    }
    found = checkpoint.load_trainer(saved(tmp_path, 7, **values, **tensors))
    parts = {name: found.pop(name) for name in tensors}
    torch.testing.assert_close(parts, tensors, rtol=0, atol=0)
    assert found == values | {"step": 7, "record": {}, "data": None}


def test_finding(tmp_path):
    """Catches steps sorted as text, best taken for latest, a copy or a file for a later step."""
    losses = {999_999: 1.0, 1_000_000: 2.0, 30: 3.0, 40: 0.5}
    lines = [json.dumps({"step": step, "val_loss": loss}) for step, loss in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    for step in 999_999, 1_000_000, 30:  # that of step 40 is gone
        saved(tmp_path, step)
    copy = tmp_path / "step_1000000_2"  # to int, a number
    copy.mkdir()
    (copy / "config.json").write_text("{}")
    (tmp_path / "step_2000000").touch()
    assert create_tokenizer(str(tmp_path)).spec() == {"kind": "byte"}
    names = [folder.name for folder in list_checkpoints(tmp_path)]
    assert names == ["step_000030", "step_999999", "step_1000000"]
    for which, name in ("latest", names[2]), ("best", names[1]), (names[0], names[0]):
        assert checkpoint.find_checkpoint(tmp_path, which).name == name
    assert checkpoint.find_checkpoint(tmp_path / names[0]).name == names[0]
    (tmp_path / "step_²").mkdir()  # is a digit to Python, and no number
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    for folder, which, message in [
        (tmp_path, "step_5", "there are step_000030, "),
        (tmp_path / "elsewhere", "latest", "python .*train.py --out_dir="),
        (tmp_path / "hub", "latest", "a model in another layout as --init_from="),
    ]:
        with refused(message):
            checkpoint.find_checkpoint(folder, which)


def test_permissions(tmp_path):
    """Catches weights that nobody else may read, whatever the umask: safetensors writes them so."""
    before = os.umask(0o022)
    try:
        folder = saved(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def saved(out_dir, step=10, **state):
    """Save a model and a trainer's state; return its folder."""
    return checkpoint.save_checkpoint(out_dir, step, tiny(), state, tokenizer={"kind": "byte"})
