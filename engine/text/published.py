"""Texts that others have published: one file on the web, or a dataset of Hugging Face's hub, read while it is downloaded."""

import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from engine.common.files import atomic_write, sha256_of, shell_path
from engine.common.settings import parse_settings
from engine.text.documents import Part, read_text
from engine.text.preparation import write_dataset
from engine.text.streams import write_stream


def download(url, sha256, path):
    """The file at url, kept at path; ValueError if it cannot be downloaded or has another sha256."""
    if not path.exists():
        remedy = f"get the file another way, then python {shell_path(path.parent / 'prepare.py')} --input FILE"
        print(f"downloading {url}")
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                content = response.read()
        except OSError as error:
            raise ValueError(
                f"cannot download {url} ({getattr(error, 'reason', error)}): {remedy}"
            ) from None
        if sha256_of([content]) != sha256:
            raise ValueError(f"{url} is not the expected file (its sha256 differs): {remedy}")
        atomic_write(path, content)
    return path


@dataclass
class DownloadSettings:
    input: Path | None = None
    """The text, if you have it already; otherwise it is downloaded, and its sha256 is checked."""


def prepare_download(folder, tokenizer_name, url, sha256):
    """The whole of a prepare.py for a text that is one file on the web: [--input FILE]. The last tenth is for validation."""
    path = parse_settings(DownloadSettings, sys.argv[1:]).input or download(
        url, sha256, folder / "input.txt"
    )
    text = read_text(path)
    end = int(len(text) * 0.9)  # as nanoGPT cuts it
    write_dataset(folder, [text[:end]], tokenizer_name, path.name, val=[text[end:]])


class HubPart:
    """The train split of a dataset on the hub, with the interface of documents.Part. config: which of its variants, if any."""

    size, split, unit = None, None, "text"

    def __init__(self, name, config=None, column="text"):
        self.path, self.config, self.column = name, config, column
        self.key = [name, config, column]

    def read(self, start=0):
        """(text, how many so far) from number start on."""
        try:
            import datasets
        except ImportError:
            raise ValueError(
                f"{self.path} needs the library datasets: pip install datasets"
            ) from None
        try:
            rows = datasets.load_dataset(self.path, self.config, split="train", streaming=True)
            for number, row in enumerate(rows.skip(start), start + 1):
                yield row[self.column] or "", number
        except KeyError:
            raise ValueError(f"{self.path} has no column {self.column!r}") from None
        except Exception as error:  # each library below it has its own
            reason = str(error).strip().splitlines()[:1] or [""]
            raise ValueError(
                f"cannot read {self.path} from Hugging Face ({type(error).__name__}: {reason[0][:100]}): connect "
                "to the internet, or get its parquet files another way and give them as --input FILES"
            ) from None


@dataclass
class HubSettings:
    input: tuple[Path, ...] = ()
    """Its parquet or jsonl files, or folders of them, if you have them already; otherwise it is downloaded as it is read."""
    tokens: int = 0
    """Stop after so many tokens; 0: all of it."""
    tokenizer: str = "gpt2"
    """gpt2 or another of tiktoken, bpe:VOCAB (learned from the text), char, byte, or the folder of a model."""
    val_share: float = 0.005
    """The share of the documents that is for validation, chosen by a hash of each."""
    skip_damaged: bool = False
    """Leave out the rest of a damaged file, and say so at the end."""

    def __post_init__(self):
        if self.tokens < 0 or not 0 < self.val_share < 1:
            raise ValueError(
                f"tokens={self.tokens} must be 0 or more, and val_share={self.val_share} between 0 and 1"
            )


def prepare_hub(folder, name, config=None, column="text"):
    """The whole of a prepare.py for a dataset on the hub: [--input FILES] [--tokens=N] ... An interrupted one can go on."""
    settings = parse_settings(HubSettings, sys.argv[1:])
    for path in settings.input:
        if not path.exists():
            raise ValueError(f"--input: there is no file or folder {path}")
    files = [
        file
        for path in settings.input
        for file in (sorted(path.rglob("*.parquet")) if path.is_dir() else [path])
    ]
    if settings.input and not files:
        raise ValueError(f"--input: found no parquet file in {settings.input[0]}")
    parts = [Part(file, column) for file in files] or [HubPart(name, config, column)]
    write_stream(
        folder,
        parts,
        settings.tokenizer,
        name,
        settings.val_share,
        settings.tokens,
        settings.skip_damaged,
    )
