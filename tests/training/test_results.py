"""What a run tells while it learns, and at its end."""

import math
import re
import sys
import types

import pytest
from conftest import Clock, fit, losses, metrics, parametrize, refused, same_weights

import train


@pytest.fixture(autouse=True)
def place(poem_here):
    """A small dataset in an empty folder."""


@parametrize("hold", [0.25, 0.5, 0.9])
def test_minutes_are_steps_that_can_be_repeated(monkeypatch, capsys, hold):
    """Catches a learning rate that decays before anyone knows the number of steps, a schedule of
    another length, and a time that includes the evaluations.
    """
    settings = dict(dropout=0.1, hold=hold, eval_interval=4, learning_rate=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(train.time, "perf_counter", Clock())
        fit(**settings, minutes=1.0)
    found = re.search(r"room for (\d+) steps: --max_iters=(\d+)", capsys.readouterr().out)
    count = int(found[1])
    assert found[1] == found[2] and 30 < count < 60  # some steps are logged, which takes a look
    assert metrics("out")[-1]["step"] == count
    fit(**settings, max_iters=count, out_dir="again")
    assert same_weights("out", "again") and losses("out") == losses("again")
    assert fit(max_iters=count + 2, init_from="resume")["step"] == count + 2


def test_minutes_on_a_machine_that_is_busy_at_first(monkeypatch, capsys):
    """Catches a run whose length its first steps decide (hold is half of the time)."""
    monkeypatch.setattr(train.time, "perf_counter", Clock(lambda look: 5.0 if look < 12 else 0.25))
    fit(minutes=4.0, log_interval=1000, eval_interval=1000)
    assert 200 < metrics("out")[-1]["step"] < 1000
    fit(minutes=1.0, hold=0.0, out_dir="at once")
    assert "by the first steps" in capsys.readouterr().out


def test_minutes_of_a_run_that_is_resumed(capsys):
    """Catches a run that trains for its minutes again each time it is resumed."""
    fit(minutes=0.001, eval_interval=5)
    where = ["--init_from=resume", "--out_dir=out"]
    with refused("minutes is for a new run"):
        train.settings([*where, "--minutes=2"])
    last = metrics("out")[-1]["step"]
    config = train.settings(["--init_from=auto", "--out_dir=out", "--minutes=2"])
    assert config.minutes == 0 and config.max_iters == last


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

    def add(name, value, step):
        logged[step, name] = value

    def open_writer(folder, purge_step):
        assert folder == "out" and purge_step == 1
        adds = dict.fromkeys(["add_text", "add_scalar"], add)
        return types.SimpleNamespace(**adds, close=lambda: logged.update(closed=True))

    fake = types.SimpleNamespace(SummaryWriter=open_writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    fit(max_iters=10, tensorboard=True, sample_prompt="Tyger")
    want = {(line["step"], name): line[name] for line in metrics("out") for name in line}
    assert logged == want | {"closed": True}
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with refused("tensorboard cannot begin"):
        fit(max_iters=1, tensorboard=True)
