"""Conversations to fine-tune a model on: .jsonl, .jsonl.gz, .json and .parquet, or the hub.

    python data/chat/prepare.py --input FILE_OR_FOLDER ... --name mychat --tokenizer FOLDER
    python data/chat/prepare.py --hub OWNER/NAME [--split train] --name mychat ...
    python train.py --init_from=FOLDER --dataset=mychat

A record is {"messages": [{"role": "user", "content": "Hi"}, ...]}, {"prompt", "completion"}, or
ShareGPT's {"conversations": [{"from": "human", "value": "Hi"}, ...]}. What the assistant says is
learned, all else is only read.
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from engine.text import conversations, preparation, sources
from engine.text.chat import chat_tokenizer


@dataclass
class Settings:
    input: tuple[Path, ...] = ()
    """Files of conversations, or folders of them."""
    hub: str = ""
    """A dataset of Hugging Face's hub, OWNER/NAME, in place of files."""
    split: str = "train"
    """Its split."""
    val: tuple[Path, ...] = ()
    """Files or folders for validation; without any, a tenth of the conversations."""
    name: str = "mychat"
    """The dataset's name: it is written to data/<name>."""
    tokenizer: str = "byte"
    """The folder of the model to tune; or char, byte, bpe:VOCAB, gpt2 or another of tiktoken."""
    skip_damaged: bool = False
    """Leave damaged records out and count them, in place of stopping at the first one."""
    ignore: tuple[str, ...] = ()
    """Keys of records or messages that change nothing; others that are not known are refused."""

    def __post_init__(self):
        if bool(self.hub) == bool(self.input):
            raise ValueError("give --input, files of conversations, or --hub, one of the two")
        for path in (*self.input, *self.val):
            if not path.exists():
                raise ValueError(f"there is no file or folder {path}")
        preparation.check_name(self.name)


def read(settings):
    """Return the records for training and those for validation, from the beginning."""
    train = sources.read_records(*settings.input)
    if settings.hub:
        train = sources.read_hub(settings.hub, split=settings.split)
    return train, sources.read_records(*settings.val)


def prepare(settings):
    """Write the dataset."""
    source = settings.hub or ", ".join(path.name for path in settings.input)
    texts = conversations.texts_of(itertools.chain(*read(settings)), settings.ignore)
    tokenizer = chat_tokenizer(settings.tokenizer, texts)
    folder = preparation.DATA / settings.name
    train, val = read(settings)
    if not settings.val:
        val = None
    how = settings.skip_damaged, settings.ignore
    conversations.write_conversations(folder, tokenizer, train, val, source, *how)


if __name__ == "__main__":
    with one_line_errors():
        prepare(parse_settings(Settings, sys.argv[1:]))
