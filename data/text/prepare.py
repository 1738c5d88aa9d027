"""Your own text, in any language: files, folders, a repository; also .jsonl, .jsonl.gz, .jsonl.zst and .parquet.

    python data/text/prepare.py --input FILE_OR_FOLDER ... --name mine [--glob "*.py"] [--tokenizer char|byte|gpt2|bpe:8192]
    python train.py --dataset=mine

A folder means all text files in it, at any depth, but hidden ones; in a git repository, those that git does not ignore.
Links in it, and what is not UTF-8 text, are left out and named. About a tenth of the characters, spread over the text,
is for validation, unless --val names files for it.

Files of many documents, and texts of 256 MB or more, are read as a stream: they may be of any size, and if that is interrupted,
the same command goes on. A hash of each document decides whether it is for validation; a long text is cut into documents.
"""

import contextlib
import fnmatch
import itertools
import os
import signal
import subprocess
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C while modules are imported ends without a traceback
sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import escape_control_characters, one_line_errors
from engine.common.settings import parse_settings
from engine.text import documents, preparation, streams


@dataclass
class Settings:
    input: tuple[Path, ...] = ()
    """Files or folders to read, one or more."""
    val: tuple[Path, ...] | None = None
    """Files or folders for validation, if you have your own split."""
    glob: str = "*"
    """Of a folder, only files whose name or path in it matches this pattern, such as *.py or docs/*.md."""
    name: str = "mine"
    """The dataset's name: it is written to data/<name>."""
    tokenizer: str = "char"
    """char (the text's own characters), byte (256, any text), bpe:VOCAB (learned from the text), gpt2 or another of tiktoken,
    or the folder of a model (to tune it)."""
    column: str = "text"
    """The column or key that holds the text, in parquet and jsonl files."""
    val_share: float = 0.0
    """Of a stream: the share of the documents that is for validation; 0: 0.005, or 0.1 if all files have less than 256 MB."""
    skip_damaged: bool = False
    """Of a stream: leave out the rest of a damaged file, and say so at the end."""

    def __post_init__(self):
        if not 0 <= self.val_share < 1:
            raise ValueError(f"val_share={self.val_share} must be at least 0 and below 1")


def files_in(folder):
    """The files in a folder, and links, as relative paths: what git tracks or does not ignore; else what is not hidden."""
    listed = None
    if any(
        os.path.exists(parent / ".git") for parent in (folder.resolve(), *folder.resolve().parents)
    ):
        command = [
            "git",
            "-C",
            str(folder),
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        with contextlib.suppress(FileNotFoundError):  # git is not installed
            result = subprocess.run(command, capture_output=True)
            if result.returncode:
                reason = os.fsdecode(result.stderr).strip().splitlines()[:1] or [""]
                print(
                    f"note: git does not say what it ignores in {folder}, so all is read: {reason[0]}",
                    file=sys.stderr,
                )
            else:
                print(
                    os.fsdecode(result.stderr), end="", file=sys.stderr
                )  # as of folders that may not be read
                listed = {Path(name) for name in os.fsdecode(result.stdout).split("\0")} - {Path()}
                repositories = [
                    path
                    for path in listed
                    if (folder / path).is_dir() and not (folder / path).is_symlink()
                ]
                for inner in repositories:  # nested in this one
                    listed |= {inner / path for path in files_in(folder / inner)}
    walk = os.walk(folder, onerror=raise_error)
    found = listed or {
        Path(where, name).relative_to(folder)
        for where, *names in walk
        for name in itertools.chain(*names)
    }
    visible = (path for path in found if not any(part.startswith(".") for part in path.parts))
    return sorted(
        path for path in visible if (folder / path).is_file() or (folder / path).is_symlink()
    )


def raise_error(error):
    raise error


def find(inputs, flag, glob, known):
    """All files, as {path: whether it was found in a folder}; known: files that are left out, to which these are added."""
    files, again, links = {}, [], []
    for path in inputs:
        if not path.exists():
            raise ValueError(f"{flag}: there is no file or folder {path}")
        for file in files_in(path) if path.is_dir() else [Path()]:
            if path.is_dir() and not (
                fnmatch.fnmatch(file.name, glob) or fnmatch.fnmatch(str(file), glob)
            ):
                continue
            if path.is_dir() and (path / file).is_symlink():
                links.append(file)
            elif (whole := (path / file).resolve()) in known:
                again.append(path / file)
            else:
                known.add(whole)
                files[path / file] = path.is_dir()
    say("left out {} that were read before", again)
    say("left out {} that are links", links)
    return files


def say(words, files):
    """Name files that are not read, if there are any."""
    if files:
        more = f" and {len(files) - 5} more" if len(files) > 5 else ""
        names = ", ".join(map(str, files[:5]))
        print(escape_control_characters(f"{words.format(len(files))}: {names}{more}"))


def texts(files, read):
    """{path: read(path)} of what is text; a file in a folder that is not is skipped, and named in the end."""
    found, skipped = {}, []
    for path, in_folder in files.items():
        try:
            found[path] = read(path)
        except ValueError:
            if not in_folder:
                raise
            skipped.append(path.name)
    say("skipped {} that are not UTF-8 text", skipped)
    return {path: text for path, text in found.items() if text}


def beginning(path):
    """What a file begins with, as a sign that it is text all through."""
    return (
        "records"
        if documents.has_records(path)
        else next(documents.sections(path, None, 0), ("",))[0]
    )


def prepare(settings):
    if not settings.input:
        raise ValueError("--input is missing: which file or folder holds your text?")
    folder = preparation.DATA / settings.name
    plain = all(
        character in "_.-" or unicodedata.category(character)[0] in "LMN"
        for character in settings.name
    )
    if not plain or settings.name[:1] in ("", ".", "-"):
        raise ValueError(
            f"--name={settings.name}: use letters, digits, _, - and . only, and begin with neither - nor ."
        )
    if (folder / "prepare.py").exists():
        raise ValueError(
            f"--name={settings.name} is one of the included datasets: choose another name"
        )
    known = set()
    val = find(
        settings.val or (), "--val", settings.glob, known
    )  # first, so that its files are not trained on
    train = find(settings.input, "--input", settings.glob, known)
    size = sum(path.stat().st_size for path in [*val, *train])
    streamed = size >= preparation.SMALL or any(map(documents.has_records, [*val, *train]))
    val, train = (
        texts(files, beginning if streamed else documents.read_text) for files in (val, train)
    )
    source = ", ".join(path.name or str(path) for path in settings.input)
    if not train or settings.val is not None and not val:
        flag = "--val" if train else "--input"
        where = "" if settings.glob == "*" else f" in files that match --glob={settings.glob!r}"
        raise ValueError(f"{flag}: found no text{where}")
    if streamed:
        parts = [documents.Part(path, settings.column, "val") for path in val]
        parts += [documents.Part(path, settings.column, "train" if val else None) for path in train]
        share = settings.val_share or (0.1 if size < preparation.SMALL else 0.005)
        streams.write_stream(
            folder, parts, settings.tokenizer, source, share, skip_damaged=settings.skip_damaged
        )
    else:
        preparation.write_dataset(
            folder, [*train.values()], settings.tokenizer, source, [*val.values()], [*train, *val]
        )


if __name__ == "__main__":
    with one_line_errors():
        for flag in "--input", "--val":
            given = [argument for argument in sys.argv if argument.partition("=")[0] == flag]
            if len(given) > 1:
                raise ValueError(f"{flag}: give it once, and after it all files and folders")
        for before, argument in zip(sys.argv, sys.argv[1:]):
            if argument in ("", "--input=", "--val="):
                raise ValueError(f"{argument or before}: the name of a file or folder is empty")
        for argument in sys.argv[1:2]:
            if not argument.startswith("-") and Path(argument).exists():
                raise ValueError(f"{argument}: write it as --input {argument}")
        prepare(parse_settings(Settings, sys.argv[1:]))
