"""How well a model predicts a text: loss, perplexity, bits per byte.

    python -m tools.evaluate [--out_dir=out] [--dataset=NAME | --text=FILE] [--stride=256]
    python -m tools.evaluate --init_from=FOLDER_OR_NAME --text=FILE

Each token of the text but the first is predicted once. The text is read in windows of the model's
context, one beginning `stride` tokens after the other: with stride 0 they follow each other, and
the first token of each has no past at all. The smaller the stride, the more each token has seen,
and the longer it takes.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from engine import dataset, prepare
from engine.errors import UserError, at_least
from engine.machine import pick_device
from tools.shared.settings import DatasetSettings, run


@dataclass
class EvaluateConfig(DatasetSettings):
    text: str = ""
    """A text file, in place of a dataset."""
    stride: int = 0
    """Tokens between the beginnings of two windows; 0: the length of a window."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best available."""

    def __post_init__(self):
        at_least(0, self, "stride")
        if self.text and self.dataset:
            raise UserError("give --text or --dataset, not both")


def main(config):
    """Print the figures and return them."""
    device = pick_device(config.device)
    folder, model, tokenizer = config.load()
    tokens, size, source = read_tokens(config, folder, tokenizer)
    if len(tokens) < 2:
        raise UserError(f"{source} has {len(tokens)} tokens: at least two are needed")

    total, count = evaluate(model.to(device).eval(), tokens, config.stride)
    loss = total / count
    perplexity = math.exp(loss)
    bits = total / math.log(2) / size
    print(
        f"{folder} on {source}: {count:,} tokens, loss {loss:.4f}, perplexity {perplexity:.4g}, "
        f"{bits:.4f} bits per byte"
    )
    return {"tokens": count, "loss": loss, "perplexity": perplexity, "bits_per_byte": bits}


def read_tokens(config, folder, tokenizer):
    """Return the ids (T,) of the text that the settings name, its bytes, and words for its source.

    Its first token is not predicted, and its bytes do not count.
    """
    if config.text:
        text = prepare.read_text(config.text)
        tokens = np.array([*tokenizer.begin, *tokenizer.encode(text)], np.int64)
        first = 0 if tokenizer.begin else dataset.count_bytes(tokens[:1], tokenizer)
        return tokens, len(text.encode()) - first, config.text
    data = config.load_dataset(folder, tokenizer)
    return (
        data.val,
        dataset.count_bytes(data.val[1:], tokenizer),
        f"the validation split of {data.name}",
    )


@torch.no_grad()
def evaluate(model, tokens, stride=0, batch_size=8):
    """Return the sum of losses in nats over ids (T,) but the first, and the number of losses."""
    size = model.config.block_size
    if stride > size:
        raise UserError(f"stride={stride} must be at most the model's context of {size} tokens")
    device = model.transformer.wte.weight.device
    total = 0.0
    batches = dataset.sequential_batches(tokens, batch_size, size, stride)
    for x, y in tqdm(batches, "evaluating", unit="batch", leave=False, delay=2):
        _, loss = model(x.to(device), y.to(device), only_loss=True)
        total += loss.item() * int((y >= 0).sum())
    return total, len(tokens) - 1


if __name__ == "__main__":
    run(main, EvaluateConfig)
