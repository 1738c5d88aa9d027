"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is executed or unpickled.

The dataclass is the only list of settings. Its fields are the keys, and their annotations the
types: str, int, float, bool, Path, Literal, a union of these, or a tuple of one of them. The
docstrings below the fields are the help, and the comments between them its headings.
"""

import argparse
import ast
import contextlib
import difflib
import functools
import inspect
import itertools
import re
import textwrap
import tomllib
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path

from engine.common.files import ROOT, shell_path

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
        values |= preset_settings(cls, preset)
    return values | parse_words(cls, argv[len(presets) :])


def preset_settings(cls, path):
    """Return {key: value} of the settings that a preset gives, as cls has them."""
    kinds = typing.get_type_hints(cls)
    settings = read_preset(path)
    words = []
    try:
        for key, value in settings.items():
            if isinstance(value, list) and typing.get_origin(kinds.get(key)) is tuple:
                words += [f"--{key}={item}" for item in value]
            else:
                words.append(f"--{key}={value}")
        return parse_words(cls, words)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


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


def read_preset(path):
    """The settings in a TOML file, over those of the preset that it names as its base."""
    settings = read_toml(path)
    if "base" not in settings:
        return settings
    base = Path(path).parent / str(settings.pop("base"))
    try:
        return read_preset(base) | settings
    except RecursionError:
        raise ValueError(f"{path}: its base leads back to it") from None


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
    origin = typing.get_origin(kind)
    kinds = [kind]
    if origin is tuple:
        kinds = typing.get_args(kind)[:1]
    elif origin in (typing.Union, types.UnionType):
        kinds = typing.get_args(kind)
    names = " or ".join(type_name(kind) for kind in kinds if kind is not types.NoneType)
    options = {"type": functools.partial(read_word, kinds, names), "metavar": f"<{names}>"}
    if origin is tuple:
        options |= {"nargs": "+", "action": "extend"}
    elif bool in kinds:
        options |= {"nargs": "?", "const": True}  # --key alone
    return options


def type_name(kind):
    """Return a type in plain words, such as a whole number."""
    choices = [value or "empty" for value in typing.get_args(kind)]
    return " or ".join(choices) or PLAIN[kind]


def read_word(kinds, names, word):
    """Return the value of a word as the first of these types that it fits."""
    for kind in kinds:
        if kind is bool and word.lower() in ("true", "false"):
            return word.lower() == "true"
        if word in typing.get_args(kind):  # of a Literal
            return word
        if kind in (int, float, str, Path):
            with contextlib.suppress(ValueError):
                return kind(word)
    raise argparse.ArgumentTypeError(f"{word!r} is not {names}")


def field_help(cls):
    """({field: heading}, {field: help}) from the source of a dataclass and its bases."""
    headings = {}
    texts = {}
    for owner in filter(is_dataclass, cls.__mro__):
        source = textwrap.dedent(inspect.getsource(owner))
        lines = source.splitlines()
        heading = owner.__name__
        name = None  # of the field before; the class's own docstring has none
        for node in ast.parse(source).body[0].body:
            if isinstance(node, ast.AnnAssign):
                name = node.target.id
                above = lines[node.lineno - 2].strip()
                if above.startswith("# "):
                    heading = above[2:]
                headings.setdefault(name, heading)
            elif isinstance(node, ast.Expr):
                texts.setdefault(name, node.value.value)
    return headings, texts
