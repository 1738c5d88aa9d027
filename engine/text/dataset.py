"""Token files read as batches that depend on a seed and nothing else.

A dataset is a folder that preparation.py has written. Without meta.json, the files are nanoGPT's, with GPT-2's ids, if the
user says so; or a preparation has been interrupted.
"""

import difflib
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.common.files import read_json, sha256_of_file, shell_path, shell_quote
from engine.text import tokenizer
from engine.text.documents import read_text  # noqa: F401
from engine.text.preparation import DATA, SMALL, SPLITS, meta_digest, shard_names, write_dataset  # noqa: F401
from engine.weights import checkpoint

SHIPPED = (
    "stdlib",
    "shakespeare",
    "shakespeare_char",
)  # which prepare themselves; no other folder's code is ever run


@dataclass
class Dataset:
    name: str
    """As in data/, or of a folder elsewhere the whole path."""
    train: "np.ndarray | Tokens"
    """Token ids, mapped from disk."""
    val: "np.ndarray | Tokens"
    tokenizer: tokenizer.Tokenizer
    hashes: dict
    """sha256 of train and val (None if it was not computed): losses compare only if they are the same."""
    tokens_per_character: float | None
    """In the validation text, to convert nats per token into bits per character; None where it was not counted."""

    def bits_per_character(self, loss):
        """A loss in nats per token, comparable between tokenizers; None where the characters were not counted."""
        return (
            None
            if self.tokens_per_character is None
            else loss * self.tokens_per_character / math.log(2)
        )


class Tokens:
    """Shards as one sequence of ids, indexed by a slice or an array of positions; what is read is checked, and no more."""

    def __init__(self, shards, vocab_size, folder):
        self.shards, self.vocab_size, self.folder = shards, vocab_size, folder
        self.ends = np.cumsum([len(shard) for shard in shards])
        self.dtype = shards[0].dtype

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, index):
        """ValueError for an id that is not in the vocabulary, before it is looked up in an embedding."""
        index = (
            np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.asarray(index)
        )
        index = np.where(index < 0, index + len(self), index)
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(f"there are {len(self):,} tokens")
        which, found = (
            np.searchsorted(self.ends, index, side="right"),
            np.empty(index.shape, self.dtype),
        )
        for n in np.flatnonzero(np.bincount(which.ravel())):
            here, shard = which == n, self.shards[n]
            found[here] = shard[index[here] - (self.ends[n] - len(shard))]
        if (largest := found.max(initial=0)) >= self.vocab_size:
            raise ValueError(
                f"{self.folder} has token id {largest}; the vocabulary has {self.vocab_size}: prepare it again"
            )
        return found


def files_of(folder, split):
    """The files of a split, in order; none if it is not there."""
    return (
        [path]
        if (path := folder / f"{split}.bin").is_file()
        else sorted(folder.glob(f"{split}_{'[0-9]' * 6}.bin"))
    )


def find_dataset(name):
    """The folder of a dataset, data/<name> or a folder elsewhere, and whether it was prepared just now, as ours can be."""
    folder = DATA / name
    if not folder.is_dir() and Path(name).is_dir():
        folder = Path(name)
    if all(files_of(folder, split) for split in SPLITS) and (
        name not in SHIPPED or (folder / "meta.json").is_file()
    ):
        return folder, False
    if name not in SHIPPED:
        if Path(name).is_file():
            prepare = shell_path(DATA / "text" / "prepare.py")
            raise ValueError(
                f"dataset {name} is a text: python {prepare} --input {shell_quote(name)} --name mine, and then "
                "--dataset=mine"
            )
        if folder.parent == DATA and (folder / "prepare.py").exists():
            raise ValueError(
                f"dataset {name} is not prepared yet: python {shell_path(folder / 'prepare.py')}"
            )
        known = sorted({*SHIPPED, *(path.parent.name for path in DATA.glob("*/meta.json"))})
        if checkpoint.list_checkpoints(name):
            raise ValueError(
                f"dataset {name} is the folder of a run, which is given as --out_dir: which text is it to read?"
            )
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}"
        raise ValueError(
            f"dataset {name!r} has no train.bin and val.bin, and is none of ours that could be prepared: {hint}"
        )
    print(f"preparing dataset {name}, once")
    result = subprocess.run([sys.executable, str(folder / "prepare.py")])
    if result.returncode:  # it has printed why, in one line
        sys.exit(result.returncode)
    return folder, True


def load_dataset(name, block_size, data_tokenizer="", verify="auto"):
    """The Dataset called name, checked: whole, every id within the vocabulary, longer than block_size.

    data_tokenizer: gpt2 for a folder without meta.json, as nanoGPT makes them. verify: whether to compare all files with
    their sha256; auto: a split where that takes less than a second. Of a larger one nothing is read before it is used, and
    its ids are checked as they are drawn. ValueError for what is damaged, missing or too short.
    """
    folder, prepared = find_dataset(name)
    if (folder / "meta.json").exists():
        try:
            meta = read_json(folder / "meta.json")
            if meta.pop("sha256", None) not in (
                None,
                meta_digest(meta),
            ):  # earlier versions wrote none
                raise ValueError("its sha256 is not its own")
            encoding, dtype = tokenizer.tokenizer_from_spec(meta["tokenizer"]), meta["dtype"]
            hashes = {name: meta[name]["sha256"] for name in SPLITS}
            shards = {
                name: meta[name].get("shards", [meta[name]]) for name in SPLITS
            }  # earlier versions had only one
            sizes = {name: [shard["tokens"] for shard in shards[name]] for name in SPLITS}
            counts = [
                *sizes["train"],
                *sizes["val"],
                meta["train"]["tokens"],
                meta["val"]["tokens"],
                meta["val"]["characters"],
            ]
            if not all(type(count) is int and 0 < count < 2**62 for count in counts):
                raise ValueError("its counts are not those of a text")
            if any(sum(sizes[name]) != meta[name]["tokens"] for name in SPLITS):
                raise ValueError("its shards are not the whole")
            if dtype not in ("uint16", "uint32") or meta["vocab_size"] != encoding.vocab_size:
                raise KeyError(f"dtype {dtype}, vocab_size {meta['vocab_size']}")
            tokens_per_character = meta["val"]["tokens"] / meta["val"]["characters"]
        except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise ValueError(
                f"{folder / 'meta.json'} is damaged ({error!r}): prepare the dataset again"
            ) from None
    elif (folder / "meta.pkl").exists():
        raise ValueError(
            f"{folder} has a meta.pkl and no meta.json: a pickle can run any code, so it is never read; "
            "prepare the dataset again, or delete meta.pkl if the ids are GPT-2's"
        )
    elif data_tokenizer != "gpt2":
        raise ValueError(
            f"{folder} has no meta.json: its preparation was interrupted, so prepare it again; or if nanoGPT made "
            "it, with GPT-2's tokens, say so by --data_tokenizer=gpt2"
        )
    else:
        dtype, tokens_per_character, encoding = "uint16", None, tokenizer.create_tokenizer("gpt2")
        shards = {
            name: [{"tokens": path.stat().st_size // 2} for path in files_of(folder, name)]
            for name in SPLITS
        }
        hashes = {"train": None, "val": sha256_of_file(folder / "val.bin")}
    paths = {
        split: [folder / file for file in shard_names(split, len(shards[split]))]
        for split in SPLITS
    }
    if missing := [path for split in SPLITS for path in paths[split] if not path.is_file()]:
        raise ValueError(f"{missing[0]} is missing: prepare the dataset again")
    width, splits = np.dtype(dtype).itemsize, {}
    for split in SPLITS:
        small = sum(path.stat().st_size for path in paths[split]) < SMALL
        compare = prepared or (small if verify == "auto" else verify)
        for path, shard in zip(paths[split], shards[split]):
            size, expected = path.stat().st_size, shard["tokens"]
            if size != expected * width:
                raise ValueError(
                    f"{path} has {size:,} bytes, not {width} for each of {expected:,} tokens: prepare it again"
                )
        if (tokens := sum(shard["tokens"] for shard in shards[split])) <= block_size:
            raise ValueError(
                f"{paths[split][0]} has {tokens:,} tokens, but block_size={block_size} needs at least "
                f"{block_size + 1:,}: use more text or a smaller block_size"
            )
        mapped = [
            np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")
            for path in paths[split]
        ]
        for path, shard, ids in (
            zip(paths[split], shards[split], mapped) if small or compare else ()
        ):
            if (largest := int(ids.max())) >= encoding.vocab_size:
                raise ValueError(
                    f"{path} has token id {largest}; the vocabulary has {encoding.vocab_size}: prepare it again"
                )
            if compare and shard.get("sha256") not in (None, sha256_of_file(path)):
                raise ValueError(
                    f"{path} is damaged (its sha256 is not the one in meta.json): prepare it again"
                )
        splits[split] = (
            mapped[0] if small and len(mapped) == 1 else Tokens(mapped, encoding.vocab_size, folder)
        )
    name = name if folder.parent == DATA else str(folder.resolve())
    return Dataset(
        name, **splits, tokenizer=encoding, hashes=hashes, tokens_per_character=tokens_per_character
    )


def random_batch(tokens, batch_size, block_size, rng):
    """batch_size windows chosen by rng: inputs and targets (batch_size, block_size) int64, targets one token later."""
    starts = rng.integers(len(tokens) - block_size, size=(batch_size, 1))
    windows = torch.from_numpy(tokens[starts + np.arange(block_size + 1)].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


def sequential_batches(tokens, batch_size, block_size, stride=0):
    """All tokens, in order, as batches of inputs and targets: each but the first is a target once; -1 where there is none.

    stride: how many tokens one window begins after the other. Less than block_size (or 0, which stands for it) lets them
    overlap, so that each target but the first ones has block_size - stride tokens before it, or more.
    """
    stride = stride or block_size
    starts = range(0, max(1, len(tokens) - 1 - block_size + stride), stride)
    for first in range(0, len(starts), batch_size):
        inputs, targets = (
            np.zeros((batch_size, block_size), np.int64),
            np.full((batch_size, block_size), -1),
        )
        for row, start in enumerate(starts[first : first + batch_size]):
            span = tokens[start : start + block_size + 1].astype(np.int64)
            known = block_size - stride if start else 0  # targets of the window before
            inputs[row, : len(span) - 1], targets[row, known : len(span) - 1] = (
                span[:-1],
                span[known + 1 :],
            )
        yield torch.from_numpy(inputs), torch.from_numpy(targets)
