"""Checkpoints: what is saved comes back, whole or not at all, and damage is named."""

import json
import math
import os

import pytest
import torch

from engine.common.files import sha256_of_file
from engine.text import tokenizer as tokenizer_module
from engine.training import run_folder
from engine.weights import checkpoint, tensor_files
from model import GPT, MODERN, GPTConfig

SHAPE = dict(block_size=8, vocab_size=20, n_layer=2, n_head=2, n_embd=8)
SPEC = tokenizer_module.create_tokenizer("char", "abc").spec()


def saved(out_dir, step=10, record=None, **changes):
    model = GPT(GPTConfig(**SHAPE | changes))
    return model, checkpoint.save_checkpoint(
        out_dir, step, model, {"seed": 1}, SPEC, {"step": step, "optimizer": {}}, record=record
    )


@pytest.mark.parametrize("shape", [{}, MODERN], ids=["gpt2, tied", "modern"])
def test_saved_and_loaded(tmp_path, shape):
    """Catches a tensor that is lost, doubled or rounded on the way, tied heads above all."""
    model, folder = saved(tmp_path, **shape)
    assert folder == tmp_path / "step_000010"
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "trainer.json",
        "trainer.safetensors",
    ]
    again = GPT.from_checkpoint(folder)
    assert again.config == model.config
    for (name, p), (other, q) in zip(model.state_dict().items(), again.state_dict().items()):
        assert name == other and torch.equal(p, q)
    assert (again.lm_head.weight is again.transformer.wte.weight) == model.config.tie_weights
    assert checkpoint.load_trainer(folder) == {
        "step": 10,
        "optimizer": {},
        "scaler": {},
        "record": {},
    }
    assert checkpoint.load_tokenizer(folder).decode([0, 1, 2]) == "abc"
    assert checkpoint.load_config(folder)["step"] == 10


@pytest.mark.parametrize("name", [*checkpoint.FILES, "manifest.json"])
def test_one_flipped_bit(tmp_path, name):
    """Catches damage that would be loaded in silence."""
    _, folder = saved(tmp_path)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match="missing or damaged"):
        GPT.from_checkpoint(folder)
        checkpoint.load_trainer(folder)


def test_an_old_checkpoint(tmp_path):
    """Catches checkpoints of earlier versions, with trainer.pt, that no longer resume."""
    _, folder = saved(tmp_path)
    (folder / "trainer.json").unlink()
    (folder / "trainer.safetensors").unlink()
    optimizer = {"state": {"transformer.wte.weight": {"exp_avg": torch.rand(20, 8)}}}
    old = {"step": 10, "dtype": "float32", "owed": False, "scaler": {}, "optimizer": optimizer}
    torch.save(old, folder / "trainer.pt")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["trainer.pt"] = sha256_of_file(folder / "trainer.pt")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    state = checkpoint.load_trainer(checkpoint.newest_valid(tmp_path))
    assert str(state["optimizer"]) == str(optimizer)
    assert (state["dtype"], state["evaluation_pending"], state["step"]) == ("float32", False, 10)


def test_the_trainers_state(tmp_path):
    """Catches a tensor or a value of the trainer's state that is lost, rounded or misplaced."""
    model = GPT(GPTConfig(**SHAPE))
    scaler = torch.amp.GradScaler("cpu").state_dict()
    momentum = {"momentum": torch.rand(4, 3).t(), "step": torch.tensor(3.0)}
    trainer_state = {
        "dtype": "float16",
        "evaluation_pending": True,
        "scaler": scaler,
        "optimizer": {"state": {"transformer.wte.weight": momentum}},
        "average": {"lm_head.weight": torch.rand(2, dtype=torch.float64)},
    }
    folder = checkpoint.save_checkpoint(tmp_path, 7, model, {}, SPEC, trainer_state)
    state = checkpoint.load_trainer(folder)
    assert state.items() >= {"dtype": "float16", "evaluation_pending": True}.items()
    assert (state["step"], state["scaler"], state["record"]) == (7, scaler, {})
    assert str(state["average"]) == str(trainer_state["average"])
    found = state["optimizer"]["state"]["transformer.wte.weight"]
    assert all(torch.equal(found[kind], tensor) for kind, tensor in momentum.items())


def test_an_unfinished_checkpoint_is_not_seen(tmp_path, monkeypatch):
    """Catches a crash while saving that leaves a checkpoint which looks complete."""
    saved(tmp_path, 10)
    monkeypatch.setattr(
        tensor_files, "save_file", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError):
        saved(tmp_path, 20)
    monkeypatch.undo()
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000010"
    saved(tmp_path, 20)  # what the crash left behind is not in the way
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000020" and not list(
        tmp_path.glob("*.partial")
    )


def test_finding(tmp_path):
    """Catches steps sorted as text, and best taken for latest."""
    folders = [saved(tmp_path, step)[1] for step in (999_999, 1_000_000, 30)]
    for folder, val_loss in zip(folders, (2.0, 1.0, 3.0)):
        run_folder.record_best(folder, val_loss)
    assert [f.name for f in checkpoint.list_checkpoints(tmp_path)] == [
        "step_000030",
        "step_999999",
        "step_1000000",
    ]
    assert checkpoint.find_checkpoint(tmp_path).name == "step_1000000"
    assert checkpoint.find_checkpoint(tmp_path, "best").name == "step_1000000"
    assert checkpoint.find_checkpoint(tmp_path, "step_000030").name == "step_000030"
    assert checkpoint.find_checkpoint(tmp_path / "step_000030").name == "step_000030"
    (tmp_path / "step_²").mkdir()  # is a digit to Python, and no number
    with pytest.raises(ValueError, match="there are step_000030, "):
        checkpoint.find_checkpoint(tmp_path, "step_5")
    with pytest.raises(ValueError, match="python train.py --out_dir="):
        checkpoint.find_checkpoint(tmp_path / "elsewhere")


def test_a_checkpoint_that_was_renamed(tmp_path):
    """Catches a run that goes on at another step than its weights and its optimizer have reached."""
    saved(tmp_path, 10)[1].rename(tmp_path / "step_000500")
    with pytest.raises(ValueError, match="step_000500 holds step 10: was it renamed"):
        checkpoint.load_trainer(tmp_path / "step_000500")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "3", '{"checkpoint": "step_1"}']
    + [
        json.dumps({"checkpoint": name, "val_loss": loss})
        for name, loss in (
            (1, 1.0),
            ("", 1.0),
            ("..", 1.0),
            *(("step_10", x) for x in ("x", "-3", True, math.nan, -math.inf)),
        )
    ],
)
def test_a_damaged_record_of_the_best(tmp_path, content):
    """Catches a message of the JSON parser that names no file, a traceback, and a loss that nothing is ever better than."""
    saved(tmp_path)
    (tmp_path / "best.json").write_text(content)
    with pytest.raises(ValueError, match="best.json is damaged"):
        checkpoint.find_checkpoint(tmp_path, "best")


def test_the_files_have_the_mode_that_the_user_wants(tmp_path):
    """Catches weights that nobody else may read, whatever the umask, because of how safetensors writes."""
    before = os.umask(0o022)
    try:
        _, folder = saved(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    """Catches a permission that is missing and is called damage."""
    _, folder = saved(tmp_path)
    monkeypatch.setattr(
        checkpoint,
        "sha256_of_file",
        lambda path: (_ for _ in ()).throw(PermissionError(13, "denied", str(path))),
    )
    with pytest.raises(ValueError, match="config.json cannot be read: denied"):
        GPT.from_checkpoint(folder)
    with pytest.raises(ValueError, match="config.json cannot be read: denied"):
        checkpoint.newest_valid_or_none(tmp_path)  # --init_from=auto would start again


def test_a_folder_in_another_layout(tmp_path):
    """Catches a Hugging Face folder that is called empty, in place of the setting that takes it."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="--init_from="):
        checkpoint.find_checkpoint(tmp_path)


def test_a_checkpoint_from_before_a_setting_was_removed(tmp_path):
    """Catches weights that are refused because of a setting that was off anyway, and one that was on and is ignored."""
    settings = GPTConfig(**SHAPE).__dict__
    assert checkpoint.restore_settings(
        GPTConfig, settings | {"skip": False, "shift": False}, "x"
    ) == GPTConfig(**SHAPE)
    with pytest.raises(ValueError, match="another version of this code, which has shift"):
        checkpoint.restore_settings(GPTConfig, settings | {"skip": False, "shift": True}, "x")
