"""Documents to token files: one writer for every dataset, by several processes.

A dataset is a folder with train.bin and val.bin, or shards of them, train_000000.bin and so on: little-endian uint16 or
uint32 ids, documents separated by the tokenizer's end-of-text id or else a newline. meta.json says which, carries the whole
tokenizer, and has the counts and hashes of everything. Everything is written to <folder>/new and moved when it is complete.
write() takes documents that fit into memory; streams.py has what takes any number of files.
"""

import itertools
import json
import os
from collections import deque
from pathlib import Path

import numpy as np
from tqdm import tqdm

from engine.common import workers
from engine.common.files import (
    DamagedFile,
    atomic_path,
    atomic_write,
    folder_lock,
    fsync_path,
    read_json,
    remove_path,
    sha256_of,
    sha256_of_file,
    write_error,
)
from engine.text import tokenizer

DATA = Path(__file__).parents[2] / "data"
SPLITS = "train", "val"
SMALL = 2**28  # bytes that are hashed, or tokenized, in no time
SHARD = 2**27  # tokens in a file, at most
BATCH = 2**18  # characters that are encoded at a time, which keeps memory small and processes busy
ALONE = 8  # batches that are encoded before it pays to start processes

# ---- Splitting


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
    if (
        len(documents) >= 20
        and max(map(len, documents)) <= total / 10
        and 0.05 < chosen / total < 0.15
    ):
        return train, val
    size, train, val = max(1, total // 10), [], []
    for document in documents:

        def line_end(position):  # if it is near
            return document.find("\n", position, position + size // 20) + 1 or position

        starts = [
            0,
            *(line_end(start) for start in range(size, len(document), size)),
            len(document),
        ]
        cuts = [line_end(end - (end - start) // 10) for start, end in zip(starts, starts[1:])]
        train.append("".join(document[start:cut] for start, cut in zip(starts, cuts)))
        val.append("".join(document[cut:end] for cut, end in zip(cuts, starts[1:])))
    return [text for text in train if text], [text for text in val if text]


def pieces(text, size=1 << 20):
    """Cut text into pieces of about size characters, at line ends between words, which no token crosses."""
    start = 0
    while start < len(text):
        end = start + size
        while (end := text.find("\n", end)) >= 0 and (
            text[end - 1].isspace() or text[end + 1 : end + 2].isspace()
        ):
            end += 1
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


# ---- Writing


class Split:
    """The tokens of one split, which are added to the shards name_000000.bin, ... in folder; state is all it takes to go on."""

    def __init__(self, folder, name, dtype, tokens=0, characters=0, documents=0, hashes=()):
        self.folder, self.name, self.dtype = folder, name, np.dtype(dtype).newbyteorder("<")
        self.tokens, self.characters, self.documents, self.hashes = (
            tokens,
            characters,
            documents,
            [*hashes],
        )
        self.file = None
        for path in sorted(folder.glob(f"{name}_*.bin"))[-(-tokens // SHARD) :]:
            remove_path(path)  # what came after the state was noted
        for number in range(-(-tokens // SHARD)):
            size = min(SHARD, tokens - number * SHARD) * self.dtype.itemsize
            if not self.path(number).is_file() or self.path(number).stat().st_size < size:
                raise DamagedFile(f"{self.path(number)} is not whole")
            os.truncate(self.path(number), size)

    @property
    def state(self):
        return {
            name: getattr(self, name) for name in ("tokens", "characters", "documents", "hashes")
        }

    def path(self, number):
        return self.folder / f"{self.name}_{number:06}.bin"

    def append(self, ids):
        """Write ids, and finish each shard that they fill."""
        while len(ids):
            number, there = divmod(self.tokens, SHARD)
            try:
                self.file = self.file or open(self.path(number), "ab")
                self.file.write(ids[: SHARD - there].astype(self.dtype).data)
            except OSError as error:
                raise write_error(self.path(number), error) from error
            self.tokens += len(ids[: SHARD - there])
            ids = ids[SHARD - there :]
            if self.tokens % SHARD == 0:
                self.close()
                self.hashes.append(sha256_of_file(self.path(number)))

    def close(self):
        """Wait until all of it is on the disk."""
        if self.file:
            self.file.close()
            fsync_path(Path(self.file.name))
            self.file = None

    def finish(self):
        """Its entry in meta.json. With several shards, its sha256 is that of theirs."""
        self.close()
        hashes = [
            *self.hashes,
            *([sha256_of_file(self.path(len(self.hashes)))] if self.tokens % SHARD else []),
        ]
        sizes = [min(SHARD, self.tokens - start) for start in range(0, self.tokens, SHARD)]
        shards = [{"tokens": tokens, "sha256": sha256} for tokens, sha256 in zip(sizes, hashes)]
        whole = hashes[0] if len(hashes) == 1 else sha256_of(sha256.encode() for sha256 in hashes)
        characters = self.characters + self.documents - 1  # a separator counts as one
        return {"tokens": self.tokens, "characters": characters, "sha256": whole, "shards": shards}


def shard_names(split, count):
    """The names of a split's files in a dataset."""
    return (
        [f"{split}.bin"] if count == 1 else [f"{split}_{number:06}.bin" for number in range(count)]
    )


def batches(documents, cut=True):
    """(split, text, mark) of documents -> lists of (split, begins, text) of about BATCH characters, and the last one's mark.

    The mark is None where a document goes on in the next list. cut: whether documents may be cut between lines.
    """
    batch, size, mark = [], 0, None
    for split, text, mark in documents:
        left = len(text)
        for piece in pieces(text, BATCH) if cut else [text]:
            batch.append((split, left == len(text), piece))
            left, size = left - len(piece), size + len(piece)
            if size >= BATCH:
                yield batch, None if left else mark
                batch, size = [], 0
    if batch:
        yield batch, mark


def encoded(encoding, separator, batch):
    """{split: ids} of a list of (split, begins, text)."""
    found = {}
    for name, begins, text in batch:
        try:
            ids = encoding.encode(text)
        except ValueError as error:  # as tiktoken has for a million spaces before a word
            raise ValueError(
                f"the text that begins with {text[:40]!r} cannot be encoded: {error}"
            ) from None
        if (
            largest := ids.max(initial=0)
        ) >= encoding.vocab_size:  # so that reading need not look at all of them
            raise ValueError(
                f"the tokenizer gives id {largest}, but has only {encoding.vocab_size}"
            )
        found.setdefault(name, []).extend([separator, ids] if begins else [ids])
    dtype = np.uint16 if encoding.vocab_size <= 1 << 16 else np.uint32  # half as much to copy
    return {
        name: np.concatenate(parts, dtype=dtype, casting="unsafe") for name, parts in found.items()
    }


WORKER = []  # in a worker process: the tokenizer, and the ids between documents


def start_worker(spec, separator):
    """Load the tokenizer, in a worker process."""
    WORKER[:] = tokenizer.tokenizer_from_spec(spec), separator


def work(batch):
    return encoded(*WORKER, batch)


def in_order(items, encoding, separator):
    """((batch, mark), encoded batch) of all items (batch, mark), in their order, by as many processes as there are cores.

    Threads would do without copies, but two of tiktoken's are hardly faster than one. Where encoding is as fast as copying,
    or the text is small, no process starts.
    """
    cores = workers.cores()
    fast, items = (
        isinstance(encoding, tokenizer.ByteTokenizer | tokenizer.CharTokenizer),
        iter(items),
    )
    first = [] if fast or cores == 1 else [*itertools.islice(items, ALONE + 1)]
    if len(first) <= ALONE:
        for item in itertools.chain(first, items):
            yield item, encoded(encoding, separator, item[0])
        return
    started, waiting = [], deque()
    with workers.Pool(cores) as pool:
        for _ in range(cores):
            pool.submit(start_worker, encoding.spec(), separator).add_done_callback(started.append)
        for item in itertools.chain(first, items):
            if len(started) < cores:  # which takes half a second
                yield item, encoded(encoding, separator, item[0])
                continue
            for future in started:
                future.result()  # raises what start_worker raised
            waiting.append((item, pool.submit(work, item[0])))
            if len(waiting) > 2 * cores:
                item, future = waiting.popleft()
                yield item, future.result()
        while waiting:
            item, future = waiting.popleft()
            yield item, future.result()


def tokenize(documents, encoding, splits, separator):
    """Append documents (split, text, mark) to splits, a dict of Split; yields (characters, mark) after each batch of them."""
    separator = np.asarray(separator, np.uint32)
    for (batch, mark), found in in_order(
        batches(documents, encoding.by_lines), encoding, separator
    ):
        for name, ids in found.items():
            splits[name].append(ids if splits[name].tokens else ids[len(separator) :])
        for name, begins, text in batch:
            splits[name].documents += begins
            splits[name].characters += len(text)
        yield sum(len(text) for *_, text in batch), mark


def meta_digest(meta):
    """The sha256 of everything else in meta.json, since another character in a tokenizer is another tokenizer."""
    return sha256_of([json.dumps(meta, sort_keys=True).encode()])


def about(encoding):
    """What meta.json says first."""
    dtype = "uint16" if encoding.vocab_size <= 1 << 16 else "uint32"
    return {"dtype": dtype, "vocab_size": encoding.vocab_size, "tokenizer": encoding.spec()}


def finish(new, meta, splits):
    """Complete what is in new by its meta.json."""
    meta |= {name: split.finish() for name, split in splits.items()}
    atomic_write(
        new / "meta.json", json.dumps(meta | {"sha256": meta_digest(meta)}, indent=1).encode()
    )


def publish_dataset(folder):
    """Move what is complete in folder/new to folder, meta.json last; if that is interrupted, it can be done again."""
    meta, names = read_json(folder / "new" / "meta.json"), {}
    for split in SPLITS:
        for number, name in enumerate(shard_names(split, len(meta[split]["shards"]))):
            names[name] = folder / "new" / f"{split}_{number:06}.bin"
    remove_path(
        folder / "meta.json"
    )  # so that an interruption cannot leave it beside files that it does not describe
    for name, path in names.items():
        if path.exists():
            os.replace(path, folder / name)
    for split in SPLITS:
        for path in (folder / f"{split}.bin", *folder.glob(f"{split}_{'[0-9]' * 6}.bin")):
            if path.name not in names:
                remove_path(path)
    os.replace(folder / "new" / "meta.json", folder / "meta.json")
    remove_path(folder / "new")
    fsync_path(folder)
    counts = ", ".join(f"{split} {meta[split]['tokens']:,}" for split in SPLITS)
    return f"tokens ({counts}; vocabulary {meta['vocab_size']:,})"


def write_dataset(folder, documents, tokenizer_name, source, val=None, names=None):
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
    if encoding := tokenizer_of_folder(tokenizer_name):
        for name, document in zip(names or itertools.repeat(source), [*documents, *(val or ())]):
            check_characters(encoding, document, name)
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
        print(
            f"note: the validation split has {share:.1%} of the characters; about a tenth is usual"
        )
    several = "\n" if len(train) > 1 or len(val) > 1 else ""
    encoding = encoding or tokenizer.create_tokenizer(tokenizer_name, [*documents, several])
    meta = about(encoding)
    meta["source"] = {
        "name": source,
        "sha256": sha256_of(document.encode("utf-8") for document in documents),
    }
    how = dict(
        total=text_size, unit="char", unit_scale=True, desc=f"preparing {folder.name}", leave=False
    )
    with folder_lock(folder), tqdm(**how) as bar:
        remove_path(folder / "new")
        with atomic_path(folder / "new") as unfinished:
            unfinished.mkdir()
            splits = {name: Split(unfinished, name, meta["dtype"]) for name in SPLITS}
            labelled = (
                (name, text, None) for name, part in zip(SPLITS, (train, val)) for text in part
            )
            for characters, _ in tokenize(
                labelled, encoding, splits, separator_of(encoding, several)
            ):
                bar.update(characters)
            finish(unfinished, meta, splits)
        counts = publish_dataset(folder)
    print(f"{folder.name}: {text_size:,} characters as {tokenizer_name} {counts}")


def tokenizer_of_folder(name):
    """The tokenizer in the folder of a run, or of a published model; None if name is neither."""
    if not Path(name).is_dir():
        return None
    from engine.weights import checkpoint, pretrained  # which need torch, as little else here does

    if checkpoint.list_checkpoints(name) or Path(name, "manifest.json").exists():
        return checkpoint.load_tokenizer(checkpoint.find_checkpoint(name))
    if Path(name, "tokenizer.json").exists():
        return pretrained.published_tokenizer(Path(name))


def separator_of(encoding, newline="\n"):
    return encoding.encode(newline) if encoding.end_of_text is None else [encoding.end_of_text]


def check_characters(encoding, text, name):
    """ValueError that names the text and its first character that a tokenizer of characters lacks."""
    if isinstance(encoding, tokenizer.CharTokenizer):
        try:
            encoding.encode(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
