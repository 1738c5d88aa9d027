"""OpenWebText in GPT-2's tokens: 8 million web pages, about 9 billion tokens, on which nanoGPT
trains GPT-2 (124M).

    python data/openwebtext/prepare.py [--tokens=N] [--tokenizer=gpt2|bpe:32768]

Downloaded by Hugging Face's library (pip install -e ".[data]"), whose cache keeps what is
complete: run the same command again after an interruption. --tokens reads only as much as it
needs, without the cache. A hash of each page decides whether it is for validation. If you have its
parquet files: data/text/prepare.py --input FILES.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.errors import one_line_errors
from engine.files import shell_path
from engine.prepare import VAL_SHARE, read_documents, read_rows, write_large_dataset
from engine.settings import parse_settings


@dataclass
class Settings:
    tokens: int = 0
    """Number of tokens to stop after, downloading no more than they need; 0: all of it."""
    tokenizer: str = "gpt2"
    """gpt2 or another of tiktoken, bpe:VOCAB (learned from the text), byte, or a model's folder."""


def prepare(folder, name, config=None):
    """Prepare a dataset on the hub, or its variant config, with the command line's settings."""
    settings = parse_settings(Settings, sys.argv[1:])
    script = shell_path("data/text/prepare.py")
    remedy = f": connect to the internet, or get its files another way and use {script}"

    def read():
        streaming = settings.tokens > 0  # keeps no files
        rows = read_rows(name, name, config, streaming=streaming, remedy=remedy)
        return ((VAL_SHARE, text) for text in read_documents(rows))

    write_large_dataset(folder, read, settings.tokenizer, name, settings.tokens)


if __name__ == "__main__":
    with one_line_errors():
        prepare(Path(__file__).parent, "Skylion007/openwebtext")
