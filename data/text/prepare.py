"""Your own text, in any language: files and folders, also .jsonl, .csv and .parquet.

    python data/text/prepare.py --input FILE_OR_FOLDER ... --name mine
                                [--tokenizer char|byte|gpt2|bpe:8192]
    python train.py --dataset=mine

A folder means all text files in it, at any depth, except hidden ones. Files in it that are not
UTF-8 text are left out and named. For a git repository: --input $(git ls-files "*.py"). About a
tenth of the characters is for validation: whole files if there are many, else the end of each; or
the files that --val names. Files that end in .gz are uncompressed.

Tables (.jsonl, .csv, .parquet) have one document in each row. They and texts of 256 MB or more may
be of any size, and a long text is cut into documents. A hash of each document decides whether it is
for validation. Parquet files need pip install -e ".[data]".
"""

import collections
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import prepare
from engine.errors import UserError, one_line_errors
from engine.files import shell_path
from engine.settings import parse_settings

SHOWN = 10  # files that are left out


@dataclass
class Settings:
    input: tuple[Path, ...] = ()
    """Files or folders to read, one or more."""
    val: tuple[Path, ...] = ()
    """Files or folders for validation, if you have your own split."""
    name: str = "mine"
    """The dataset's name: it is written to data/<name>."""
    tokenizer: str = "char"
    """char (the text's own characters), byte (256, any text), bpe:VOCAB (learned from the text),
    gpt2 or another of tiktoken, or the folder of a model (to tune it).
    """
    column: str = ""
    """Column or key that holds the text of tables; if not given, text."""
    encoding: str = ""
    """Text encoding, such as cp1252; a byte-order mark takes precedence. If not given, utf-8."""

    def __post_init__(self):
        if not self.input or Path() in self.input:
            raise UserError("--input is missing: which file or folder holds your text?")
        prepare.check_exists(*self.input, *self.val)
        prepare.check_name(self.name)


def files_in(path):
    """Return a file, or the files in a folder, at any depth, but hidden ones and links."""
    if not path.is_dir():
        return [path]
    return [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file()
        and not file.is_symlink()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]


def find_texts(inputs, encoding):
    """Return {resolved path: path} of the files of text in inputs, in order, and {path: why not}.

    In folders, files that are not text are left out. UserError if there is no text.
    """
    found = {}
    left_out = {}
    for path in inputs:
        for file in files_in(path):
            try:
                if file != path and not prepare.kind_of(file):
                    collections.deque(prepare.read_sections(file, encoding, 2**20), maxlen=0)
                if not file.stat().st_size:
                    raise UserError(f"{file} is empty")
                found[file.resolve()] = file
            except ValueError as error:
                left_out[str(file)] = str(error)
    for reason in [*left_out.values()][:SHOWN]:
        print(f"left out: {reason}")
    if len(left_out) > SHOWN:
        print(f"left out: {len(left_out) - SHOWN} more")
    if inputs and not found:
        raise UserError(f"found no text in {', '.join(map(str, inputs))}")
    return found, left_out


def main(settings):
    """Write the dataset."""
    folder = prepare.DATA / settings.name
    source = ", ".join(path.name or str(path) for path in settings.input)
    encoding = settings.encoding or "utf-8"
    found, left_out = find_texts(settings.input, encoding)
    val, more = find_texts(settings.val, encoding)
    # Files for validation are not trained on if they lie in the same folder.
    train = [path for resolved, path in found.items() if resolved not in val]
    val = [*val.values()]

    files = [*train, *val]
    kinds = {*map(prepare.kind_of, files)}
    if settings.column and kinds == {""}:
        raise UserError(
            f"--column={settings.column}: only tables have columns ({', '.join(prepare.TABLES)})"
        )
    if settings.encoding and not kinds & {"", ".csv"}:
        raise UserError(f"--encoding={settings.encoding}: it is for texts and .csv; leave it out")
    about = {"files": [*map(str, files)], "left_out": left_out | more}
    small = sum(path.stat().st_size for path in files) < prepare.SMALL
    if small and kinds == {""}:
        texts, val_texts = (
            [prepare.read_text(path, encoding) for path in paths] for paths in (train, val)
        )
        return prepare.write_dataset(folder, texts, settings.tokenizer, source, val_texts, **about)
    val_share = 0 if val else 0.1 if small else prepare.VAL_SHARE

    def read():
        for paths, share in (train, val_share), (val, 1):
            for text in prepare.read_files(paths, settings.column or "text", encoding):
                yield share, text

    prepare.write_large_dataset(folder, read, settings.tokenizer, source, **about)


if __name__ == "__main__":
    with one_line_errors():
        settings = parse_settings(Settings, sys.argv[1:])
        main(settings)
        print(f'next: python {shell_path("train.py")} --dataset="{settings.name}"')
