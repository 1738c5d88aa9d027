"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is executed or unpickled.

The dataclass is the only list of settings. Its fields are the keys, and their annotations the
types. The docstrings below the fields are the help, and the comments between them its headings.
tyro splits the command line, reads each type, and prints the help.
"""

import contextlib
import difflib
import functools
import inspect
import itertools
import re
import sys
import tomllib
import typing
from dataclasses import field, fields, is_dataclass, make_dataclass, replace
from pathlib import Path

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

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
    presets = leading_presets(argv)
    given = {}
    for preset in presets:
        given |= read_values(cls, read_toml(preset), preset)
    return given | read_words(cls, argv[len(presets) :], default)


def settings_from(cls, values, source):
    """Return cls with values, the dict of a TOML or JSON file. source: its name in a UserError."""
    given = read_values(cls, values, source)
    try:
        return cls(**given)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


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


def read_values(cls, values, source):
    """Return the values of a file as cls's types; UserError for a wrong key or type."""
    kinds = typing.get_type_hints(cls)
    given = {}
    for key, value in values.items():
        if key not in kinds:
            raise UserError(f"{source}: {unknown(cls, f'--{key}')}")
        items = value if is_list(kinds[key]) and isinstance(value, list) else [value]
        given[key] = read_type(f"{source}: {key}", kinds[key], items, strict=True)
    return given


# ---- The command line


def read_words(cls, words, default):
    """Return {key: value} for words such as --key=value; UserError for one not understood."""
    kinds = typing.get_type_hints(cls)
    groups, rest = tyro.cli(
        make_groups(cls, kinds, default, help={"-h", "--help"} & {*words}),
        args=words,
        prog=f"{Path(sys.argv[0]).name} [config/x.toml ...]",
        description="Write a setting as --key=value or --key value; --key alone means True.",
        use_underscores=True,
        return_unknown_args=True,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.UseAppendAction),
    )
    given = {}
    for key, found in itertools.chain(*(vars(group).items() for group in vars(groups).values())):
        if is_list(kinds[key]) and found:
            given[key] = [*itertools.chain(*found)]  # --key a b --key=c
        elif not is_list(kinds[key]) and found is not None:
            given[key] = found[:1]
            rest += found[1:]
    if rest:
        raise unknown(cls, rest[0])
    return {key: read_type(f"--{key}", kinds[key], items) for key, items in given.items()}


def unknown(cls, word):
    """Return the UserError for a word that is not a setting."""
    if word.startswith("--"):
        key = word[2:].split("=")[0]
        nearest = difflib.get_close_matches(key, [field.name for field in fields(cls)], n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else "--help lists all settings"
        return UserError(f"unknown setting {key!r}: {hint}")
    forms = "a setting (--key=value) nor a preset (config/x.toml, before all settings)"
    hint = "; write nanoGPT's .py as TOML: x = false, not False" if word.endswith(".py") else ""
    return UserError(f"{word!r} is neither {forms}{hint}")


# All words after a --key. Their types are read later, because tyro draws its errors as boxes.
WORDS = PrimitiveConstructorSpec("*", "", list, lambda value: True, str)


def make_groups(cls, kinds, default, help):
    """Return a dataclass for tyro: the settings of cls in groups, one for each heading of the help.

    A setting that is not given is None, or () if it is a list.
    """
    groups = {}
    texts = read_help(cls) if help else dict.fromkeys(kinds, ("", ""))  # it takes a while
    for key, (heading, text) in texts.items():
        kind, empty = typing.Annotated[object, WORDS], None
        if is_list(kinds[key]):
            kind, empty = tuple[kind, ...], ()
        about = tyro.conf.arg(
            help=text,
            metavar=spec_of(kinds[key]).metavar + " ..." * is_list(kinds[key]),
            help_behavior_hint=f"(default: {getattr(default or cls, key, '')!r})",
        )
        groups.setdefault(heading, []).append((key, typing.Annotated[kind, about], empty))
    members = []
    for n, (heading, settings) in enumerate(groups.items()):
        group = make_dataclass(f"Group{n}", settings)
        kind = typing.Annotated[group, tyro.conf.arg(name=heading, help="")]
        members.append((f"group{n}", kind, field(default_factory=group)))
    return make_dataclass("Groups", members)


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


# ---- Types

NAMES = {"INT": "a whole number", "FLOAT": "a number", "STR": "text", "PATH": "a path"}


def is_list(kind):
    return typing.get_origin(kind) is tuple


@functools.cache
def spec_of(kind):
    """Return how tyro reads a type; of a list, how it reads an item."""
    kind = typing.get_args(kind)[0] if is_list(kind) else kind
    return ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, set()))


def read_type(name, kind, values, strict=False):
    """Return the words of a command line, or the values of a file, as a type.

    strict: "3" is text and not a number. UserError for another type than kind, with this name.
    """
    if is_list(kind):
        kind = typing.get_args(kind)[0]
        return tuple(read_type(name, kind, [value], strict) for value in values)
    spec = spec_of(kind)
    words = [str(value) for value in values]
    if bool in (kind, *typing.get_args(kind)):
        words = [{"true": "True", "false": "False"}.get(word, word) for word in words] or ["True"]
    if words and (not spec.choices or words[0] in spec.choices):
        with contextlib.suppress(ValueError):
            result = spec.instance_from_str(words)
            if not strict or isinstance(result, str | Path) == isinstance(values[0], str):
                return result
    known = [NAMES.get(x, x or "empty") for x in re.split(r"[{},|]+", spec.metavar.strip("{}"))]
    wrong = f"={values[0]!r} is not" if values else " needs"
    raise UserError(f"{name}{wrong} {' or '.join(known)}")
