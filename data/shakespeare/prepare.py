"""Tiny Shakespeare in GPT-2's tokens, as nanoGPT prepares it: 301,966 to train, 36,059 to validate.

python data/shakespeare/prepare.py

If input.txt is next to this file, nothing is downloaded.
"""

import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.errors import UserError, library_errors, one_line_errors
from engine.files import atomic_write, sha256_of
from engine.prepare import read_text, write_dataset

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def prepare(folder, tokenizer_name):
    """Prepare input.txt. Its last tenth is for validation, as in nanoGPT."""
    path = folder / "input.txt"
    download(URL, SHA256, path)
    text = read_text(path)
    end = int(len(text) * 0.9)
    write_dataset(folder, [text[:end]], tokenizer_name, path.name, val=[text[end:]])


def download(url, sha256, path):
    """Download url to path, if it is not there.

    UserError if that fails or the file has another sha256.
    """
    if path.exists():
        return
    remedy = f": get the file another way, as {path}"
    print(f"downloading {url}")
    with (
        library_errors(f"cannot download {url}", remedy),
        urllib.request.urlopen(url, timeout=30) as response,
    ):
        content = response.read()
    if sha256_of([content]) != sha256:
        raise UserError(f"{url} is not the expected file (its sha256 differs){remedy}")
    atomic_write(path, content)


if __name__ == "__main__":
    with one_line_errors():
        prepare(Path(__file__).parent, "gpt2")
