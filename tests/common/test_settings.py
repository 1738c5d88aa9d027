"""Settings: which value wins, and one helpful line for bad input."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from conftest import CPU, ROOT, parametrize, refused, run

from engine.errors import one_line_errors
from engine.machine import pick_device
from engine.settings import given_settings, parse_settings
from engine.tokenizer import padded_vocab_size
from model import GPT
from sample import SampleConfig
from train import TrainConfig, settings


def parse(*argv):
    return parse_settings(TrainConfig, [str(arg) for arg in argv])


def test_later_settings_win(tmp_path):
    """Catches a wrong order of defaults, presets and command line."""
    x, y = (tmp_path / f"{name}.toml" for name in ("x", "y"))
    x.write_text("n_layer = 5\nn_head = 8\nlearning_rate = 1e-3\neval_iters = 0\n")
    y.write_text("eval_iters = 3\ncompile = false\nwandb_log = true\n")
    given = dict(n_layer=5, learning_rate=1e-3, eval_iters=3, compile=False, wandb_log=True)
    want = TrainConfig(**given, n_head=2, dropout=0.5)
    assert parse(x, y, "--n_head=2", "--dropout", "0.5") == want


def test_settings_of_a_plain_run():
    """Catches a flag that changes more than one thing, and a rate for scratch in fine-tuning."""
    assert settings([]) == parse("config/minute.toml") == TrainConfig()
    assert settings(["--seed=2"]) == TrainConfig(seed=2)
    tuned = settings(["--init_from=gpt2", "--dataset=mine"])
    assert (tuned.learning_rate, tuned.dataset) == (3e-5, "mine")
    given = settings(["config/minute.toml", "--init_from=gpt2", "--dataset=mine"])
    assert given.learning_rate == 0.02


@dataclass
class Kinds:
    paths: tuple[Path, ...] = ()
    """Percent signs, as in 100 %, are printed as they are."""
    sizes: tuple[int, ...] = ()
    """Several whole numbers."""
    # Choices
    flag: bool = True
    """Of two choices."""
    share: float | None = None
    """Or no number."""
    mode: bool | Literal["auto"] = True
    """Of three choices."""
    secret: str = "x"
    """May be empty."""


@parametrize(
    "words, given",
    [
        ("--paths a c --paths=d", dict(paths=(Path("a"), Path("c"), Path("d")))),
        ("--flag --sizes 3", dict(flag=True, sizes=(3,))),
        ("--flag=False --mode=true", dict(flag=False, mode=True)),
        ("--mode=auto --share=-1", dict(mode="auto", share=-1.0)),
        ("--secret a=b", dict(secret="a=b")),
        ("--secret=", dict(secret="")),
    ],
)
def test_each_type(words, given):
    """Catches a type that is read as another, and a list of which only the last word stays."""
    assert parse_settings(Kinds, words.split()) == Kinds(**given)


def test_lists_in_a_preset(tmp_path):
    """Catches an item of a list that is taken for a flag, since it begins with a dash."""
    preset = tmp_path / "x.toml"
    preset.write_text('paths = ["-x", "a b"]\nsizes = [-1, 2]\n')
    want = Kinds(paths=(Path("-x"), Path("a b")), sizes=(-1, 2))
    assert parse_settings(Kinds, [str(preset)]) == want


REFUSED = {
    "--n_layer=4.5": "--n_layer: '4.5' is not a whole number",
    "--dtype=float8": "--dtype: 'float8' is not auto or float32",
    "--dropout=nan": "dropout=nan must be at least 0",
    f"--n_embd={10**13}": "n_embd=10000000000000 must be at most 1,000,000,000,000",
    "--batch_size=0": "batch_size=0 must be at least 1",
    f"--visible=sliding_window:{10**20}": "a number must be at most 1,000,000,000,000",
    "--backend=nccl": "unknown setting 'backend': --help lists all settings",
    "config/train_gpt2.py": "; write nanoGPT's .py as TOML: x = false, not False",
    "--muon_steps=6": "muon_steps=6 must be at most 5",
    "--out_dir=": "must not be empty",
    "n_layer=3": "'n_layer=3' is neither a setting",
    "minute.toml": "there is no preset minute.toml: choose config/",
}


@parametrize("argument", REFUSED)
def test_bad_settings(argument):
    """Catches a misspelt or impossible setting that is ignored, or answered with a page of text."""
    with refused(re.escape(REFUSED[argument])):
        parse(argument)


@parametrize(
    "line, message",
    [
        ("\ufeffn_layr = 3", r"x.toml: unknown setting 'n_layr': did you mean n_layer\?"),
        ('n_layer = "3"', "x.toml: n_layer='3' is not a whole number"),
        ("out_dir = true", "x.toml: out_dir=True is not text"),
        ('out_dir = ["a"]', r"x.toml: out_dir=\['a'\] is not text"),
        ('"out_dir=a" = "b"', "x.toml: out_dir=a=.b. is not"),
        ("n_layer", "x.toml is not TOML"),
    ],
)
def test_bad_presets(tmp_path, line, message):
    """Catches a preset whose mistake goes unnoticed."""
    (tmp_path / "x.toml").write_text(line)
    with refused(message):
        parse(tmp_path / "x.toml")


VOCABULARIES = {"stdlib": 256, "shakespeare_char": 65}


@parametrize("preset", sorted(ROOT.glob("config/*.toml")), ids=lambda path: path.stem)
def test_included_presets(preset):
    """Catches a preset that no longer fits the settings, that does not say its cost, or when this
    was measured, or another size or number of tokens, or for data that nobody can prepare.
    """
    config = parse(preset)
    assert (ROOT / "data" / config.dataset).is_dir()
    text = preset.read_text()
    costs, reached = text.split("\n# Costs: ")[1].split("\n# Reaches: ")
    assert re.search(r"2026-\d\d-\d\d|ot yet measured|o whole run", costs + reached)
    costs = costs.split("\n#")[0]
    tokens = config.max_iters * config.gradient_accumulation_steps
    tokens *= config.batch_size * config.block_size
    found = {"M tokens": tokens / 1e6, "billion tokens": tokens / 1e9}
    vocab_size = config.vocab_size or padded_vocab_size(VOCABULARIES.get(config.dataset, 0))
    if vocab_size and not config.init_from.startswith("gpt2"):
        with torch.device("meta"):
            found["M parameters"] = GPT(config.model_config(vocab_size)).num_params() / 1e6
    for what, value in found.items():
        for said in re.findall(rf"([\d.]+) {what}", costs)[:1]:
            digits = len(said.partition(".")[2])
            assert said == f"{value:.{digits}f}", what


@parametrize("cls", [TrainConfig, SampleConfig, Kinds])
def test_help_documents_every_setting(cls, capsys, monkeypatch):
    """Catches a setting without a word of help, and a heading, type or default that is lost."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        given_settings(cls, ["--help"])
    assert not stop.value.code
    text = capsys.readouterr().out
    for name in cls.__dataclass_fields__:
        about = text.split(f"  --{name} ")[1].split("(default")[0].split(">")[-1]
        assert len(about.split()) > 2, name
    if cls is Kinds:
        order = "Kinds: | --paths |100 %,|Choices:| --flag | --share <a number> |(default: None)"
        places = [text.index(part.strip()) for part in order.split("|")]
        assert places == sorted(places)


def test_devices(monkeypatch):
    """Catches a CPU beside a GPU, and a missing device that is noticed in the middle of a run."""
    gpu = {"is_available": True, "device_count": 2}
    for name in gpu:
        monkeypatch.setattr(torch.cuda, name, lambda name=name: gpu[name])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name, kind in ("auto", "cuda"), ("cuda:1", "cuda:1"), ("cpu", "cpu"):
        assert pick_device(name) == torch.device(kind)
    for name in "cuda:2", "tpu", "cpu:", "mps":
        with refused(f"device={name} is"):
            pick_device(name)
    gpu["is_available"] = False  # its driver is too old
    assert pick_device("auto") == CPU


def test_a_developer_s_traceback():
    """Catches a mistake of one's own in the code that python -X dev does not show either."""
    assert "Traceback" in run("-X", "dev", "sample.py", "--seed=x").stderr


@parametrize("library", [torch, np])
def test_too_little_memory(library, capsys):
    """Catches a traceback where memory is too small, and a bug that passes for it."""
    with pytest.raises(SystemExit) as stop, one_line_errors():
        library.empty(10**15)
    errors = capsys.readouterr().err
    assert stop.value.code == 2 and "memory" in errors and errors.count("\n") == 1
    with pytest.raises(RuntimeError, match="shapes"), one_line_errors():
        torch.zeros(2, 3) @ torch.zeros(2, 3)


def test_a_hostile_message(capsys):
    """Catches a name from a hostile file that ends the line, or speaks to the terminal."""
    with pytest.raises(SystemExit), one_line_errors():
        raise ValueError("a\nb\x1b[2J\u202e猫" + "x" * 10**6)
    errors = capsys.readouterr().err
    assert "a\\nb\\x1b[2J\\u202e猫xx" in errors and len(errors) < 2100
    assert errors.strip().isprintable()
