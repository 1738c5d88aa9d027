"""Sampling from a checkpoint folder, as a user does it."""

import shutil

import pytest
import torch
from conftest import POEM, complaint, run

import checkpoint
import dataset
from sample import SampleConfig, sample
from train import TrainConfig, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint folder, far away from the data that it was trained on (which is deleted)."""
    folder = tmp_path_factory.mktemp("trained")
    dataset.write(folder / "poem", [POEM * 30], "char", "a poem")
    train(TrainConfig(block_size=32, n_layer=2, n_head=2, n_embd=32, batch_size=8, max_iters=300, warmup_iters=5,
                      learning_rate=1e-2, vocab_size=64, device="cpu", dataset=str(folder / "poem"),
                      out_dir=str(folder / "out")))
    shutil.rmtree(folder / "poem")
    return folder / "out"


def written(capsys, trained, **changes):
    capsys.readouterr()
    sample(SampleConfig(**dict(out_dir=str(trained), device="cpu", max_new_tokens=80) | changes))
    return capsys.readouterr().out


def test_it_writes_what_it_learned(trained, capsys):
    """Catches a checkpoint that does not hold the model or its tokenizer: the poem must come back from memory."""
    assert "In the forests of the night;" in written(capsys, trained, start="Tyger Tyger, ", temperature=0)


def test_the_same_seed_writes_the_same_text(trained, capsys):
    """Catches chance from anywhere but the seed, and samples that depend on how many there are."""
    one = written(capsys, trained, seed=3, temperature=2.0)
    torch.rand(5)
    assert written(capsys, trained, seed=3, temperature=2.0) == one != written(capsys, trained, seed=4, temperature=2.0)
    two = written(capsys, trained, seed=3, temperature=2.0, num_samples=2)
    assert two.startswith(one.rstrip("\n")) and written(capsys, trained, seed=4, temperature=2.0).strip() in two


def test_padded_ids_are_never_drawn(trained, capsys):
    """Catches ids that have no text: the model has 64, the tokenizer about 30."""
    text = written(capsys, trained, temperature=1e4, top_k=0, max_new_tokens=500)
    assert len(text) >= 500
    assert checkpoint.load_model(checkpoint.find(trained)).config.vocab_size == 64


def test_top_k(trained, capsys):
    """Catches top_k=0 that means none: with 1 it is greedy, with 0 every character is possible."""
    greedy = written(capsys, trained, temperature=0)
    assert written(capsys, trained, top_k=1, temperature=5.0) == greedy != written(capsys, trained, top_k=0, temperature=5.0)


def test_the_command_line(trained, tmp_path):
    """Catches a script that needs anything but the folder, or that does not print the prompt as given."""
    (tmp_path / "prompt.txt").write_text("What immortal", encoding="utf-8")
    result = run("sample.py", f"--out_dir={trained}", f"--start=FILE:{tmp_path / 'prompt.txt'}", "--max_new_tokens=9")
    assert result.returncode == 0 and result.stdout.startswith("What immortal"), result.stderr
    assert len(result.stdout.rstrip("\n")) == len("What immortal") + 9


@pytest.mark.parametrize("change, message", [
    (dict(start="Tyger ß"), "'ß' .* at position 6"),
    (dict(start="T" * 33), "33 tokens: this model needs at least 1 and reads at most 32"),
    (dict(start=""), "0 tokens"),
    (dict(start="FILE:nowhere.txt"), "cannot read nowhere.txt"),
    (dict(start="\udcff"), "not valid Unicode"),
    (dict(out_dir="nowhere"), "no checkpoint in nowhere"),
    (dict(checkpoint="step_5"), "no checkpoint step_5"),
])
def test_what_cannot_be_sampled(trained, change, message):
    """Catches a traceback, or text that is made up, for a prompt or a folder that cannot be used."""
    with pytest.raises(ValueError, match=message):
        sample(SampleConfig(**dict(out_dir=str(trained), device="cpu") | change))


@pytest.mark.parametrize("change", [dict(num_samples=0), dict(max_new_tokens=0), dict(temperature=-1.0), dict(top_k=-1)])
def test_settings_that_cannot_be(change):
    """Catches impossible settings that surface as an error of torch."""
    with pytest.raises(ValueError, match=next(iter(change))):
        SampleConfig(**change)


def test_one_line_at_the_command_line(trained):
    """Catches a traceback at the place where users meet it."""
    assert "at position 3" in complaint(run("sample.py", f"--out_dir={trained}", "--start=and€"))
