"""Your own text, in any language: files and folders; also .jsonl, .jsonl.gz, .jsonl.zst and
.parquet.

    python data/text/prepare.py --input FILE_OR_FOLDER ... --name mine
                                [--tokenizer char|byte|gpt2|bpe:8192]
    python train.py --dataset=mine

A folder means all text files in it, at any depth, but hidden ones. What is not UTF-8 text in it is
left out and named. Of a git repository: --input $(git ls-files "*.py"). About a tenth of the
characters, taken from all parts of the text, is for validation, unless --val names files for it.

Files of many documents, and texts of 256 MB or more, may be of any size (compressed and parquet
files need pip install -e ".[data]"). A hash of each document decides whether it is for validation;
a long text is cut into documents.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from engine.text import preparation, sources


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
    column: str = "text"
    """The column or key that holds the text, in parquet and jsonl files."""

    def __post_init__(self):
        if not self.input or Path() in self.input:
            raise ValueError("--input is missing: which file or folder holds your text?")
        preparation.check_name(self.name)


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


def is_text(path):
    """Return whether a file has many documents, or begins with UTF-8 text."""
    if sources.kind_of(path):
        return True
    try:
        return "\0" not in next(sources.read_sections(path), "")  # zeros, as in UTF-16
    except ValueError:
        return False


def find_texts(inputs):
    """Return {resolved path: path} of the files of text in inputs, in order.

    In folders, files that are not text are skipped. ValueError if there is no text.
    """
    found = {}
    skipped = []
    for path in inputs:
        for file in files_in(path):
            if file != path and not is_text(file):
                skipped.append(file.name)
            elif file.stat().st_size:
                found[file.resolve()] = file
    if skipped:
        print(f"skipped {len(skipped)} that are not UTF-8 text, such as {skipped[0]!r}")
    if inputs and not found:
        raise ValueError(f"found no text in {', '.join(map(str, inputs))}")
    return found


def prepare(settings):
    """Write the dataset."""
    folder = preparation.DATA / settings.name
    source = ", ".join(path.name or str(path) for path in settings.input)
    found = find_texts(settings.input)
    val = find_texts(settings.val)
    # Files for validation are not trained on if they lie in the same folder.
    train = [path for resolved, path in found.items() if resolved not in val]
    val = [*val.values()]

    files = [*train, *val]
    small = sum(path.stat().st_size for path in files) < preparation.SMALL
    if small and not any(map(sources.kind_of, files)):
        train_texts = map(preparation.read_text, train)
        val_texts = map(preparation.read_text, val)
        preparation.write_dataset(folder, train_texts, settings.tokenizer, source, val_texts)
        return
    val_share = 0 if val else 0.1 if small else sources.VAL_SHARE

    def read():
        for paths, share in (train, val_share), (val, 1):
            for text in sources.read_files(paths, settings.column):
                yield share, text

    sources.write_large_dataset(folder, read, settings.tokenizer, source)


if __name__ == "__main__":
    with one_line_errors():
        prepare(parse_settings(Settings, sys.argv[1:]))
