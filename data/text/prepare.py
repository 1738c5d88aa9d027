"""Your own text, in any language: files, folders, a repository; also .jsonl, .jsonl.gz, .jsonl.zst
and .parquet.

    python data/text/prepare.py --input FILE_OR_FOLDER ... --name mine [--glob "*.py"]
                                [--tokenizer char|byte|gpt2|bpe:8192]
    python train.py --dataset=mine

A folder means all text files in it, at any depth, but hidden ones; in a git repository, those that
git does not ignore. What is not UTF-8 text in it is left out and named. About a tenth of the
characters, spread over the text, is for validation, unless --val names files for it.

Files of many documents, and texts of 256 MB or more, are read by Hugging Face's library datasets
(pip install datasets==5.2.0): they may be of any size. A hash of each document decides whether it
is for validation; a long text is cut into documents.
"""

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
    """Of a folder, only files whose name or path matches this pattern: *.py or docs/*.md."""
    name: str = "mine"
    """The dataset's name: it is written to data/<name>."""
    tokenizer: str = "char"
    """char (the text's own characters), byte (256, any text), bpe:VOCAB (learned from the text),
    gpt2 or another of tiktoken, or the folder of a model (to tune it).
    """
    column: str = "text"
    """The column or key that holds the text, in parquet and jsonl files."""
    val_share: float = 0.0
    """Of texts that the library datasets reads: the share of the documents for validation.

    0: a tenth, or 0.005 if all files have 256 MB or more.
    """

    def __post_init__(self):
        if not self.input:
            raise ValueError("--input is missing: which file or folder holds your text?")
        if self.name != Path(self.name).name or self.name[:1] in ("", ".", "-"):
            raise ValueError(
                f"--name={self.name} must be a folder's name, without a leading . or -"
            )
        if (preparation.DATA / self.name / "prepare.py").exists():
            raise ValueError(f"--name={self.name} is one of the included datasets: choose another")


def files_in(folder):
    """Return the files in a folder that are not hidden, nor ignored by git, as relative paths."""
    names = []
    if any((parent / ".git").exists() for parent in (folder.resolve(), *folder.resolve().parents)):
        flags = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        result = subprocess.run(["git", "-C", folder, *flags], capture_output=True)
        if result.returncode:
            reason = os.fsdecode(result.stderr).strip().splitlines()[0]
            raise ValueError(f"git does not say what it ignores in {folder}: {reason}")
        names = os.fsdecode(result.stdout).split("\0")[:-1]
    if not names:
        for where, _, files in os.walk(folder, onerror=raise_error):
            names += [os.path.relpath(os.path.join(where, file), folder) for file in files]
    return sorted(Path(name) for name in names if not name.startswith(".") and "/." not in name)


def raise_error(error):
    raise error


def is_text(path):
    """Return whether a file has many documents, or begins with UTF-8 text."""
    if large.builder_of(path):
        return True
    with open(path, "rb") as file:
        beginning = file.read(2**18) + file.readline()
    try:
        return "\0" not in beginning.decode("utf-8")  # zeros, as in UTF-16
    except UnicodeDecodeError:
        return False


def find_texts(inputs, flag, glob, known):
    """Return the files of text in inputs, files or folders, that are not in known, a growing set.

    ValueError if there is none, and for a file named by the user that is not text; in folders they
    are skipped.
    """
    found = []
    skipped = []
    for path in inputs:
        if not path.exists():
            raise ValueError(f"{flag}: there is no file or folder {path}")
        names = [name for name in files_in(path) if name.match(glob)] if path.is_dir() else [""]
        for file in (path / name for name in names):
            if file.resolve() in known or not file.is_file():
                continue
            known.add(file.resolve())
            if is_text(file):
                found.append(file)
            elif path.is_dir():
                skipped.append(file.name)
            else:
                raise ValueError(f"{flag}: {file} is not UTF-8 text: convert it first")
    if skipped:
        names = escape_control_characters(", ".join(skipped[:5]))
        print(f"skipped {len(skipped)} that are not UTF-8 text, such as {names}")
    if inputs and not found:
        raise ValueError(f"{flag}: found no text (--glob={glob!r})")
    return found


def prepare(settings):
    """Write the dataset."""
    folder = preparation.DATA / settings.name
    source = ", ".join(path.name or str(path) for path in settings.input)
    known = set()
    # Files for validation first: they are not trained on if they lie in the same folder.
    val = find_texts(settings.val, "--val", settings.glob, known)
    train = find_texts(settings.input, "--input", settings.glob, known)

    files = [*train, *val]
    small = sum(path.stat().st_size for path in files) < preparation.SMALL
    if small and not any(map(large.builder_of, files)):
        train_texts = map(preparation.read_text, train)
        val_texts = map(preparation.read_text, val)
        preparation.write_dataset(folder, train_texts, settings.tokenizer, source, val_texts)
        return
    rows = large.read_files(train, settings.column)
    val_rows = large.read_files(val, settings.column) if val else None
    val_share = settings.val_share or (0.1 if small else 0.005)
    large.write_large_dataset(folder, rows, settings.tokenizer, source, val_share, val_rows)


if __name__ == "__main__":
    with one_line_errors():
        prepare(parse_settings(Settings, sys.argv[1:]))
