"""Your own text, in any language: files, folders, a repository; also .jsonl, .jsonl.gz, .jsonl.zst and .parquet.

    python data/text/prepare.py --input FILE_OR_FOLDER ... --name mine [--glob "*.py"] [--tokenizer char|byte|gpt2|bpe:8192]
    python train.py --dataset=mine

A folder means all text files in it, at any depth, but hidden ones; in a git repository, those that git does not ignore.
What is not UTF-8 text in it is left out and named. About a tenth of the characters, spread over the text, is for
validation, unless --val names files for it.

Files of many documents, and texts of 256 MB or more, are read by Hugging Face's library datasets (pip install
datasets==5.2.0): they may be of any size. A hash of each document decides whether it is for validation; a long text is
cut into documents.
"""

import fnmatch
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import escape_control_characters, one_line_errors
from engine.common.settings import parse_settings
from engine.text import large, preparation


@dataclass
class Settings:
    input: tuple[Path, ...] = ()
    """Files or folders to read, one or more."""
    val: tuple[Path, ...] = ()
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
    """Of texts that the library datasets reads: the share of the documents for validation; 0: a tenth, or 0.005 if all files
    have 256 MB or more."""

    def __post_init__(self):
        if not self.input:
            raise ValueError("--input is missing: which file or folder holds your text?")
        plain = self.name == Path(self.name).name and not self.name.startswith((".", "-"))
        if not self.name or not plain:
            raise ValueError(
                f"--name={self.name}: it must be a folder's name, without / and a leading . or -"
            )
        if (preparation.DATA / self.name / "prepare.py").exists():
            raise ValueError(
                f"--name={self.name} is one of the included datasets: choose another name"
            )
        if self.val_share:
            large.check_val_share(self.val_share)


def files_in(folder):
    """Return the files in a folder, as relative paths: those that git does not ignore; without git, all but hidden ones."""
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
    listed = []
    if any((parent / ".git").exists() for parent in (folder.resolve(), *folder.resolve().parents)):
        result = subprocess.run(command, capture_output=True)
        listed = os.fsdecode(result.stdout).split("\0")[:-1]
        if result.returncode:
            reason = os.fsdecode(result.stderr).strip().splitlines()[0]
            print(f"note: git does not say what it ignores in {folder}, so all is read: {reason}")
    if not listed:
        for where, _, names in os.walk(folder, onerror=raise_error):
            listed += [os.path.relpath(os.path.join(where, name), folder) for name in names]
    paths = sorted(map(Path, listed))
    hidden = [path for path in paths if any(part.startswith(".") for part in path.parts)]
    return [path for path in paths if path not in hidden and (folder / path).is_file()]


def raise_error(error):
    raise error


def find_texts(inputs, flag, glob, known):
    """Return all files in inputs that are text or records, without those in known, a set that receives them.

    ValueError if there is none, and for a file named by the user that is not text; others are skipped, and named.
    """
    found = []
    left_out = []
    for path in inputs:
        if not path.exists():
            raise ValueError(f"{flag}: there is no file or folder {path}")
        names = files_in(path) if path.is_dir() else [Path()]
        for name in names:
            matches = fnmatch.fnmatch(name.name, glob) or fnmatch.fnmatch(str(name), glob)
            if path.is_dir() and not matches or (path / name).resolve() in known:
                continue
            known.add((path / name).resolve())
            try:
                large.check_text(path / name)
                found.append(path / name)
            except ValueError:
                if not path.is_dir():
                    raise
                left_out.append(name.name)
    if left_out:
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        names = ", ".join(left_out[:5])
        line = f"skipped {len(left_out)} that are not UTF-8 text: {names}{more}"
        print(escape_control_characters(line))
    if inputs and not found:
        raise ValueError(
            f"{flag}: found no text" + f" that matches --glob={glob!r}" * (glob != "*")
        )
    return found


def prepare(settings):
    folder = preparation.DATA / settings.name
    source = ", ".join(path.name or str(path) for path in settings.input)
    known = set()
    # Files for validation first, so that they are not trained on if they lie in the same folder.
    val = find_texts(settings.val, "--val", settings.glob, known)
    train = find_texts(settings.input, "--input", settings.glob, known)
    files = [*train, *val]

    small = sum(path.stat().st_size for path in files) < preparation.SMALL
    if small and not any(map(large.builder_of, files)):
        train_texts = map(preparation.read_text, train)
        val_texts = map(preparation.read_text, val)
        preparation.write_dataset(folder, train_texts, settings.tokenizer, source, val_texts)
        return
    val_share = settings.val_share or (0.1 if small else 0.005)
    rows = large.read_files(train, settings.column)
    val_rows = large.read_files(val, settings.column) if val else None
    large.write_large_dataset(folder, rows, settings.tokenizer, source, val_share, val_rows)


if __name__ == "__main__":
    with one_line_errors():
        for flag in "--input", "--val":
            if sum(argument.partition("=")[0] == flag for argument in sys.argv) > 1:
                raise ValueError(f"{flag}: give it once, and after it all files and folders")
        prepare(parse_settings(Settings, sys.argv[1:]))
