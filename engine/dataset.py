"""Token files read as batches that depend on a seed and nothing else.

Conversations stand in rows: each is packed whole, sees only itself, and is read from position 0.
"""

import bisect
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from engine.errors import library_errors
from engine.files import read_json, sha256_of_file, sha256_of_json, shell_path
from engine.preparation import (
    BEGINS,
    DATA,
    LEARNED,
    MASKS,
    SMALL,
    SPLITS,
    write_dataset,  # noqa: F401
)
from engine.tokenizer import Tokenizer, create_tokenizer, tokenizer_from_spec

# They prepare themselves when they are first used; no other folder's code is ever run.
INCLUDED = "stdlib", "words", "questions", "shakespeare", "shakespeare_char"


@dataclass
class Dataset:
    """The tokens of a text, and what they mean."""

    name: str
    """As in data/; the whole path of a folder elsewhere."""
    train: np.memmap
    """Token ids, mapped from disk, uint16 or uint32."""
    val: np.memmap
    tokenizer: Tokenizer
    hashes: dict
    """sha256 of train and val (None if unknown): losses compare only if they are the same."""
    characters: int | None
    """Of the validation text, or of its answers; None where they were not counted."""
    masks: dict
    """Of conversations: what each token of train and val is (READ, LEARNED or BEGINS)."""
    rows: dict = field(default_factory=dict)
    """Of conversations: the PackedRows of train and val, as pack makes them."""

    def pack(self, block_size):
        """Pack conversations into rows for a model of this block_size."""
        for split, mask in self.masks.items():
            self.rows[split] = PackedRows(getattr(self, split), mask, block_size)

    def validated(self):
        """Return the tokens that a validation loss is of: all of val, or of its answers."""
        return self.val[self.masks["val"] == LEARNED] if self.masks else self.val

    def bits_per_character(self, loss):
        """Convert a validation loss in nats per token, to compare tokenizers.

        None where the characters were not counted.
        """
        if self.characters is None:
            return None
        return loss * len(self.validated()) / self.characters / math.log(2)

    def bits_per_byte(self, loss):
        """Convert a validation loss in nats per token."""
        tokens = self.validated()
        return loss * len(tokens) / count_bytes(tokens, self.tokenizer) / math.log(2)


def count_bytes(tokens, tokenizer):
    """Return the bytes of a text's tokens; special ones have none."""
    sizes = [len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)]
    for token in {tokenizer.end_of_text, *tokenizer.special_tokens.values()} - {None}:
        sizes[token] = 0
    return int(np.array(sizes)[tokens].sum())


def find_dataset(name):
    """Return the folder of a dataset, data/<name> or one elsewhere.

    An included one is prepared if it is not yet.
    """
    folder = DATA / name
    if not folder.is_dir():
        folder = Path(name)
    if name in INCLUDED and not (folder / "meta.json").exists():
        with FileLock(folder / ".preparing"):  # another process may be at it
            if not (folder / "meta.json").exists():
                prepare(name, folder)
    elif not all((folder / f"{split}.bin").is_file() for split in SPLITS):
        known = sorted({*INCLUDED, *(path.parent.name for path in DATA.glob("*/meta.json"))})
        raise ValueError(
            f"dataset {name!r} has no train.bin and val.bin: run its prepare.py, or make it of a "
            f"text by {shell_path('data/text/prepare.py')} --input FILE --name NAME, or choose "
            f"{', '.join(known)}"
        )
    return folder


def prepare(name, folder):
    """Run the prepare.py of a dataset that comes with lookback."""
    print(f"preparing dataset {name}, once")
    status = subprocess.run([sys.executable, str(folder / "prepare.py")]).returncode
    if status:  # it has printed why, in one line
        sys.exit(status)


def load_dataset(name, block_size, data_tokenizer=""):
    """Return the Dataset called name; ValueError if it is damaged, missing or too short.

    data_tokenizer: gpt2 for a folder without meta.json, as nanoGPT makes them.
    """
    folder = find_dataset(name)
    path = folder / "meta.json"
    meta = read_meta(path) if path.exists() else nanogpt_meta(folder, data_tokenizer)
    tokens = meta["dtype"], meta["tokenizer"].vocab_size
    kinds = dict.fromkeys(SPLITS, tokens) | dict.fromkeys(MASKS, (np.dtype("u1"), BEGINS + 1))
    files = {
        file: map_tokens(folder / f"{file}.bin", meta[file], *kind)
        for file, kind in kinds.items()
        if file in meta
    }
    inside = folder.resolve().is_relative_to(DATA.resolve())
    data = Dataset(
        name=name if inside else str(folder.resolve()),
        train=files["train"],
        val=files["val"],
        tokenizer=meta["tokenizer"],
        hashes={file: meta[file]["sha256"] for file in files},
        characters=meta["val"].get("characters"),
        masks={split: files[mask] for split, mask in zip(SPLITS, MASKS) if mask in files},
    )
    for split in SPLITS:
        if len(files[split]) <= block_size and not data.masks:
            raise ValueError(
                f"{folder / split}.bin has {len(files[split]):,} tokens, but "
                f"block_size={block_size} needs at least {block_size + 1:,}: use more text or a "
                "smaller block_size"
            )
    return data


def read_meta(path):
    """Return meta.json with its dtype and its tokenizer as objects; ValueError if damaged."""
    with library_errors(f"{path.parent} cannot be read", ": prepare it again"):
        meta = read_json(path)
        if meta.pop("sha256", None) != sha256_of_json(meta):
            raise ValueError(f"{path} is damaged (its sha256 is not its own)")
        meta["dtype"] = np.dtype(meta["dtype"]).newbyteorder("<")
        meta["tokenizer"] = tokenizer_from_spec(meta["tokenizer"])
        _ = [meta[split] for split in SPLITS]  # KeyError for one that is missing
        return meta


def nanogpt_meta(folder, data_tokenizer):
    """Return what read_meta would for nanoGPT's files with GPT-2's ids.

    ValueError if data_tokenizer is not gpt2, or meta.pkl says that the tokens are others.
    """
    if data_tokenizer != "gpt2" or (folder / "meta.pkl").exists():
        raise ValueError(
            f"{folder} has no meta.json: prepare it again; or if nanoGPT made it with GPT-2's "
            "tokens, say --data_tokenizer=gpt2 (a meta.pkl could run any code, and is never read: "
            "there the tokens are others)"
        )
    train = folder / "train.bin"
    val = folder / "val.bin"
    return {
        "dtype": np.dtype("<u2"),
        "tokenizer": create_tokenizer("gpt2"),
        "train": {"tokens": train.stat().st_size // 2, "sha256": None},
        "val": {"tokens": val.stat().st_size // 2, "sha256": sha256_of_file(val)},
    }


def map_tokens(path, entry, dtype, vocab_size):
    """Map the token ids of a file with this entry in meta.json.

    ValueError for another size than that says, and for an id outside the vocabulary in the first
    256 MB. A file smaller than that must have the entry's sha256 too.
    """
    size = path.stat().st_size
    count = entry["tokens"]
    if size != count * dtype.itemsize:
        raise ValueError(
            f"{path} has {size:,} bytes, not {dtype.itemsize} for each of {count:,} tokens: "
            "prepare it again"
        )
    tokens = np.memmap(path, dtype=dtype, mode="r")
    largest = int(tokens[: SMALL // dtype.itemsize].max())
    if largest >= vocab_size:
        raise ValueError(
            f"{path} has token id {largest}; the vocabulary has {vocab_size}: prepare it again"
        )
    if size < SMALL and entry["sha256"] not in (None, sha256_of_file(path)):
        raise ValueError(
            f"{path} is damaged (its sha256 is not the one in meta.json): prepare it again"
        )
    return tokens


def random_batch(tokens, batch_size, block_size, rng):
    """Return inputs and targets (batch_size, block_size) int64.

    Windows chosen by rng, targets one token later.
    """
    starts = rng.integers(len(tokens) - block_size, size=(batch_size, 1))
    windows = torch.from_numpy(tokens[starts + np.arange(block_size + 1)].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


def sequential_batches(tokens, batch_size, block_size, stride=0):
    """Yield all tokens, in order, as inputs and targets (batch_size, block_size) int64.

    Each token but the first is a target once.

    Targets are -1 where there is none. stride: how many tokens one window begins after the other;
    less than block_size lets them overlap, so that each target but the first ones has at least
    block_size - stride tokens before it; 0 stands for block_size.
    """
    stride = stride or block_size
    starts = range(0, max(1, len(tokens) - 1 - block_size + stride), stride)
    for first in range(0, len(starts), batch_size):
        inputs = np.zeros((batch_size, block_size), np.int64)
        targets = np.full((batch_size, block_size), -1)
        for row, start in enumerate(starts[first : first + batch_size]):
            window = tokens[start : start + block_size + 1].astype(np.int64)
            seen = block_size - stride if start else 0  # targets of the window before
            inputs[row, : len(window) - 1] = window[:-1]
            targets[row, seen : len(window) - 1] = window[seen + 1 :]
        yield torch.from_numpy(inputs), torch.from_numpy(targets)


# ---- Conversations in rows


class PackedRows:
    """The conversations of a split in rows of block_size + 1 tokens, the rest of each padded.

    tokens, mask: arrays (T,) as in its files. A conversation that is too long ends with the last
    answer that fits into a row, and is left out if none does. What follows an answer and is not
    learned takes no room. The rows depend on tokens, mask and block_size alone. ValueError if there
    are none.
    """

    def __init__(self, tokens, mask, block_size):
        self.tokens = tokens
        self.size = block_size + 1
        self.begins = np.flatnonzero(mask == BEGINS)
        self.learned = np.append(mask == LEARNED, False)
        answers = np.flatnonzero(self.learned[:-1] & ~self.learned[1:]) + 1  # where each ends
        ends = np.append(self.begins[1:], len(mask))
        whole = last_before(answers, ends) - self.begins
        limits = np.minimum(ends, self.begins + self.size)
        lengths = last_before(answers, limits) - self.begins
        self.lengths = np.maximum(lengths, 0)  # 0: its first answer does not fit
        self.left_out = int((self.lengths == 0).sum())
        self.cut = int(((self.lengths > 0) & (self.lengths < whole)).sum())
        self.rows = best_fit(self.lengths, self.size)
        if not self.rows:
            raise ValueError(f"no answer fits into block_size={block_size}: choose a larger one")

    def __len__(self):
        return len(self.rows)

    def summary(self):
        """Return in words how many rows there are, and what is not in them."""
        padding = 1 - self.lengths.sum() / (len(self) * self.size)
        return (
            f"{len(self.begins) - self.left_out:,} conversations in {len(self):,} rows, "
            f"{padding:.1%} of these padding; {self.cut:,} cut after an answer, "
            f"{self.left_out:,} left out, as no answer fits"
        )

    def batch(self, numbers, batch_size):
        """Return inputs, targets and positions of rows, (batch_size, block_size) int64 each.

        Targets are -1 where nothing is learned. A position of 0 begins a conversation. Fewer
        numbers than batch_size are followed by rows of padding.
        """
        tokens = np.zeros((batch_size, self.size), np.int64)
        targets = np.full_like(tokens, -1)
        positions = np.tile(np.arange(self.size), (batch_size, 1))
        for row, number in enumerate(numbers):
            conversations = self.rows[number]
            index = np.concatenate([np.arange(self.lengths[n]) for n in conversations])
            places = index + np.repeat(self.begins[conversations], self.lengths[conversations])
            filled = slice(len(index))
            tokens[row, filled] = self.tokens[places]
            targets[row, filled] = np.where(self.learned[places], tokens[row, filled], -1)
            positions[row, filled] = index  # no 0 in the padding: it begins no conversation
        tokens, targets, positions = map(torch.from_numpy, (tokens, targets, positions))
        return tokens[:, :-1], targets[:, 1:], positions[:, :-1]


def last_before(places, limits):
    """Return for each limit the largest of the sorted places up to it, or 0."""
    return np.append(0, places)[np.searchsorted(places, limits, side="right")]


def best_fit(lengths, size):
    """Return rows, lists of the numbers of lengths that fit together into size; not those of 0.

    Best fit, decreasing: from the longest on, each goes to the row with the least room that is
    enough (Johnson 1973: at most 11/9 of the rows that are needed, and a few).
    """
    rows = []
    rooms = []  # (room, row), sorted
    order = np.argsort(-lengths, kind="stable")
    for n in order[: np.count_nonzero(lengths)].tolist():
        length = int(lengths[n])
        found = bisect.bisect(rooms, (length,))
        if found == len(rooms):
            rooms.append((size, len(rows)))
            rows.append([])
        room, row = rooms.pop(found)
        rows[row].append(n)
        bisect.insort(rooms, (room - length, row))
    return rows
