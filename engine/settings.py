"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is executed or unpickled.

The dataclass is the only list of settings: its fields are the keys, their annotations the types,
and the docstrings below the fields the help. tyro reads them.
"""

import contextlib
import io
import itertools
import re
import sys
import tomllib
import typing
from pathlib import Path

import tyro

from engine.errors import UserError
from engine.files import ROOT, shell_path


def parse_settings(cls, argv, default=None):
    """Return an instance of the dataclass cls from a command line: [x.toml ...] [--key=value ...].

    Later presets win, and the command line wins over them. default: an instance that they change;
    None: cls's own defaults. --help prints the settings and exits. UserError for an unknown key, a
    wrong type or an impossible value.
    """
    presets = leading_presets(argv)
    for preset in presets:
        default = settings_from(cls, read_toml(preset), preset, default)
    return parse_words(cls, argv[len(presets) :], default)


def leading_presets(argv):
    """Return the presets at the beginning of a command line."""
    return list(itertools.takewhile(re.compile(r"[^-].*\.toml$").match, argv))


def settings_from(cls, values, source, default=None):
    """Return cls with the values of TOML or JSON, a dict, read as strictly as a command line."""
    words = []
    for key, value in values.items():
        words += [f"--{key}={item}" for item in (value if isinstance(value, list) else [value])]
    try:
        return parse_words(cls, words, default)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def read_toml(path):
    """The content of a TOML file; UserError if it is missing or is something else."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = [shell_path(preset) for preset in sorted((ROOT / "config").glob("*.toml"))]
        raise UserError(f"there is no preset {path}: choose {', '.join(known)}") from None
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}") from None


def parse_words(cls, words, default=None):
    """Return cls, or default with the changes, for words such as --key=value."""
    kinds = typing.get_type_hints(cls)
    flags = {f"--{key}" for key, kind in kinds.items() if bool in (kind, *typing.get_args(kind))}
    lists = {f"--{key}" for key, kind in kinds.items() if typing.get_origin(kind) is tuple}
    read = []
    items_of = None  # --input a b is --input=a --input=b
    for word, after in zip(words, [*words[1:], "--"]):
        if word in lists or word.startswith("-"):
            items_of = word if word in lists else None
        if word in flags and after.startswith("--"):
            word = f"{word}=True"
        if word != items_of:
            read.append(f"{items_of}={word}" if items_of else word)
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(
                cls,
                args=read,
                prog=Path(sys.argv[0]).name,
                use_underscores=True,
                config=(tyro.conf.FlagConversionOff, tyro.conf.UseAppendAction),
                **({"default": default} if default else {}),
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        if isinstance(end.__context__, UserError):  # of the dataclass itself
            raise end.__context__ from None
        # tyro draws a box: what is wrong, a line, a hint, a line, and where the help is.
        lines = [line.strip("│| ") for line in box.getvalue().splitlines()[1:-1]]
        *message, _ = re.split("[─-]{9,}", " ".join(lines))
        raise UserError(". ".join(part.strip(" .") for part in message)) from None
