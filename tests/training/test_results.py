"""What a run tells while it learns, and at its end."""

import math
import sys
import types

import pytest
import torch
from conftest import fit, losses, metrics, refused, same_weights

from engine import trainer


@pytest.fixture(autouse=True)
def place(poem_here):
    """A small dataset in an empty folder."""


def test_minutes_are_steps_that_can_be_repeated(monkeypatch, capsys):
    """Catches timed steps that leave a trace, a schedule of another length, and a run that begins
    to measure again when it is resumed.
    """
    monkeypatch.setattr(trainer.hardware, "measure_seconds", lambda step, device: step() or 0.5)
    fit(minutes=0.1, dropout=0.1, eval_interval=5)
    assert "6 seconds are 12 steps: --max_iters=12 repeats" in capsys.readouterr().out
    fit(max_iters=12, dropout=0.1, eval_interval=5, out_dir="again")
    assert same_weights("out", "again") and losses("out") == losses("again")
    assert fit(max_iters=14, init_from="resume")["step"] == 14
    with refused("minutes is for a new run"):
        fit(minutes=1.0, init_from="resume")


def test_samples_and_results(capsys):
    """Catches a sample that changes the run, and results
    that differ from the metrics.
    """
    fit(max_iters=10, eval_interval=5, dropout=0.1, sample_prompt="Tyger")
    lines = metrics("out")
    printed = capsys.readouterr().out
    for line in lines:
        assert line["sample"].startswith("Tyger") and len(line["sample"]) == 85
        assert repr(line["sample"]) in printed
    loss = lines[-1]["val_loss"]
    figures = {"val_loss": round(loss, 4), "bits_per_byte": round(loss / math.log(2), 4)}
    figures |= {"tokens": 10 * 4 * 16, "steps": 10, "parameters": 6976}
    for name, value in figures.items():
        assert f"\n{name + ':':18}{value}\n" in f"\n{printed}"
    fit(max_iters=10, eval_interval=5, dropout=0.1, out_dir="again")
    assert same_weights("out", "again")
    with refused("--sample_prompt"):
        fit(sample_prompt="é")


def test_tensorboard(monkeypatch):
    """Catches a curve over something else than the step, or that lacks something."""
    logged = {}

    def add(name, value, step, dataformats=""):
        assert dataformats == "HW" * (name == "attention")
        logged[step, name] = value

    def open_writer(folder, purge_step):
        assert folder == "out" and purge_step == 1
        adds = dict.fromkeys(["add_text", "add_scalar", "add_image"], add)
        return types.SimpleNamespace(**adds, close=lambda: logged.update(closed=True))

    fake = types.SimpleNamespace(SummaryWriter=open_writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    fit(max_iters=10, tensorboard=True, sample_prompt="Tyger")
    want = {(line["step"], name): line[name] for line in metrics("out") for name in line}
    maps = torch.stack([logged.pop((step, "attention")) for step in (0, 10)])
    assert logged == want | {"closed": True} and not torch.equal(*maps)
    assert maps.shape == (2, 5, 5) and not maps.triu(1).any()
    assert (maps.sum(2) - 1).abs().max() < 1e-6
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with refused("tensorboard cannot begin"):
        fit(max_iters=1, tensorboard=True)
