"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is executed or unpickled.

The dataclass is the only list of settings. Its fields are the keys, and their annotations the
types. The docstrings below the fields are the help, and the comments between them its headings.
tyro reads the values and prints the help.
"""

import contextlib
import difflib
import inspect
import io
import itertools
import re
import sys
import tomllib
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Required, TypedDict, get_origin, get_type_hints

import tyro
from tyro import conf
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

from engine.errors import UserError
from engine.files import ROOT, shell_path


def parse_settings(cls, argv, default=None):
    """Return an instance of the dataclass cls from a command line: [x.toml ...] [--key=value ...].

    Later presets win, and the command line wins over them. default: an instance that they change;
    None: cls's own defaults. --help prints the settings and exits. UserError for an unknown key, a
    wrong type or an impossible value.
    """
    given = given_settings(cls, argv, default)
    return replace(default, **given) if default else cls(**given)


def given_settings(cls, argv, default=None):
    """Return {key: value} of the settings that a command line and its presets give.

    No instance is made, because a preset may be valid only together with the command line.
    """
    if {"-h", "--help"} & {*argv}:
        print_help(cls, default)
    presets = leading_presets(argv)
    given = {}
    for preset in presets:
        given |= read_values(cls, read_toml(preset), preset)
    return given | read_words(cls, argv[len(presets) :])


def settings_from(cls, values, source):
    """Return cls with values, the dict of a TOML or JSON file. source: its name in a UserError."""
    return read_values(cls, values, source, make=cls)


# ---- Presets


def leading_presets(argv):
    """Return the presets at the beginning of a command line."""
    return list(itertools.takewhile(re.compile(r"[^-].*\.toml$").match, argv))


def read_toml(path):
    """Return the content of a TOML file; UserError if it is missing or is something else."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = [shell_path(preset) for preset in sorted((ROOT / "config").glob("*.toml"))]
        raise UserError(f"there is no preset {path}: choose {', '.join(known)}") from None
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}") from None


def read_values(cls, values, source, make=dict):
    """Return make(**settings) for the values of a file; UserError for a wrong key or type."""
    try:
        words = []
        for key, value in values.items():
            if key not in cls.__dataclass_fields__:
                raise unknown(cls, f"--{key}")
            items = value if isinstance(value, list) else [value]
            words += [f"--{key}={item}" for item in items] or [f"--{key}"]
        given = read_words(cls, words)
        for key, value in values.items():
            if shape(value) != shape(given[key]):
                raise UserError(f"{key}={value!r} must be {type(given[key]).__name__}")
        return make(**given)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def shape(value):
    """Return whether a value is text; for a list, a list of this."""
    if isinstance(value, list | tuple):
        return [shape(item) for item in value]
    return isinstance(value, str | Path)


# ---- The command line

TYPES = ConstructorRegistry()


@TYPES.primitive_rule
def read_bool(kind):
    """Tell tyro how to read a bool: --key alone means True."""

    def read(words):
        word = " ".join(words).lower() if words else "true"
        if word not in ("true", "false"):
            raise ValueError(f"{word!r} is not True or False")
        return word == "true"

    if kind.type is bool:
        return PrimitiveConstructorSpec("*", "{True,False}", read, lambda value: True, str)


PLAIN = {  # theirs: ours
    "Error parsing ": "",
    "invalid literal for int() with base 10": "not a whole number",
    "could not convert string to float": "not a number",
}


def read_words(cls, words):
    """Return {key: value} for words such as --key=value; UserError for one not understood."""
    kinds = get_type_hints(cls)
    lists = {key for key, kind in kinds.items() if get_origin(kind) is tuple}
    # --key a b --key=c is a list of lists, (("a", "b"), ("c",)), and () if it is not given.
    kinds |= {key: Required[tuple[kinds[key], ...]] for key in lists}
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            given, rest = tyro.cli(
                TypedDict("Given", kinds, total=False),
                args=words,
                add_help=False,
                return_unknown_args=True,
                use_underscores=True,
                config=(conf.FlagConversionOff, conf.UseAppendAction),
                registry=TYPES,
            )
    except SystemExit:  # with an error in a box: title, line, paragraph, line, ...
        lines = [line.strip("|- ") for line in output.getvalue().splitlines()]
        message = " ".join(itertools.takewhile(bool, lines[2:]))
        for theirs, ours in PLAIN.items():
            message = message.replace(theirs, ours)
        raise UserError(message) from None
    if rest:
        raise unknown(cls, rest[0])
    for key in lists:
        parts = given.pop(key)
        if parts:
            given[key] = sum(parts, ())
    return given


def unknown(cls, word):
    """Return the UserError for a word that is not a setting."""
    if word.startswith("--"):
        key = word[2:].split("=")[0]
        nearest = difflib.get_close_matches(key, cls.__dataclass_fields__, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else "--help lists all settings"
        return UserError(f"unknown setting {key!r}: {hint}")
    forms = "a setting (--key=value) nor a preset (config/x.toml, before all settings)"
    hint = "; write nanoGPT's .py as TOML: x = false, not False" if word.endswith(".py") else ""
    return UserError(f"{word!r} is neither {forms}{hint}")


# ---- The help


def print_help(cls, default):
    """Print the settings of cls in groups, one for each heading, and exit."""
    kinds = get_type_hints(cls)
    groups = {}
    for key, (heading, text) in read_help(cls).items():
        hint = f"(default: {getattr(default or cls, key, '')!r})"
        about = conf.arg(help=text, help_behavior_hint=hint)
        groups.setdefault(heading, {})[key] = Annotated[kinds[key], about]
    for heading, settings in groups.items():
        group = TypedDict("Group", settings, total=False)
        groups[heading] = Annotated[group, conf.arg(name=heading, help="")]
    tyro.cli(
        TypedDict("Groups", groups),
        args=["--help"],
        prog=f"{Path(sys.argv[0]).name} [config/x.toml ...]",
        description="Write a setting as --key=value or --key value; --key alone means True.",
        use_underscores=True,
        config=(conf.FlagConversionOff, conf.OmitArgPrefixes),
    )


# A comment that is a heading; or a field, and its docstring.
FIELD = re.compile(r'^ +(?:# (.*)|(\w+): .*(?:\n +"""([^"]*)""")?)', re.MULTILINE)


def read_help(cls):
    """Return {key: (heading, help)} from the source of a dataclass and its bases."""
    found = {}
    for owner in filter(is_dataclass, cls.__mro__):
        heading = owner.__name__
        for comment, key, text in FIELD.findall(inspect.getsource(owner)):
            heading = comment.partition(":")[0] or heading
            if key:
                above, known = found.get(key, (heading, ""))
                found[key] = above, known or " ".join(text.split())
    return found
