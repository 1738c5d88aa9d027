"""The whole of a prepare.py for a published text: tiny Shakespeare, or a dataset of the hub."""

import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.files import atomic_write, sha256_of, shell_path
from engine.common.settings import parse_settings
from engine.text import large
from engine.text.preparation import read_text, write_dataset

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def download(url, sha256, path):
    """Download url to path, if it is not there.

    ValueError if that fails or the file has another sha256.
    """
    if path.exists():
        return
    script = shell_path(path.parent / "prepare.py")
    remedy = f"get the file another way, then python {script} --input FILE"
    print(f"downloading {url}")
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            content = response.read()
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ValueError(f"cannot download {url} ({reason}): {remedy}") from None
    if sha256_of([content]) != sha256:
        raise ValueError(f"{url} is not the expected file (its sha256 differs): {remedy}")
    atomic_write(path, content)


@dataclass
class DownloadSettings:
    input: Path | None = None
    """The text, if you have it already; otherwise it is downloaded, and its sha256 is checked."""


@one_line_errors()
def prepare_shakespeare(folder, tokenizer_name):
    """Prepare tiny Shakespeare: [--input FILE]. Its last tenth is for validation, as in nanoGPT."""
    path = parse_settings(DownloadSettings, sys.argv[1:]).input
    if path is None:
        path = folder / "input.txt"
        download(SHAKESPEARE, SHA256, path)
    text = read_text(path)
    end = int(len(text) * 0.9)
    write_dataset(folder, [text[:end]], tokenizer_name, path.name, val=[text[end:]])


@dataclass
class HubSettings:
    tokens: int = 0
    """Stop after this number of tokens, and download no more than they need; 0: all of it."""
    tokenizer: str = "gpt2"
    """gpt2 or another of tiktoken, bpe:VOCAB (learned from the text), byte, or a model's folder."""

    def __post_init__(self):
        at_least(0, self, "tokens")


@one_line_errors()
def prepare_hub(folder, name, config=None):
    """Prepare a dataset on the hub, or its variant config: [--tokens=N] [--tokenizer=NAME].

    A hash of each document decides whether it is for validation: 0.005 of them are.
    """
    settings = parse_settings(HubSettings, sys.argv[1:])
    rows = large.read_hub(name, config, streaming=settings.tokens > 0)
    rows = large.only_text(rows, "text", name)
    large.write_large_dataset(folder, rows, settings.tokenizer, name, tokens=settings.tokens)
