"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is executed or unpickled.

The dataclass is the only list of settings. Its fields are the keys, and their annotations the
types: str, int, float, bool, Path, Literal, a union of these, or a tuple of one of them. The
docstrings below the fields are the help, and the comments between them its headings.
"""

import argparse
import contextlib
import difflib
import functools
import inspect
import itertools
import re
import tomllib
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path

from engine.files import ROOT, shell_path

PLAIN = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    Path: "a path",
}


def parse_settings(cls, argv):
    """Return an instance of the dataclass cls from a command line: [x.toml ...] [--key=value ...].

    Later presets win, and the command line wins over them. --help prints the settings and exits.
    ValueError in one line for an unknown key, a wrong type or an impossible value.
    """
    return cls(**given_settings(cls, argv))


def given_settings(cls, argv):
    """Return {key: value} of those settings that a command line or its presets give."""
    presets = leading_presets(argv)
    values = {}
    for preset in presets:
        content = read_toml(preset)
        try:
            values |= read_settings(cls, content)
        except ValueError as error:
            raise ValueError(f"{preset}: {error}") from None
    return values | parse_words(cls, argv[len(presets) :])


def read_settings(cls, content):
    """Return {key: value} for a dict of TOML or JSON, as cls has them.

    ValueError as for a command line; also for text that stands for a number, or the reverse.
    """
    kinds = typing.get_type_hints(cls)
    given = {}
    for key, value in content.items():
        kind = kinds.get(key)
        several = typing.get_origin(kind) is tuple
        items = value if several and isinstance(value, list) else [value]
        given |= {key: ()} | parse_words(cls, [f"--{key}={item}" for item in items])
        if not several and isinstance(value, str) != isinstance(given[key], str | Path):
            raise ValueError(f"{key}={value!r} is not {in_words(choices(kind))}")
    return given


def parse_words(cls, words):
    """Return {key: value} for words such as --key=value; ValueError for one not understood."""
    try:
        given, unknown = make_parser(cls).parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from None
    if not unknown:
        values = vars(given).items()
        return {key: tuple(value) if isinstance(value, list) else value for key, value in values}
    word = unknown[0]
    if not word.startswith("--"):
        hint = "; write nanoGPT's .py as TOML: x = false, not False" if word.endswith(".py") else ""
        forms = "a setting (--key=value) nor a preset (config/x.toml, before all settings)"
        raise ValueError(f"{word!r} is neither {forms}{hint}")
    key = word[2:].split("=")[0]
    nearest = difflib.get_close_matches(key, [field.name for field in fields(cls)], n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "--help lists all settings"
    raise ValueError(f"unknown setting {key!r}: {hint}")


def leading_presets(argv):
    """Return the presets at the beginning of a command line."""
    return list(itertools.takewhile(re.compile(r"[^-].*\.toml$").match, argv))


# ---- Presets


def read_toml(path):
    """The content of a TOML file; ValueError if it is missing or is something else."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = [shell_path(preset) for preset in sorted((ROOT / "config").glob("*.toml"))]
        raise ValueError(f"there is no preset {path}: choose {', '.join(known)}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


# ---- The parser


@functools.cache
def make_parser(cls):
    """A parser for the fields of a dataclass. It is made once, since it reads the source."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [config/x.toml ...] [--key=value ...]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
    )
    headings, texts = field_help(cls)
    groups = {heading: parser.add_argument_group(heading) for heading in headings.values()}
    kinds = typing.get_type_hints(cls)
    for field in fields(cls):
        key = field.name
        options = argument_options(kinds[key])
        default = getattr(cls, key, "")
        options["help"] = f"{texts.get(key, '')} (default: {default!r})".replace("%", "%%")
        groups[headings[key]].add_argument(f"--{key}", **options)
    return parser


def argument_options(kind):
    """Return add_argument's options for a type: its words, their number, and how each is read."""
    known = choices(kind)
    names = in_words(known)

    def read(word):
        for choice in known:
            if choice == word:
                return word
            if choice is bool and word.lower() in ("true", "false"):
                return word.lower() == "true"
            if choice in (int, float, str, Path):
                with contextlib.suppress(ValueError):
                    return choice(word)
        raise argparse.ArgumentTypeError(f"{word!r} is not {names}")

    options = {"type": read, "metavar": f"<{names}>"}
    if typing.get_origin(kind) is tuple:
        options |= {"nargs": "+", "action": "extend"}
    elif bool in known:
        options |= {"nargs": "?", "const": True}  # --key alone
    return options


def choices(kind):
    """Return the types and values that a setting may have, in the order in which they are tried."""
    if typing.get_origin(kind) is typing.Literal:
        return [*typing.get_args(kind)]
    parts = [part for part in typing.get_args(kind) if part not in (types.NoneType, ...)]
    return [choice for part in parts for choice in choices(part)] or [kind]


def in_words(known):
    """Return choices as one reads them: True or False or auto."""
    return " or ".join(PLAIN.get(choice, choice or "empty") for choice in known)


# A comment that is a heading; or a field, and its docstring.
FIELD = re.compile(r'^ +(?:# (.*)|(\w+): .*(?:\n +"""([^"]*)""")?)', re.MULTILINE)


def field_help(cls):
    """({field: heading}, {field: help}) from the source of a dataclass and its bases."""
    headings = {}
    texts = {}
    for owner in filter(is_dataclass, cls.__mro__):
        heading = owner.__name__
        for comment, name, text in FIELD.findall(inspect.getsource(owner)):
            heading = comment or heading
            headings.setdefault(name, heading)
            if text:
                texts.setdefault(name, text)
    return headings, texts
