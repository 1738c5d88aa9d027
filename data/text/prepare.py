"""Your own text, in any language.

    python data/text/prepare.py --input FILE_OR_FOLDER ... --name mine [--tokenizer char|byte|gpt2]
    python train.py --dataset=mine

Files must be UTF-8. A folder means all files in it, at any depth, but hidden ones. With ten files or more, every tenth
is for validation; with fewer, the last tenth of the text.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import configure, dataset


@dataclass
class Settings:
    input: tuple[Path, ...] = ()
    """Files or folders to read, one or more."""
    name: str = "mine"
    """The dataset's name: it is written to data/<name>."""
    tokenizer: str = "char"
    """char (a vocabulary of the text's own characters), byte (256, any text), gpt2 or another encoding of tiktoken."""


def files(inputs):
    for path in inputs:
        if path.is_dir():
            inside = [file for file in path.rglob("*") if file.is_file()]
            yield from sorted(f for f in inside if not any(p.startswith(".") for p in f.relative_to(path).parts))
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"--input: there is no file or folder {path}")


def prepare(settings):
    if not settings.input:
        raise ValueError("--input is missing: which file or folder holds your text?")
    folder = dataset.DATA / settings.name
    if folder.parent != dataset.DATA or (folder / "prepare.py").exists():
        raise ValueError(f"--name={settings.name}: choose a plain name that is not one of the datasets that come along")
    documents = [dataset.read_text(path) for path in files(settings.input)]
    dataset.write(folder, documents, settings.tokenizer, ", ".join(path.name for path in settings.input))


if __name__ == "__main__":
    with configure.one_line_errors():
        prepare(configure.parse(Settings, sys.argv[1:]))
