"""Token files: one writer for every dataset; read as batches that depend on a seed and nothing else.

A dataset is a folder with train.bin and val.bin, little-endian uint16 or uint32 ids, and meta.json, which says which,
names and hashes the source text, carries the whole tokenizer, and has the counts and hashes of everything. Without it, the
files are nanoGPT's, with GPT-2's ids, if the user says so; or a preparation has been interrupted.
"""

import difflib
import itertools
import json
import math
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from engine import checkpoint, configure, tokenizer
from engine.files import held, here, partial, publish, quoted, read_json, remove, sha256_of, sha256_of_file, sync

DATA = Path(__file__).parents[1] / "data"
SHIPPED = "stdlib", "shakespeare", "shakespeare_char"  # which prepare themselves; no other folder's code is ever run
FILES = "train.bin", "val.bin", "meta.json"
SMALL = 2**28  # bytes that are hashed in less than a second

# ---- Writing

def read_text(path):
    """A UTF-8 file as text, line ends as they are; ValueError says where it is not UTF-8."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        wrong = text.find("\0")  # as in UTF-16
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        raise ValueError(f"{path} is not UTF-8 text (offset {wrong}): convert it first")
    return text


def download(url, sha256, path):
    """The file at url, kept at path; ValueError if it cannot be downloaded or has another sha256."""
    if not path.exists():
        remedy = f"get the file another way, then python {here(path.parent / 'prepare.py')} --input FILE"
        print(f"downloading {url}")
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                content = response.read()
        except OSError as error:
            raise ValueError(f"cannot download {url} ({getattr(error, 'reason', error)}): {remedy}") from None
        if sha256_of([content]) != sha256:
            raise ValueError(f"{url} is not the expected file (its sha256 differs): {remedy}")
        publish(path, content)
    return path


@dataclass
class DownloadSettings:
    input: Path | None = None
    """The text, if you have it already; otherwise it is downloaded, and its sha256 is checked."""


def prepare_download(folder, tokenizer_name, url, sha256):
    """The whole of a prepare.py for a text that is one file on the web: [--input FILE]. The last tenth is for validation."""
    path = configure.parse(DownloadSettings, sys.argv[1:]).input or download(url, sha256, folder / "input.txt")
    text = read_text(path)
    end = int(len(text) * 0.9)  # as nanoGPT cuts it
    write(folder, [text[:end]], tokenizer_name, path.name, val=[text[end:]])


def spread_tenth(documents):
    """(train, val): about a tenth of the characters is for validation, spread over the text, since its end may be unlike it.

    Whole documents if there are at least twenty and none is longer than a tenth of all; else the last tenth of each of ten
    parts, cut at line ends.
    """
    train, val, total, chosen = [], [], 0, 0
    for document in documents:
        total += len(document)
        if chosen + len(document) / 2 <= total / 10:
            val.append(document)
            chosen += len(document)
        else:
            train.append(document)
    if len(documents) >= 20 and max(map(len, documents)) <= total / 10 and 0.05 < chosen / total < 0.15:
        return train, val
    size, train, val = max(1, total // 10), [], []
    for document in documents:
        def line_end(position):  # if it is near
            return document.find("\n", position, position + size // 20) + 1 or position

        starts = [0, *(line_end(start) for start in range(size, len(document), size)), len(document)]
        cuts = [line_end(end - (end - start) // 10) for start, end in zip(starts, starts[1:])]
        train.append("".join(document[start:cut] for start, cut in zip(starts, cuts)))
        val.append("".join(document[cut:end] for cut, end in zip(cuts, starts[1:])))
    return [text for text in train if text], [text for text in val if text]


def pieces(text, size=1 << 20):
    """Cut text into pieces of about size characters, at line ends between words, which no token crosses."""
    start = 0
    while start < len(text):
        end = start + size
        while (end := text.find("\n", end)) >= 0 and (text[end - 1].isspace() or text[end + 1 : end + 2].isspace()):
            end += 1
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


def write(folder, documents, tokenizer_name, source, val=None, names=None):
    """Tokenize documents (a list of str) into folder: train.bin, val.bin, and last meta.json. source: where they come from.

    val: documents for validation; None: about a tenth of documents. They are separated by the tokenizer's end-of-text id,
    or else by a newline. names: of the documents and those for validation, for the error if one cannot be encoded.
    """
    folder = Path(folder)
    if isinstance(documents, str) or isinstance(val, str):
        raise ValueError("documents and val are lists of texts: [text] for a single one")
    documents, val = [*documents], val and [*val]
    if not all(isinstance(document, str) for document in [*documents, *(val or ())]):
        raise ValueError("documents and val are lists of texts (str)")
    if checkpoint.every(tokenizer_name) or Path(tokenizer_name, "manifest.json").exists():  # of a run
        encoding = checkpoint.load_tokenizer(checkpoint.find(tokenizer_name))
        for name, document in zip(names or itertools.repeat(source), [*documents, *(val or ())]):
            check_characters(encoding, document, name)
    else:
        encoding = None
    documents = [*filter(None, documents)]
    train, val = (documents, [*filter(None, val)]) if val else spread_tenth(documents)
    if both := {*train} & {*val}:
        print(f"note: {len(both)} of the documents are for training and for validation")
    documents = [*train, *val]
    text_size = sum(map(len, documents))
    if not (sum(map(len, train)) and sum(map(len, val))):
        raise ValueError(f"there is no text in {source}, or too little to split")
    share = sum(map(len, val)) / text_size
    if not 0.02 < share < 0.3:
        print(f"note: the validation split has {share:.1%} of the characters; about a tenth is usual")
    several = len(train) > 1 or len(val) > 1
    encoding = encoding or tokenizer.create(tokenizer_name, ("\n" if several else "").join(documents))
    separator = encoding.encode("\n" if several else "") if encoding.end_of_text is None else [encoding.end_of_text]
    dtype = "uint16" if encoding.vocab_size <= 1 << 16 else "uint32"
    on_disk = np.dtype(dtype).newbyteorder("<")
    meta = {"dtype": dtype, "vocab_size": encoding.vocab_size, "tokenizer": encoding.spec()}
    meta["source"] = {"name": source, "sha256": sha256_of(document.encode("utf-8") for document in documents)}
    how = dict(total=text_size, unit="char", unit_scale=True, desc=f"preparing {folder.name}", leave=False)
    with held(folder), tqdm(**how) as bar:
        remove(folder / "new")
        with partial(folder / "new") as unfinished:
            unfinished.mkdir()
            for name, part in (("train", train), ("val", val)):
                tokens = 0
                with open(unfinished / f"{name}.bin", "wb") as file:
                    for n, document in enumerate(part):
                        for piece in pieces(document):
                            tokens += file.write(encoding.encode(piece).astype(on_disk))
                            bar.update(len(piece))
                        if n < len(part) - 1:
                            tokens += file.write(np.array(separator, on_disk))
                meta[name] = {"tokens": tokens // on_disk.itemsize, "characters": sum(map(len, part)) + len(part) - 1}
                meta[name]["sha256"] = sha256_of_file(unfinished / f"{name}.bin")
            (unfinished / "meta.json").write_bytes(json.dumps(meta | {"sha256": seal(meta)}, indent=1).encode())
        remove(folder / "meta.json")  # so that an interruption cannot leave it beside files that it does not describe
        for name in FILES:
            os.replace(folder / "new" / name, folder / name)
        remove(folder / "new")
        sync(folder)
    counts = ", ".join(f"{name} {meta[name]['tokens']:,}" for name in ("train", "val"))
    print(f"{folder.name}: {text_size:,} characters as {tokenizer_name} tokens ({counts}; vocabulary {encoding.vocab_size:,})")


def check_characters(encoding, text, name):
    """ValueError that names the text and its first character that a tokenizer of characters lacks."""
    if encoding.spec()["kind"] == "char":
        try:
            encoding.encode(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def seal(meta):
    """The sha256 of everything else in meta.json, since another character in a tokenizer is another tokenizer."""
    return sha256_of([json.dumps(meta, sort_keys=True).encode()])


# ---- Reading

@dataclass
class Dataset:
    name: str
    """As in data/, or of a folder elsewhere the whole path."""
    train: np.ndarray
    """Token ids, mapped from disk."""
    val: np.ndarray
    tokenizer: tokenizer.Tokenizer
    hashes: dict
    """sha256 of train.bin (None if it was not computed) and val.bin: losses compare only if they are the same."""
    tokens_per_character: float | None
    """In the validation text, to convert nats per token into bits per character; None where it was not counted."""

    def bits_per_character(self, loss):
        """A loss in nats per token, comparable between tokenizers; None where the characters were not counted."""
        return None if self.tokens_per_character is None else loss * self.tokens_per_character / math.log(2)


def find(name):
    """The folder of a dataset, data/<name> or a folder elsewhere, and whether it was prepared just now, as ours can be."""
    folder = DATA / name
    if not folder.is_dir() and Path(name).is_dir():
        folder = Path(name)
    if all((folder / file).is_file() for file in (FILES if name in SHIPPED else FILES[:2])):
        return folder, False
    if name not in SHIPPED:
        if Path(name).is_file():
            prepare = here(DATA / "text" / "prepare.py")
            raise ValueError(f"dataset {name} is a text: python {prepare} --input {quoted(name)} --name mine, and then "
                             "--dataset=mine")
        if folder.parent == DATA and (folder / "prepare.py").exists():
            raise ValueError(f"dataset {name} is not prepared yet: python {here(folder / 'prepare.py')}")
        known = sorted({*SHIPPED, *(path.parent.name for path in DATA.glob("*/meta.json"))})
        if checkpoint.every(name):
            raise ValueError(f"dataset {name} is the folder of a run, which is given as --out_dir: which text is it to read?")
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}"
        raise ValueError(f"dataset {name!r} has no train.bin and val.bin, and is none of ours that could be prepared: {hint}")
    print(f"preparing dataset {name}, once")
    result = subprocess.run([sys.executable, str(folder / "prepare.py")])
    if result.returncode:  # it has printed why, in one line
        sys.exit(result.returncode)
    return folder, True


def load(name, block_size, data_tokenizer="", verify="auto"):
    """The Dataset called name, checked: whole, every id within the vocabulary, longer than block_size.

    data_tokenizer: gpt2 for a folder without meta.json, as nanoGPT makes them. verify: whether to compare the files with
    their sha256; auto: if that takes less than a second. ValueError for what is damaged, missing or too short.
    """
    folder, prepared = find(name)
    if (folder / "meta.json").exists():
        try:
            meta = read_json(folder / "meta.json")
            if meta.pop("sha256", None) not in (None, seal(meta)):  # earlier versions wrote none
                raise ValueError("its sha256 is not its own")
            encoding, dtype = tokenizer.from_spec(meta["tokenizer"]), meta["dtype"]
            hashes = {name: meta[name]["sha256"] for name in ("train", "val")}
            counts = meta["train"]["tokens"], meta["val"]["tokens"], meta["val"]["characters"]
            if not all(type(count) is int and 0 < count < 2**62 for count in counts):
                raise ValueError("its counts are not those of a text")
            if dtype not in ("uint16", "uint32") or meta["vocab_size"] != encoding.vocab_size:
                raise KeyError(f"dtype {dtype}, vocab_size {meta['vocab_size']}")
            tokens_per_character = meta["val"]["tokens"] / meta["val"]["characters"]
        except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise ValueError(f"{folder / 'meta.json'} is damaged ({error!r}): prepare the dataset again") from None
    elif (folder / "meta.pkl").exists():
        raise ValueError(f"{folder} has a meta.pkl and no meta.json: a pickle can run any code, so it is never read; "
                         "prepare the dataset again, or delete meta.pkl if the ids are GPT-2's")
    elif data_tokenizer != "gpt2":
        raise ValueError(f"{folder} has no meta.json: its preparation was interrupted, so prepare it again; or if nanoGPT made "
                         "it, with GPT-2's tokens, say so by --data_tokenizer=gpt2")
    else:
        meta, dtype, tokens_per_character = {}, "uint16", None
        encoding, hashes = tokenizer.create("gpt2"), {"train": None, "val": sha256_of_file(folder / "val.bin")}
    splits, sizes = {}, sum((folder / file).stat().st_size for file in FILES[:2])
    verify = prepared or (sizes < SMALL if verify == "auto" else verify)
    for split_name in ("train", "val"):
        path = folder / f"{split_name}.bin"
        size, width = path.stat().st_size, np.dtype(dtype).itemsize
        expected = meta.get(split_name, {}).get("tokens", size // width)
        if size % width or size // width != expected:
            raise ValueError(f"{path} has {size:,} bytes, not {width} for each of {expected:,} tokens: prepare it again")
        if size // width <= block_size:
            raise ValueError(f"{path} has {size // width:,} tokens, but block_size={block_size} needs at least "
                             f"{block_size + 1:,}: use more text or a smaller block_size")
        splits[split_name] = tokens = np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")
        if (largest := int(tokens.max())) >= encoding.vocab_size:
            raise ValueError(f"{path} has token id {largest}, but the vocabulary has {encoding.vocab_size}: prepare it again")
        if verify and hashes[split_name] not in (None, sha256_of_file(path)):
            raise ValueError(f"{path} is damaged (its sha256 is not the one in meta.json): prepare it again")
    name = name if folder.parent == DATA else str(folder.resolve())
    return Dataset(name, **splits, tokenizer=encoding, hashes=hashes, tokens_per_character=tokens_per_character)


def random_batch(tokens, batch_size, block_size, rng):
    """batch_size windows chosen by rng: inputs and targets (batch_size, block_size) int64, targets one token later."""
    starts = rng.integers(len(tokens) - block_size, size=(batch_size, 1))
    windows = torch.from_numpy(tokens[starts + np.arange(block_size + 1)].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


def every_batch(tokens, batch_size, block_size):
    """All tokens, in order, as batches of inputs and targets: each but the first is a target once; -1 pads the last batch."""
    size = batch_size * block_size
    for start in range(0, len(tokens) - 1, size):
        span = tokens[start : start + size + 1].astype(np.int64)
        inputs, targets = np.zeros(size, np.int64), np.full(size, -1)
        inputs[: len(span) - 1], targets[: len(span) - 1] = span[:-1], span[1:]
        yield tuple(torch.from_numpy(part.reshape(batch_size, block_size)) for part in (inputs, targets))
