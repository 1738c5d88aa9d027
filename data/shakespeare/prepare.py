"""Tiny Shakespeare in GPT-2's tokens, as nanoGPT prepares it: 301,966 to train, 36,059 to validate.

python data/shakespeare/prepare.py

A file input.txt beside it is not downloaded.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.errors import one_line_errors
from engine.prepare import download, read_text, write_dataset

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def prepare(folder, tokenizer_name):
    """Prepare input.txt. Its last tenth is for validation, as in nanoGPT."""
    path = folder / "input.txt"
    download(URL, SHA256, path)
    text = read_text(path)
    end = int(len(text) * 0.9)
    write_dataset(folder, [text[:end]], tokenizer_name, path.name, val=[text[end:]])


if __name__ == "__main__":
    with one_line_errors():
        prepare(Path(__file__).parent, "gpt2")
