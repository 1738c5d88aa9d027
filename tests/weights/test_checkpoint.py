"""Checkpoints: what is saved comes back, whole or not at all, and damage is named."""

import json
import math
import os

import pytest
import torch

from engine.text import dataset
from engine.text import tokenizer as tokenizer_module
from engine.weights import checkpoint
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
        "trainer.pt",
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


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "trainer.pt", "manifest.json"]
)
def test_one_flipped_bit(tmp_path, name):
    """Catches damage that would be loaded in silence."""
    _, folder = saved(tmp_path)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match="missing or damaged"):
        GPT.from_checkpoint(folder)
        checkpoint.load_trainer(folder)


def test_a_pickle_does_not_run(tmp_path):
    """Catches unpickling of what a user downloaded."""
    _, folder = saved(tmp_path)

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    class Memory:
        def __reduce__(self):
            return (bytearray, (2**40,))  # torch takes it for harmless

    wide, sparse = torch.zeros(1).expand(2**40), torch.eye(3).to_sparse()
    for content in Bomb(), Memory(), wide, [wide], sparse, torch.zeros(2**40, device="meta"):
        torch.save({"step": 10, "optimizer": {"state": content}}, folder / "trainer.pt")
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["trainer.pt"] = dataset.sha256_of_file(folder / "trainer.pt")
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ValueError, match="trainer.pt is damaged, or is something else"):
            checkpoint.load_trainer(folder)
    assert not (tmp_path / "exploded").exists()


def test_an_unfinished_checkpoint_is_not_seen(tmp_path, monkeypatch):
    """Catches a crash while saving that leaves a checkpoint which looks complete."""
    saved(tmp_path, 10)
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
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
        checkpoint.record_best(folder, val_loss)
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


def test_pruning_spares_the_newest_and_the_best(tmp_path):
    """Catches a best model that is thrown away, or a disk that fills up."""
    for step, val_loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 2.5), (5, 2.6)):
        folder = saved(tmp_path, step)[1]
        checkpoint.record_best(folder, val_loss)
        checkpoint.prune_checkpoints(folder, keep=2)
    assert [f.name for f in checkpoint.list_checkpoints(tmp_path)] == [
        "step_000002",
        "step_000004",
        "step_000005",
    ]
    checkpoint.prune_checkpoints(folder, keep=0)
    saved(tmp_path, 900)  # not of this run: whoever put it there
    checkpoint.prune_checkpoints(folder, keep=1)
    assert [f.name for f in checkpoint.list_checkpoints(tmp_path)] == [
        "step_000002",
        "step_000005",
        "step_000900",
    ]


def test_a_checkpoint_that_was_renamed(tmp_path):
    """Catches a run that goes on at another step than its weights and its optimizer have reached."""
    saved(tmp_path, 10)[1].rename(tmp_path / "step_000500")
    with pytest.raises(
        ValueError, match="step_000500 holds step 10, and for the optimizer 10: was it renamed"
    ):
        checkpoint.load_trainer(tmp_path / "step_000500")


def test_an_earlier_run_is_set_aside(tmp_path):
    """Catches a new run that destroys an old one, or that later resumes from it; other files must stay where they are."""
    for number in (1, 2):
        saved(tmp_path, number)
        (tmp_path / "metrics.jsonl").write_text("{}\n")
        (tmp_path / "notes.txt").write_text("mine")
        assert checkpoint.start_run(tmp_path, 0, resumed=False) == {}
        assert (
            checkpoint.find_checkpoint(tmp_path / f"previous-{number}").name
            == f"step_00000{number}"
        )
        assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["notes.txt"]
    with pytest.raises(ValueError, match="no checkpoint in .*; an earlier run is in .*previous-2$"):
        checkpoint.find_checkpoint(tmp_path)
    assert (
        checkpoint.resume_hint(tmp_path)
        == f"nothing was saved; an earlier run is in {tmp_path / 'previous-2'}"
    )
    checkpoint.start_run(tmp_path, 0, resumed=False)
    assert not (tmp_path / "previous-3").exists()


def test_the_best_belongs_to_its_data(tmp_path):
    """Catches losses of different datasets that are compared, so that an old checkpoint stays the best for ever."""
    first, second, third = (saved(tmp_path, step)[1] for step in (1, 2, 3))
    checkpoint.record_best(first, 1.0, "one")
    checkpoint.record_best(second, 2.0, "one")
    assert checkpoint.best_checkpoint(tmp_path)["checkpoint"] == first.name
    checkpoint.record_best(third, 3.0, "other")
    assert checkpoint.best_checkpoint(tmp_path) == {
        "checkpoint": third.name,
        "val_loss": 3.0,
        "data": "other",
    }


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


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_record_of_the_best_is_made_again(tmp_path, content, capsys):
    """Catches a run that cannot go on after a power cut that left best.json empty, or that forgets which was the best."""
    losses = {1: 3.0, 2: 1.5, 3: 2.0}
    for step in losses:
        saved(tmp_path, step)
    lines = [json.dumps({"step": step, "val_loss": loss}) for step, loss in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "best.json").write_text(content)
    assert checkpoint.start_run(tmp_path, 3, resumed=True) == {"step": 3, "val_loss": 2.0}
    assert (
        checkpoint.best_checkpoint(tmp_path)["checkpoint"] == "step_000002"
        and "best.json is damaged" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\n",
        b"{\n",
        b"[]\n",
        b'"step"\n',
        b'{"step": null}\n',
        b'{"step": 2, "wall_s": null}\n',
        b"[" * 100000 + b"\n",
    ],
)
def test_damaged_metrics(tmp_path, content, capsys):
    """Catches a run that cannot go on, or silence, where metrics.jsonl has been damaged."""
    good = [b'{"step": 1, "lr": null, "mine": "x"}\n', b'{"step": 3, "lr": 0.5}\n']
    (tmp_path / "metrics.jsonl").write_bytes(good[0] + content + good[1])
    assert checkpoint.start_run(tmp_path, 2, resumed=True) == {"step": 1, "lr": None, "mine": "x"}
    assert "metrics.jsonl is damaged: 1 of its lines" in capsys.readouterr().out
    assert (tmp_path / "metrics.jsonl").read_bytes() == good[0]


def test_metrics_that_are_lost(tmp_path, capsys):
    """Catches a history that a power cut has emptied, although the checkpoints know some of it."""
    for step in 1, 2:
        saved(tmp_path, step, record={"step": step, "train_loss": 3.0 - step})
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert checkpoint.start_run(tmp_path, 2, resumed=True) == {
        "step": 1,
        "train_loss": 2.0,
    }  # the other is still owed
    assert "metrics.jsonl is lost" in capsys.readouterr().out


def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    """Catches a run that finds out when it saves."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    with pytest.raises(ValueError, match="is not writable"):
        checkpoint.start_run(tmp_path, 0, resumed=False)


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
