"""Settings: which value wins, and one helpful line for bad input."""

import errno
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from conftest import CPU, ROOT, parametrize, refused, run

from engine.errors import UserError, one_line_errors
from engine.machine import pick_device
from engine.settings import parse_settings
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
        ("--secret=--flag --mode=False", dict(secret="--flag", mode=False)),
        ("--secret=a --secret b", dict(secret="b")),
        ("--mode --flag=false", dict(mode=True, flag=False)),
        ("--paths=-x --paths=--flag --paths=", dict(paths=(Path("-x"), Path("--flag"), Path("")))),
        ("--sizes -1 2 --sizes=-3 --flag False", dict(sizes=(-1, 2, -3), flag=False)),
    ],
)
def test_each_type(words, given):
    """Catches a type that is read as another, a list of which only the last word stays, and a value
    with a dash that is taken for a setting.
    """
    assert parse_settings(Kinds, words.split()) == Kinds(**given)


def test_spaces_in_a_list():
    """Catches an item such as "- " that loses its space, or is taken for a setting."""
    assert parse_settings(SampleConfig, ["--stop=- ", "--stop=a b"]).stop == ("- ", "a b")


def test_an_instance_as_default(tmp_path):
    """Catches a resumed run that forgets its settings, and a list that grows by the default's."""
    saved = Kinds(paths=(Path("a"),), sizes=(1, 2), secret="kept")
    preset = tmp_path / "x.toml"
    preset.write_text("sizes = []\nflag = false\n")
    got = parse_settings(Kinds, [str(preset), "--paths=b"], saved)
    assert got == Kinds(paths=(Path("b"),), sizes=(), flag=False, secret="kept")


def test_presets_that_are_valid_only_together(tmp_path):
    """Catches settings that are checked before the command line has completed a preset."""
    for name, text in ("x", "lora_rank = 4\nn_embd = 100"), ("y", "n_head = 5"):
        (tmp_path / f"{name}.toml").write_text(text)
    config = parse(tmp_path / "x.toml", tmp_path / "y.toml", "--init_from=out")
    assert (config.lora_rank, config.n_embd, config.n_head) == (4, 100, 5)
    with refused("lora_rank=4"):
        parse(tmp_path / "x.toml", tmp_path / "y.toml")


def test_lists_in_a_preset(tmp_path):
    """Catches an item of a list that is taken for a flag, since it begins with a dash."""
    preset = tmp_path / "x.toml"
    preset.write_text('paths = ["-x", "a b"]\nsizes = [-1, 2]\n')
    want = Kinds(paths=(Path("-x"), Path("a b")), sizes=(-1, 2))
    assert parse_settings(Kinds, [str(preset)]) == want


REFUSED = {
    "--n_layer=4.5": "--n_layer: not a whole number: '4.5'",
    "--dtype=float8": "choice 'float8' for argument '--dtype'. Expected one of ('auto', 'float32'",
    "--n_layer": "Missing value for argument '--n_layer'",
    "--n_embd=True": "--n_embd: not a whole number: 'True'",
    "--compile=maybe": "--compile: no type matching {True,False,auto} could be instantiated from",
    "--bacth_size=4": "unknown setting 'bacth_size': did you mean batch_size?",
    "--n_layer 4 config/minute.toml": "'config/minute.toml' is neither a setting",
    "-n_layer=4": "'-n_layer=4' is neither a setting",
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
def test_bad_settings(argument, capfd, monkeypatch):
    """Catches a misspelt or impossible setting that is ignored, or answered with a page of text."""
    monkeypatch.setenv("COLUMNS", "20")  # a narrow terminal must not change the message
    with pytest.raises(UserError, match=rf"\A.*({re.escape(REFUSED[argument])}).*\Z"):
        parse(*argument.split(" "))
    assert capfd.readouterr() == ("", "")


@parametrize(
    "line, message",
    [
        ("\ufeffn_layr = 3", r"x.toml: unknown setting 'n_layr': did you mean n_layer\?"),
        ('n_layer = "3"', "x.toml: n_layer='3' must be int"),
        ("n_layer = true", "x.toml: --n_layer: .*'True'"),
        ("n_layer = 4.0", "x.toml: --n_layer: .*'4.0'"),
        ('compile = "true"', "x.toml: compile='true' must be bool"),
        ("bias = 1", "x.toml: --bias: '1' is not True or False"),
        ("dropout = true", "x.toml: --dropout: .*'True'"),
        ("dtype = 32", "x.toml: invalid choice '32' for argument '--dtype'"),
        ("out_dir = 3", "x.toml: out_dir=3 must be str"),
        ("out_dir = true", "x.toml: out_dir=True must be str"),
        ('out_dir = ["a"]', r"x.toml: out_dir=\['a'\] must be str"),
        ('"out_dir=a" = "b"', "x.toml: unknown setting 'out_dir"),
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


@parametrize("columns", [80, 120])
@parametrize("cls", [TrainConfig, SampleConfig, Kinds])
def test_help_documents_every_setting(cls, columns, capsys, monkeypatch):
    """Catches a setting without a word of help, a heading, type or default that is lost, and a
    usage line that lists all settings.
    """
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stop:
        parse_settings(cls, ["--help"])
    assert not stop.value.code
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and lines[1] == "" and lines[0].startswith("usage: ")
    text = " ".join(" ".join(lines).replace("│", " ").split())
    for name in cls.__dataclass_fields__:
        assert text.count(f" --{name} ") == 1, name
        about = text.split(f" --{name} ")[1].split("(default: ")[0]
        assert len(about.split()) > 3, name  # of which the first is the type
    order = {
        TrainConfig: """Output options, --seed INT, Data options, Model options, --dropout FLOAT,
            Machine options, (default: 'auto'), --compile {True, mlp=experts options, --balance""",
        SampleConfig: "SampleConfig options, --stop [STR [STR ...]], Sampling options",
        Kinds: """Kinds options, --paths [PATH [PATH ...]], 100 %, (default: ()), Choices options,
            --flag {True, --share {None}|FLOAT, (default: None)""",
    }[cls]
    places = [text.index(part) for part in " ".join(order.split()).split(", ")]
    assert places == sorted(places)


def test_help_shows_the_defaults_of_an_instance(capsys):
    """Catches a script of experiments/ whose help shows other defaults than it uses."""
    with pytest.raises(SystemExit):
        parse_settings(Kinds, ["--help"], Kinds(secret="of this script"))
    assert "(default: 'of this script')" in capsys.readouterr().out


def test_devices(monkeypatch):
    """Catches a CPU beside a GPU, and a missing device that is noticed in the middle of a run."""
    gpu = {"is_available": True, "device_count": 2}
    for name in gpu:
        monkeypatch.setattr(torch.cuda, name, lambda name=name: gpu[name])
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name, kind in ("auto", "cuda"), ("cuda:1", "cuda:1"), ("cpu", "cpu"):
        assert pick_device(name) == torch.device(kind)
    for name in "cuda:2", "tpu", "cpu:", "mps":
        with refused(f"device={name} is"):
            pick_device(name)
    gpu["is_available"] = False  # its driver is too old
    assert pick_device("auto") == CPU


@parametrize(
    "error, message",
    [
        (UserError("no such dataset"), "no such dataset"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.EDQUOT, "Quota exceeded", "out/x"), "out/x: Quota exceeded"),
        (FileNotFoundError(2, "No such file", "mine.txt"), "mine.txt: No such file"),
        (IsADirectoryError(21, "Is a directory", Path("mine.txt")), "mine.txt: Is a directory"),
        (BrokenPipeError(32, "Broken pipe"), "Broken pipe"),
        (FileNotFoundError(2, "No such file", "engine/kernel.cu"), None),
        (OSError(errno.EIO, "Input/output error"), None),
        (ValueError("not enough values to unpack (expected 3, got 2)"), None),
        (RuntimeError("shapes do not match"), None),
        (KeyError("n_layer"), None),
    ],
)
def test_whose_mistake_it_is(error, message, capsys, monkeypatch):
    """Catches a traceback where a user can help, and one line that hides a mistake in the code."""
    monkeypatch.setattr("sys.argv", ["script.py", "--input=mine.txt"])
    with pytest.raises(SystemExit if message else type(error)) as stop, one_line_errors():
        raise error
    if message:
        assert stop.value.code == 2 and capsys.readouterr().err == f"script.py: {message}\n"


def test_an_interrupt(capsys):
    """Catches Ctrl-C that ends with a traceback, or as if the script had finished."""
    with pytest.raises(SystemExit) as stop, one_line_errors():
        raise KeyboardInterrupt
    assert stop.value.code == 130 and not capsys.readouterr().err


def test_a_mistake_in_a_forward_pass(tmp_path):
    """Catches a mistake in model.py of which only one line is shown, without file and line."""
    code = """
import sys, runpy, model
def forward(self, *arguments, **options):
    q, k, v = 1, 2
model.GPT.forward = forward
sys.argv = ["train.py", "--max_iters=1", "--eval_iters=1", f"--out_dir={sys.argv[1]}"]
runpy.run_path("train.py", run_name="__main__")
"""
    found = run("-c", code, str(tmp_path))
    assert found.returncode == 1
    assert "Traceback" in found.stderr and "line 4, in forward" in found.stderr


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
        raise UserError("a\nb\x1b[2J\u202e猫" + "x" * 10**6)
    errors = capsys.readouterr().err
    assert "a\\nb\\x1b[2J\\u202e猫xx" in errors and len(errors) < 2100
    assert errors.strip().isprintable()
