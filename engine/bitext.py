"""Pairs of sentences, each the other's translation: from two files, as pieces of words, in batches of about one length."""

import gzip
import itertools
import zlib
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from engine import corpus, tokenizer

END = 0  # of a sentence: what begins its translation, and the padding, too


def lines(path):
    """The lines of a text file, which may be compressed; ValueError if there are none."""
    try:
        with open(path, "rb") as file:
            text = corpus.decoded(b"".join(corpus.unpacked(file, Path(path))), path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if not text.strip():
        raise ValueError(f"{path} holds no text")
    return text.rstrip("\n").split("\n")


def pairs(source, target):
    """[(sentence, its translation)] from two files with a sentence on each line; ValueError if they do not fit together."""
    both = lines(source), lines(target)
    if len(both[0]) != len(both[1]):
        counts = f"{source} has {len(both[0]):,} lines, {target} {len(both[1]):,}"
        raise ValueError(f"{counts}: each line of one must be the translation of the other's")
    return [pair for pair in zip(*both) if pair[0].strip() and pair[1].strip()]


class Vocabulary:
    """Pieces of words in lower case, numbered from 1: those that occur in these texts. Others are left out."""

    def __init__(self, texts, size):
        self.bpe = tokenizer.create(f"bpe:{size}", [text.lower() for text in texts])
        used = np.unique(np.concatenate([self.bpe.encode(f" {text.lower()}") for text in texts]))
        self.number, self.piece = np.zeros(self.bpe.vocab_size, int), [END, *used]
        self.number[used] = np.arange(1, len(self.piece))

    def __len__(self):
        return len(self.piece)

    def encode(self, text):
        """With END, which is a place to look at when all else is translated."""
        numbers = self.number[self.bpe.encode(f" {text.lower()}")]
        return np.append(numbers[numbers != END], END)

    def decode(self, numbers):
        """Up to END."""
        return self.bpe.decode([self.piece[n] for n in itertools.takewhile(lambda n: n != END, numbers)]).strip()


def padded(rows):
    """Numbers (B, T), with END after each row's own, and which of them are its own."""
    lengths = torch.tensor([len(row) for row in rows])
    numbers = pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=END)
    return numbers, torch.arange(numbers.shape[1]) < lengths[:, None]


def batches(lengths, most, seed):
    """For ever, the rows of a batch: sentences about as long as each other, about `most` pieces in all.

    The first epoch goes from short sentences to long ones, from which a model learns sooner where to look; others are in a
    random order.
    """
    for epoch in itertools.count():
        rng = np.random.default_rng((seed, epoch))
        order = np.argsort(lengths + rng.random(len(lengths)))
        number = np.cumsum(lengths[order]) // most  # of the batch that a sentence belongs to
        found = np.split(order, np.flatnonzero(np.diff(number)) + 1)
        yield from (found[n] for n in (rng.permutation(len(found)) if epoch else range(len(found))))


def by_length(texts, step):
    """{words: rows of the texts with so many, or up to step - 1 fewer}, without lengths that fewer than 2% have."""
    found = {}
    for n, text in enumerate(texts):
        found.setdefault(-(-len(text.split()) // step) * step, []).append(n)
    return {length: rows for length, rows in sorted(found.items()) if len(rows) >= len(texts) / 50}
