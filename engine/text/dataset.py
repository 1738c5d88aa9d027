"""Token files read as batches that depend on a seed and nothing else."""

import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from engine.common.files import read_json, sha256_of_file, shell_path, shell_quote
from engine.text.packing import PackedRows
from engine.text.preparation import (
    BEGINS,
    DATA,
    LEARNED,
    MASKS,
    SMALL,
    SPLITS,
    meta_digest,
    write_dataset,  # noqa: F401
)
from engine.text.tokenizer import Tokenizer, create_tokenizer, tokenizer_from_spec

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
    tokens_per_character: float | None
    """In the validation text; None where the characters were not counted."""
    masks: dict = field(default_factory=dict)
    """Of conversations: what each token of train and val is (READ, LEARNED or BEGINS)."""
    rows: dict = field(default_factory=dict)
    """Of conversations: the PackedRows of train and val, as pack makes them."""

    def pack(self, block_size):
        """Pack conversations into rows for a model of this block_size."""
        for split, mask in self.masks.items():
            self.rows[split] = PackedRows(getattr(self, split), mask, block_size)

    def bits_per_character(self, loss):
        """Convert a loss in nats per token, to compare tokenizers.

        None where the characters were not counted.
        """
        if self.tokens_per_character is None:
            return None
        return loss * self.tokens_per_character / math.log(2)


def find_dataset(name):
    """Return the folder of a dataset, data/<name> or one elsewhere.

    An included one is prepared if it is not yet.
    """
    folder = DATA / name
    if not folder.is_dir() and Path(name).is_dir():
        folder = Path(name)
    if name in INCLUDED and not (folder / "meta.json").exists():
        print(f"preparing dataset {name}, once")
        status = subprocess.run([sys.executable, str(folder / "prepare.py")]).returncode
        if status:  # it has printed why, in one line
            sys.exit(status)
    elif not all((folder / f"{split}.bin").is_file() for split in SPLITS):
        raise ValueError(not_prepared(name, folder))
    return folder


def not_prepared(name, folder):
    """Return the message for a dataset without train.bin and val.bin."""
    for script in folder / "prepare.py", folder.parent / "prepare.py":
        if script.is_relative_to(DATA) and script.exists():
            return f"dataset {name} is not prepared yet: python {shell_path(script)}"
    known = sorted({*INCLUDED, *(path.parent.name for path in DATA.glob("*/meta.json"))})
    script = shell_path(DATA / "text" / "prepare.py")
    if Path(name).exists():  # a text, or a folder of texts
        script = f"{script} --input {shell_quote(name)} --name mine"
    return (
        f"dataset {name!r} has no train.bin and val.bin: prepare it with {script}, or choose "
        f"{', '.join(known)}"
    )


def load_dataset(name, block_size, data_tokenizer=""):
    """Return the Dataset called name; ValueError if it is damaged, missing or too short.

    data_tokenizer: gpt2 for a folder without meta.json, as nanoGPT makes them.
    """
    folder = find_dataset(name)
    if (folder / "meta.json").exists():
        meta = read_meta(folder / "meta.json")
    else:
        meta = nanogpt_meta(folder, data_tokenizer)
    tokenizer = meta["tokenizer"]
    files = {}
    hashes = {}
    for split in SPLITS:
        path = folder / f"{split}.bin"
        least = 0 if MASKS[0] in meta else block_size  # rows of conversations are padded
        hashes[split] = meta[split]["sha256"]
        files[split] = map_tokens(path, meta["dtype"], meta[split]["tokens"], least)
        check_tokens(path, files[split], tokenizer.vocab_size, hashes[split])
    data = Dataset(
        name=name if folder.resolve().is_relative_to(DATA.resolve()) else str(folder.resolve()),
        **files,
        tokenizer=tokenizer,
        hashes=hashes,
        tokens_per_character=meta["tokens_per_character"],
    )
    return with_masks(data, folder, meta) if MASKS[0] in meta else data


def with_masks(data, folder, meta):
    """Return a Dataset of conversations with its masks; ValueError if they are damaged."""
    for split, name in zip(SPLITS, MASKS):
        path = folder / f"{name}.bin"
        data.hashes[name] = meta[name]["sha256"]
        mask = map_tokens(path, np.dtype(np.uint8), meta[split]["tokens"], 0)
        check_tokens(path, mask, BEGINS + 1, data.hashes[name])
        data.masks[split] = mask
    learned = (data.masks["val"] == LEARNED).sum()
    data.tokens_per_character = learned / meta["val"]["characters"]
    return data


def read_meta(path):
    """Return meta.json with its dtype and its tokenizer as objects, and tokens_per_character.

    ValueError if damaged.
    """
    try:
        meta = read_json(path)
        if meta.pop("sha256", None) not in (None, meta_digest(meta)):  # None: an earlier version's
            raise ValueError("its sha256 is not its own")
        meta["dtype"] = np.dtype(meta["dtype"]).newbyteorder("<")
        meta["tokenizer"] = tokenizer_from_spec(meta["tokenizer"])
        meta["tokens_per_character"] = meta["val"]["tokens"] / meta["val"]["characters"]
        return meta
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): prepare the dataset again") from None


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
        "tokens_per_character": None,
        "train": {"tokens": train.stat().st_size // 2, "sha256": None},
        "val": {"tokens": val.stat().st_size // 2, "sha256": sha256_of_file(val)},
    }


def map_tokens(path, dtype, count, block_size):
    """Map a file of count token ids.

    ValueError for another size, or if it is too short for block_size.
    """
    size = path.stat().st_size
    if size != count * dtype.itemsize:
        raise ValueError(
            f"{path} has {size:,} bytes, not {dtype.itemsize} for each of {count:,} tokens: "
            "prepare it again"
        )
    if count <= block_size:
        raise ValueError(
            f"{path} has {count:,} tokens, but block_size={block_size} needs at least "
            f"{block_size + 1:,}: use more text or a smaller block_size"
        )
    return np.memmap(path, dtype=dtype, mode="r")


def check_tokens(path, tokens, vocab_size, sha256):
    """ValueError for an id outside the vocabulary, in the first 256 MB.

    ValueError also for a file with another sha256, if it is smaller than these 256 MB.
    """
    largest = int(tokens[: SMALL // tokens.itemsize].max())
    if largest >= vocab_size:
        raise ValueError(
            f"{path} has token id {largest}; the vocabulary has {vocab_size}: prepare it again"
        )
    if tokens.nbytes < SMALL and sha256 not in (None, sha256_of_file(path)):
        raise ValueError(
            f"{path} is damaged (its sha256 is not the one in meta.json): prepare it again"
        )


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
