"""Write text with a trained model.

    python sample.py [--out_dir=out] [--start="Once upon" | --start=FILE:prompt.txt] [--key=value ...]

Reads nothing but the checkpoint folder, and prints each character as soon as it is decoded.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import checkpoint
import configure


@dataclass
class SampleConfig:
    out_dir: str = "out"
    """The folder that train.py wrote, or one checkpoint in it."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best (lowest validation loss), or a name such as step_002000."""
    start: str = "\n"
    """The prompt, or FILE:name to read it from a file."""
    num_samples: int = 1
    """How many texts to write from the same prompt."""
    max_new_tokens: int = 500
    """Tokens to write in each."""
    temperature: float = 0.8
    """Below 1 more predictable, above 1 more surprising; 0 always takes the likeliest token."""
    top_k: int = 200
    """Draw from the k likeliest tokens only; 0: from all."""
    seed: int = 1337
    """Chance: the same seed gives the same text. Sample n of several has seed + n."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best there is."""

    def __post_init__(self):
        for name in ("num_samples", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("temperature", "top_k"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more")


def read_prompt(start):
    """The prompt's text: start itself, or the file that FILE:name names."""
    if not start.startswith("FILE:"):
        return start
    try:
        return Path(start.removeprefix("FILE:")).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--start: cannot read {error.filename} ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--start: {start} is not UTF-8 text (offset {error.start})") from None


def encode_prompt(tokenizer, text, block_size):
    """Ids (1, T) of the prompt; ValueError if it is empty, too long or cannot be encoded."""
    try:
        ids = torch.from_numpy(tokenizer.encode(text, allow_special=True).astype("int64"))
    except UnicodeEncodeError as error:
        raise ValueError(f"--start is not valid Unicode text (position {error.start})") from None
    except ValueError as error:
        raise ValueError(f"--start: {error}") from None
    if not 1 <= len(ids) <= block_size:
        raise ValueError(f"--start has {len(ids)} tokens: this model needs at least 1 and reads at most {block_size}")
    return ids[None]


def sample(config):
    """Print config.num_samples texts; ValueError for a checkpoint or a prompt that cannot be used."""
    device = configure.pick_device(config.device)
    folder = checkpoint.find(config.out_dir, config.checkpoint)
    model, tokenizer = checkpoint.load_model(folder).to(device).eval(), checkpoint.load_tokenizer(folder)
    text = read_prompt(config.start)
    prompt = encode_prompt(tokenizer, text, model.config.block_size).to(device)
    for n in range(config.num_samples):
        tokens = model.stream(
            prompt, config.max_new_tokens, config.temperature, config.top_k,
            generator=torch.Generator(device).manual_seed(config.seed + n), vocab_size=tokenizer.vocab_size,
        )
        print(text, end="", flush=True)
        for piece in tokenizer.decode_stream(token.item() for token in tokens):
            print(piece, end="", flush=True)
        print("\n---------------" if n < config.num_samples - 1 else "")


if __name__ == "__main__":
    with configure.one_line_errors():
        sample(configure.parse(SampleConfig, sys.argv[1:]))
