"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is ever executed or unpickled.

The dataclass is the only list of settings: its fields are the keys, their annotations the types, the docstrings below
them the help. Bad input is one line that names the key and the closest known one, and exit code 2.
"""

import contextlib
import difflib
import io
import itertools
import os
import re
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import tyro

from engine.common.files import shell_quote


def parse_settings(cls, argv, base=None):
    """An instance of dataclass cls from a command line: [x.toml ...] [--key=value ...]; presets come first, later ones win.

    base: an instance whose values replace the defaults. ValueError in one line for an unknown key, a wrong type or an
    impossible value. --help prints every setting and exits.
    """
    names = [field.name for field in fields(cls)]
    flags = argv[len(leading_presets(argv)) :]
    switches = {f"--{field.name}" for field in fields(cls) if field.type in (bool, "bool")}
    for n, arg in enumerate(flags):  # --json is --json=True
        if arg in switches and (n + 1 == len(flags) or flags[n + 1].startswith("--")):
            flags[n] = f"{arg}=True"
    from_presets, origin = {}, {}
    for preset in leading_presets(argv):
        found = read_preset(preset, names)
        for key, value in found.items():
            if key in from_presets and from_presets[key] != value:
                print(
                    f"note: {preset} changes {key} of {origin[key]} from {from_presets[key]} to {value}",
                    file=sys.stderr,
                )
        from_presets |= found
        origin |= dict.fromkeys(found, preset)
    preset_flags = [f"--{key}={value}" for key, value in from_presets.items()]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            config, unknown = tyro.cli(
                cls,
                args=preset_flags + flags,
                default=base,
                prog=Path(sys.argv[0]).name,
                return_unknown_args=True,
                config=(tyro.conf.FlagConversionOff,),
                use_underscores=True,
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        # tyro's message as one line: what stands between its title and the next rule, in a box or, without UTF-8, in none
        lines = [line.strip("│ ") for line in errors.getvalue().splitlines()][1:]
        after = itertools.dropwhile(lambda line: not line.strip("─-"), lines)
        lines = itertools.takewhile(lambda line: line.strip("─-"), after)
        message = re.sub(r"\s+", " ", " ".join(lines)).removeprefix(
            f"Error parsing {cls.__name__}: "
        )
        message = re.sub(
            r"no type matching (.*?) could be instantiated from \['(.*?)'\]\.?",
            in_plain_words,
            message,
        )
        where = [
            f"{preset}: " for key, preset in origin.items() if re.search(rf"--{key}\b", message)
        ]
        raise ValueError("".join(where[:1]) + message) from None
    if not unknown:
        return config
    if not unknown[0].startswith("--"):
        what = (
            "is neither a setting (--key=value) nor a preset (config/x.toml, before all settings)"
        )
        if Path(unknown[0]).is_dir() and "out_dir" in names:
            what += f"; a folder is given as --out_dir={shell_quote(unknown[0])}"
        globbed = any("glob" in arg for arg in flags) and Path(unknown[0]).exists()
        pattern = (
            '; a pattern, as "*.py", needs quotes, or the shell replaces it' if globbed else ""
        )
        raise ValueError(f"{unknown[0]!r} {what}{pattern}")
    if unknown[0].endswith(".toml"):
        raise ValueError(
            f"{unknown[0]}: a preset has no dashes and stands before all settings: {unknown[0].lstrip('-')}"
        )
    raise ValueError(
        unknown_key(unknown[0][2:].split("=")[0].replace("-", "_"), names, "the command line")
    )


def in_plain_words(match):
    """tyro's words for a value that has none of several types."""
    types = (
        match[1]
        .replace("{", "")
        .replace("}", "")
        .replace("INT", "a whole number")
        .replace("FLOAT", "a number")
    )
    return f"{match[2]!r} is not {types.replace('|', ' or ')}"


def leading_presets(argv):
    """The presets at the beginning of a command line."""
    return list(
        itertools.takewhile(lambda arg: arg.endswith(".toml") and not arg.startswith("-"), argv)
    )


def peek_setting(argv, key, default):
    """The value that a command line gives one setting, before the others are read, which may depend on it."""
    for preset in leading_presets(argv):
        default = read_preset(preset).get(key, default)
    for arg, following in itertools.zip_longest(argv, argv[1:]):
        name, equals, value = arg.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") == key:
            default = value if equals else following
            if not default or not equals and default.startswith("--"):
                raise ValueError(f"--{key} has no value: write it as --{key}=...")
    return default


def read_preset(path, names=None, followed=()):
    """The settings in a flat TOML file, over those of the preset that it names as its base.

    ValueError for anything else, and for a setting that is not in names, if they are given.
    """
    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = sorted(
            os.path.relpath(preset)
            for preset in (Path(__file__).parents[2] / "config").glob("*.toml")
        )
        meant = [preset for preset in known if Path(preset).name == Path(path).name]
        hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(known)}"
        raise ValueError(f"there is no preset {path}: {hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    base = settings.pop("base", None)
    if not isinstance(base, str | None):
        raise ValueError(
            f'{path}: base = {base!r} must be the name of a preset, such as "minute.toml"'
        )
    for key, value in settings.items():
        if names is not None and key not in names:
            raise ValueError(unknown_key(key, names, path))
        if not isinstance(value, str | int | float):
            raise ValueError(f"{path}: {key} = {value!r} must be a number, a string, true or false")
    if base is None:
        return settings
    if (path := Path(path).resolve()) in followed:
        raise ValueError(f"{path}: base = {base!r} leads back to itself")
    return read_preset(path.parent / base, names, (*followed, path)) | settings


def unknown_key(key, names, where):
    nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]}?" if nearest else "--help lists all settings"
    return f"unknown setting {key!r} in {where}: {hint}"
