"""How well a model predicts a text: loss, perplexity, bits per byte.

    python -m tools.evaluate [--out_dir=out | --init_from=FOLDER_OR_NAME] [--dataset=NAME | --text=FILE] [--stride=256]

Each token of the text but the first is predicted once. The text is read in windows of the model's context, one beginning
`stride` tokens after the other: with stride 0 they follow each other, and the first token of each has no past at all; the
smaller the stride, the more each token has seen, and the longer it takes.
"""

import math
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from engine.text import dataset, preparation
from engine.weights import checkpoint, pretrained
from model import GPT


@dataclass(kw_only=True)
class EvaluateConfig(pretrained.ModelSettings):
    dataset: str = ""
    """A prepared dataset, whose validation split is read; empty: the one that the model was trained on."""
    text: str = ""
    """In place of it: a text file."""
    stride: int = 0
    """Tokens between the beginnings of two windows; 0: as many as a window has."""
    batch_size: int = 8
    """Windows at a time."""
    data_tokenizer: Literal["", "gpt2"] = ""
    """As in train.py: gpt2, if the dataset is nanoGPT's; empty: as the run had it."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best available."""

    def __post_init__(self):
        at_least(0, self, "stride")
        at_least(1, self, "batch_size")
        if self.text and self.dataset:
            raise ValueError("give --text or --dataset, not both")


@torch.no_grad()
def evaluate(model, tokens, stride=0, batch_size=8):
    """(sum of losses in nats, how many tokens were predicted): each token of tokens, an array of ids, but the first."""
    size, device, total = model.config.block_size, model.transformer.wte.weight.device, 0.0
    if not 0 <= stride <= size:
        raise ValueError(f"stride={stride} must be at most the model's context of {size} tokens")
    batches = dataset.sequential_batches(tokens, batch_size, size, stride)
    count = -(-max(1, len(tokens) - 1) // ((stride or size) * batch_size))
    for x, y in tqdm(batches, "evaluating", count, leave=False, delay=2):
        total += model(x.to(device), y.to(device), only_loss=True)[1].item() * int((y >= 0).sum())
    return total, len(tokens) - 1


def main(config):
    """Print what there is to say, and return it."""
    device, folder = pick_device(config.device), config.folder()
    model = GPT.from_pretrained(folder)
    tokenizer = pretrained.load_tokenizer(folder, model.config.vocab_size)
    training = checkpoint.load_config(folder)["training"] if checkpoint.is_ours(folder) else {}
    if config.text:
        text, about = preparation.read_text(config.text), config.text
        tokens = np.array([*tokenizer.begin, *tokenizer.encode(text)])
    elif name := config.dataset or training.get("dataset"):
        data = dataset.load_dataset(
            name, 1, config.data_tokenizer or training.get("data_tokenizer", "")
        )
        if data.tokenizer.spec() != tokenizer.spec():
            raise ValueError(
                f"dataset {name} has other tokens than {folder}: give its text by --text=FILE"
            )
        tokens, about = data.val, f"the validation split of {name}"
    else:
        raise ValueError("which text? give --text=FILE or --dataset=NAME")
    if len(tokens) < 2:
        raise ValueError(f"{about} has {len(tokens)} tokens: at least two are needed")
    total, predicted = evaluate(model.to(device).eval(), tokens, config.stride, config.batch_size)
    if config.text:
        size = len(text.encode("utf-8")) - (
            0 if tokenizer.begin else len(tokenizer.token_bytes(int(tokens[0])))
        )
    else:
        used, counts = np.unique(tokens[1:], return_counts=True)
        size = sum(
            count * len(tokenizer.token_bytes(int(token)))
            for token, count in zip(used, counts)
            if token != tokenizer.end_of_text
        )  # it separates texts, and has no bytes in them
    loss = total / predicted
    result = {"tokens": predicted, "loss": loss, "perplexity": math.exp(min(loss, 700))}
    result["bits_per_byte"] = total / math.log(2) / size
    print(
        f"{folder} on {about}: {predicted:,} tokens, loss {loss:.4f}, perplexity {result['perplexity']:.4g}, "
        f"{result['bits_per_byte']:.4f} bits per byte"
    )
    return result


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(EvaluateConfig, sys.argv[1:]))
