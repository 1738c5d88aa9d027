"""Your own text, in any language: files, folders, a repository.

    python data/text/prepare.py --input FILE_OR_FOLDER ... --name mine [--glob "*.py"] [--tokenizer char|byte|gpt2]
    python train.py --dataset=mine

A folder means all text files in it, at any depth, but hidden ones; in a git repository, those that git does not ignore.
What is not UTF-8 text is skipped and named. About a tenth of the characters, spread over the text, is for validation,
unless --val names files for it.
"""

import contextlib
import fnmatch
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import configure, dataset


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
    """char (the text's own characters), byte (256, any text), gpt2 or another of tiktoken, or a run's folder (to tune it)."""


def files_in(folder):
    """The files in a folder, as relative paths: what git tracks or does not ignore, without links; else what is not hidden."""
    listed = None
    if any((parent / ".git").exists() for parent in (folder.resolve(), *folder.resolve().parents)):
        command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        with contextlib.suppress(FileNotFoundError):  # git is not installed
            result = subprocess.run(command, capture_output=True)
            if result.returncode == 0:
                listed = {Path(name) for name in os.fsdecode(result.stdout).split("\0")} - {Path()}
                listed = {path for path in listed if not (folder / path).is_symlink()}
                for inner in [path for path in listed if (folder / path).is_dir()]:  # a repository in the repository
                    listed |= {inner / path for path in files_in(folder / inner)}
    found = listed or {path.relative_to(folder) for path in folder.rglob("*")}
    visible = (path for path in found if not any(part.startswith(".") for part in path.parts))
    return sorted(path for path in visible if (folder / path).is_file())


def read(inputs, flag, glob):
    """The texts of all files; a file in a folder that is not text is skipped, and named in the end."""
    texts, skipped = [], []
    for path in inputs:
        if not path.exists():
            raise ValueError(f"{flag}: there is no file or folder {path}")
        if not path.is_dir():
            texts.append(dataset.read_text(path))
        for file in files_in(path) if path.is_dir() else ():
            if fnmatch.fnmatch(file.name, glob) or fnmatch.fnmatch(str(file), glob):
                content = (path / file).read_bytes()
                try:
                    text = content.decode("utf-8-sig")
                except UnicodeDecodeError:
                    text = None
                if text is None or "\0" in text:
                    skipped.append(str(file))
                elif text:
                    texts.append(text)
    if skipped:
        more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        print(configure.for_terminal(f"skipped {len(skipped)} that are not UTF-8 text: {', '.join(skipped[:5])}{more}"))
    return texts


def prepare(settings):
    if not settings.input:
        raise ValueError("--input is missing: which file or folder holds your text?")
    folder = dataset.DATA / settings.name
    if not re.fullmatch(r"\w[\w.-]*", settings.name) or (folder / "prepare.py").exists():
        raise ValueError(f"--name={settings.name}: choose a plain name that is not one of the datasets that come along")
    documents, val = read(settings.input, "--input", settings.glob), read(settings.val or (), "--val", settings.glob)
    source = ", ".join(path.name or str(path) for path in settings.input)
    if not any(documents) or settings.val is not None and not any(val):
        flag = "--val" if any(documents) else "--input"
        where = "" if settings.glob == "*" else f" in files that match --glob={settings.glob!r}"
        raise ValueError(f"{flag}: found no text{where}")
    dataset.write(folder, documents, settings.tokenizer, source, val=val)


if __name__ == "__main__":
    with configure.one_line_errors():
        for flag in "--input", "--val":
            given = [argument for argument in sys.argv if argument.partition("=")[0] == flag]
            if len(given) > 1 or f"{flag}=" in given:
                raise ValueError(f"{flag}: give it once, and after it all files and folders")
        for argument in sys.argv[1:2]:
            if not argument.startswith("-") and Path(argument).exists():
                raise ValueError(f"{argument}: write it as --input {argument}")
        prepare(configure.parse(Settings, sys.argv[1:]))
