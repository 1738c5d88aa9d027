"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is executed or unpickled.

The dataclass is the only list of settings. Its fields are the keys, and their annotations the
types: str, int, float, bool, Path, Literal, a union of these, or a tuple of any length. The
docstrings below the fields are the help, and the comments between them its headings.
"""

import argparse
import ast
import contextlib
import difflib
import inspect
import itertools
import textwrap
import tomllib
import types
import typing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

from engine.common.files import ROOT, shell_path, shell_quote


class Parser(argparse.ArgumentParser):
    """The standard parser, but a mistake is a ValueError, and no key may be abbreviated."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **options)

    def error(self, message):
        raise ValueError(message)


def parse_settings(cls, argv, base=None, hidden=()):
    """Return an instance of the dataclass cls from a command line: [x.toml ...] [--key=value ...].

    Later presets win, and the command line wins over them. base: an instance whose values replace
    the defaults. hidden: fields that --help does not show. --help prints the settings and exits.
    ValueError in one line for an unknown key, a wrong type or an impossible value.
    """
    parser = make_parser(cls, base or cls, hidden)
    presets = leading_presets(argv)
    sources = {}
    for preset in presets:
        settings = read_preset(preset)
        sources[f"{preset}: "] = [f"--{key}={value}" for key, value in settings.items()]
    sources[""] = argv[len(presets) :]  # the command line
    values = {}
    for where, words in sources.items():
        try:
            given, unknown = parser.parse_known_args(words)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None
        if unknown:
            raise ValueError(where + unknown_word(cls, unknown[0]))
        values |= vars(given)
    for key, value in values.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    return replace(base, **values) if base else cls(**values)


def leading_presets(argv):
    """The presets at the beginning of a command line."""
    return list(itertools.takewhile(lambda word: word.endswith(".toml") and word[0] != "-", argv))


def peek_setting(argv, key, default):
    """The value of one str setting, read before the others that depend on it."""
    presets = leading_presets(argv)
    for preset in presets:
        default = read_preset(preset).get(key, default)
    parser = Parser(add_help=False)
    parser.add_argument(f"--{key}")
    given = vars(parser.parse_known_args(argv[len(presets) :])[0])
    if given.get(key) == "":
        raise ValueError(f"argument --{key}: expected one argument")
    return given.get(key, default)


def unknown_word(cls, word):
    """The message for a word that is not understood."""
    if word.startswith("--"):
        key = word[2:].split("=")[0]
        names = [field.name for field in fields(cls)]
        hint = did_you_mean(key, names, "--help lists all settings")
        return f"unknown setting {key!r}: {hint}"
    hint = f"; a folder is given as --out_dir={shell_quote(word)}" if Path(word).is_dir() else ""
    forms = "neither a setting (--key=value) nor a preset (config/x.toml, before all settings)"
    return f"{word!r} is {forms}{hint}"


def did_you_mean(word, known, otherwise):
    """A hint at the nearest of the known words, or another hint if none is near."""
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"did you mean {nearest[0]}?" if nearest else otherwise


# ---- Presets


def read_preset(path):
    """The settings in a TOML file, over those of the preset that it names as its base."""
    settings = {}
    seen = []
    while path not in seen:
        seen.append(path)
        found = read_toml(path)
        settings = found | settings
        if "base" not in found:
            return settings
        path = str(Path(path).parent / str(settings.pop("base")))
    raise ValueError(f"{path}: its base leads back to it")


def read_toml(path):
    """The content of a TOML file; ValueError if it is missing or is something else."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = [shell_path(preset) for preset in sorted((ROOT / "config").glob("*.toml"))]
        hint = did_you_mean(path, known, f"there are {', '.join(known)}")
        raise ValueError(f"there is no preset {path}: {hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


# ---- The parser


def make_parser(cls, defaults, hidden):
    """A parser for the fields of a dataclass; defaults: what holds them, for --help."""
    parser = Parser(usage="%(prog)s [config/x.toml ...] [--key=value ...]")
    headings, texts = field_help(cls)
    groups = {heading: parser.add_argument_group(heading) for heading in headings.values()}
    kinds = typing.get_type_hints(cls)
    for field in fields(cls):
        key = field.name
        options = argument_type(kinds[key])
        default = getattr(defaults, key, "")
        options["help"] = f"{texts.get(key, '')} (default: {default!r})".replace("%", "%%")
        if key in hidden:
            options["help"] = argparse.SUPPRESS
        groups[headings[key]].add_argument(f"--{key}", **options)
    return parser


def argument_type(kind):
    """Options of add_argument for a type: how often, its name, and how a word is read."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    kinds = typing.get_args(kind) if is_union else (kind,)
    kinds = [kind for kind in kinds if kind is not types.NoneType]
    options = {}
    if typing.get_origin(kinds[0]) is tuple:
        options = {"nargs": "*", "action": "extend"}
        kinds = typing.get_args(kinds[0])[:1]
    elif kinds[0] is bool:
        options = {"nargs": "?", "const": True}  # --key alone
    words = type_words(kinds)

    def read_word(word):
        for kind in kinds:
            if kind is bool and word.lower() in ("true", "false"):
                return word.lower() == "true"
            if typing.get_origin(kind) is typing.Literal and word in typing.get_args(kind):
                return word
            if kind in (int, float, str, Path):
                with contextlib.suppress(ValueError):
                    return kind(word)
        raise argparse.ArgumentTypeError(f"{word!r} is not {words}")

    return options | {"type": read_word, "metavar": f"<{words}>"}


def type_words(kinds):
    """Types in plain words, such as: a whole number or full."""
    plain = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
    words = []
    for kind in kinds:
        literals = [value or "empty" for value in typing.get_args(kind)]
        words += literals or [plain.get(kind, "a path")]
    return " or ".join(words)


def field_help(cls):
    """({field: heading}, {field: help}) from the source of a dataclass and its bases."""
    headings = {}
    texts = {}
    for owner in filter(is_dataclass, cls.__mro__):
        source = textwrap.dedent(inspect.getsource(owner))
        lines = source.splitlines()
        heading = owner.__name__
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
