"""Conversations to fine-tune a model on: .jsonl, .json, .csv and .parquet.

    python data/chat/prepare.py --input FILE_OR_FOLDER ... --name mychat --tokenizer FOLDER
    python train.py --init_from=FOLDER --dataset=mychat

A record is {"messages": [{"role": "user", "content": "Hi"}, ...]}, {"prompt", "completion"},
ShareGPT's {"conversations": [{"from": "human", "value": "Hi"}, ...]}, or Alpaca's {"instruction",
"input", "output"}. The model learns what the assistant says, and only reads the rest.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import conversations, prepare
from engine.chat import chat_tokenizer
from engine.errors import UserError, one_line_errors
from engine.settings import parse_settings


@dataclass
class Settings:
    input: tuple[Path, ...] = ()
    """Files of conversations, or folders of them."""
    val: tuple[Path, ...] = ()
    """Files or folders for validation; without any, a tenth of the conversations."""
    name: str = "mychat"
    """The dataset's name: it is written to data/<name>."""
    tokenizer: str = "byte"
    """The folder of the model to tune; or char, byte, bpe:VOCAB, gpt2 or another of tiktoken."""
    skip_damaged: bool = False
    """Leave damaged records out and count them, instead of stopping at the first one."""
    ignore: tuple[str, ...] = ()
    """Keys of records or messages that change nothing; other unknown keys are refused."""

    def __post_init__(self):
        if not self.input:
            raise UserError("--input is missing: which files or folders hold the conversations?")
        prepare.check_exists(*self.input, *self.val)
        prepare.check_name(self.name)


def main(settings):
    """Write the dataset."""
    source = ", ".join(path.name for path in settings.input)
    records = prepare.read_records(*settings.input, *settings.val)
    tokenizer = chat_tokenizer(settings.tokenizer, conversations.texts_of(records, settings.ignore))
    conversations.write_conversations(
        prepare.DATA / settings.name,
        tokenizer,
        prepare.read_records(*settings.input),
        prepare.read_records(*settings.val) if settings.val else None,
        source,
        settings.skip_damaged,
        settings.ignore,
    )


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
