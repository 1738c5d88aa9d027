"""Documents to token files.

A dataset is a folder with train.bin and val.bin: little-endian uint16 or uint32 ids, documents
separated by the tokenizer's end-of-text id or else a newline. meta.json has the whole tokenizer,
and the counts and hashes of the files. write_dataset() takes documents that fit into memory;
sources.py has the rest.
"""

import codecs
import collections
import contextlib
import io
import json
import re
import sys
import zlib
from pathlib import Path

import numpy as np
from tqdm import tqdm

from engine.files import (
    atomic_path,
    atomic_write,
    folder_lock,
    remove_path,
    sha256_of,
    sha256_of_file,
    sha256_of_json,
)
from engine.tokenizer import create_tokenizer

DATA = Path(__file__).parents[1] / "data"
SPLITS = "train", "val"
# Bytes: a smaller text is prepared in memory, and a smaller file is verified when it is loaded.
SMALL = 2**28
# Of conversations, train.mask.bin and val.mask.bin say what a token is: one byte for each.
MASKS = "train.mask", "val.mask"
READ, LEARNED, BEGINS = 0, 1, 2
BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Lines of this many characters are compared between the splits: by hashes, this many at most.
LINE = 20
LINES = 2**20
DEFAULT_RUN = 900 * 8 * 128  # steps, sequences and context of train.py's own settings, in tokens


def read_sections(path, encoding="utf-8", size=-1):
    """Yield the text of a file, or for - of the standard input; line ends stay as they are.

    encoding: of a file without a BOM, which says it. size: characters of a section, to the end of
    its line; -1: all in one. ValueError for what is no text.
    """
    with sys.stdin.buffer if str(path) == "-" else open(path, "rb") as file:
        begin = file.peek(3)
        encoding = next((BOMS[bom] for bom in BOMS if begin.startswith(bom)), encoding)
        try:
            text = io.TextIOWrapper(file, encoding, newline="")
            while section := text.read(size):
                section += text.readline()
                if "\0" in section:
                    raise ValueError("it has a zero byte")
                yield section
        except (ValueError, LookupError) as error:  # UnicodeDecodeError, and no such encoding
            reason = getattr(error, "reason", error)
            raise ValueError(f"{path} is not {encoding.upper()} text: {reason}") from None


def read_text(path, encoding="utf-8"):
    """Return what read_sections yields as one text."""
    return "".join(read_sections(path, encoding))


def check_name(name):
    """ValueError for a name under which no dataset of one's own can stand in data/."""
    if (DATA / name / "prepare.py").exists() or not re.fullmatch(r"\w[\w. -]*", name):
        raise ValueError(f"--name={name} must be a folder's name, and no included dataset's")


# ---- Splitting


def split_documents(documents):
    """Return (train, val), two lists of texts: about a tenth of the characters is for validation.

    Whole documents if there are at least twenty and none is longer than a tenth of all; else the
    last tenth of each.
    """
    train = []
    val = []
    total = 0
    chosen = 0
    for document in documents:
        total += len(document)
        if chosen + len(document) / 2 <= total / 10:
            val.append(document)
            chosen += len(document)
        else:
            train.append(document)
    if len(documents) >= 20 and max(map(len, documents)) <= total / 10:
        return train, val
    train = []
    val = []
    for document in documents:
        end = len(document) * 9 // 10
        end = document.find("\n", end, len(document) * 19 // 20) + 1 or end  # of a line, if near
        train.append(document[:end])
        val.append(document[end:])
    return train, val


# ---- Writing


class SplitWriter:
    """Writes the tokens of one split, or a mask, to a file as they come, and counts them."""

    def __init__(self, path, tokenizer, dtype):
        self.path = path
        self.file = open(path, "wb")
        self.tokenizer = tokenizer
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.count = collections.Counter(documents=0, characters=0, tokens=0)
        self.lines = set()  # hashes up to a limit: of many lines a sample, the same in both splits
        self.limit = 2**32

    def append(self, ids, text="", begins=False):
        """Write ids, an array, for a text; begins: a document that a separator precedes."""
        if begins and self.count["tokens"]:
            ids = np.append(separator(self.tokenizer), ids)
            text = "\n" + text
        self.file.write(ids.astype(self.dtype).tobytes())  # tofile does not say that a disk is full
        self.count.update(documents=bool(text), characters=len(text), tokens=len(ids))
        hashes = (zlib.crc32(line.encode()) for line in text.split("\n") if len(line) >= LINE)
        self.lines.update(line for line in hashes if line <= self.limit)
        while len(self.lines) > LINES:
            self.limit //= 2
            self.lines = {line for line in self.lines if line <= self.limit}

    def finish(self):
        """Close the file, and return its entry in meta.json."""
        self.file.close()
        return self.count | {"sha256": sha256_of_file(self.path)}


def repeated_lines(val, train):
    """Return the share of val's lines that stand in train too, of two SplitWriters."""
    lines = {line for line in val.lines if line <= train.limit}
    return len(lines & train.lines) / max(1, len(lines))


def separator(tokenizer):
    """The ids, an array, between two documents."""
    end_of_text = tokenizer.end_of_text
    return tokenizer.encode("\n") if end_of_text is None else np.array([end_of_text])


def write_tokens(folder, tokenizer, source, encoded, limit=0, names=SPLITS):
    """Write train.bin and val.bin, which appear when they are complete, and last meta.json.

    source: its entry in meta.json, a dict with the name. encoded: yields (split, ids, text,
    begins), as SplitWriter.append takes them. limit: stop after this number of tokens; 0: never.
    names: those of the files, SPLITS or SPLITS + MASKS. Prints what the splits are.
    ValueError if a split is empty.
    """
    folder = Path(folder)
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    meta = {
        "dtype": dtype,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.spec(),
        "source": source,
    }
    with folder_lock(folder):
        with contextlib.ExitStack() as files:
            writers = {}
            for name in names:
                path = files.enter_context(atomic_path(folder / f"{name}.bin"))
                writers[name] = SplitWriter(path, tokenizer, "uint8" if name in MASKS else dtype)
            for name, *piece in tqdm(encoded, "writing", leave=False, delay=1):
                writers[name].append(*piece)
                if limit and sum(writers[split].count["tokens"] for split in SPLITS) >= limit:
                    break
            meta |= {name: writer.finish() for name, writer in writers.items()}
            meta["repeated_lines"] = repeated_lines(writers["val"], writers["train"])
            if not all(meta[split]["tokens"] for split in SPLITS):
                raise ValueError(
                    f"{source['name']}: there is no text, or too little to split it: give other "
                    "text by --val"
                )
            if names == SPLITS:  # conversations are packed into rows first
                meta["epochs"] = DEFAULT_RUN / meta["train"]["tokens"]
            # An interruption must not leave meta.json beside files that it does not describe.
            remove_path(folder / "meta.json")
        meta["sha256"] = sha256_of_json(meta)
        atomic_write(folder / "meta.json", json.dumps(meta, indent=1).encode())
    print(f"{folder.name}: {source['name']}, vocabulary {tokenizer.vocab_size:,}")
    for split in SPLITS:
        counts = writers[split].count.items()
        print(f"  {split}: " + ", ".join(f"{name} {n:,}" for name, n in counts))
    print(f"  {meta['repeated_lines']:.1%} of val's lines of {LINE} characters stand in train too")
    if "epochs" in meta:
        print(f"  train.py's own settings make {meta['epochs']:,.2f} epochs")


def write_dataset(folder, documents, tokenizer, source, val=(), **about):
    """Tokenize documents, an iterable of str that fit into memory, into a dataset.

    tokenizer: one, or a name for create_tokenizer. source: the name of where they come from. val:
    documents for validation; without any, about a tenth of documents. about: more on the source,
    for meta.json. ValueError if there is no text.
    """
    train, val = [*documents], [*val]
    if not val:
        train, val = split_documents(train)
    if isinstance(tokenizer, str):
        # A line end separates documents, ends what is typed, and begins a sample.
        tokenizer = create_tokenizer(tokenizer, [*train, *val, "\n"])
    digest = sha256_of(map(str.encode, [*train, *val]))
    both = {"train": train, "val": val}
    encoded = (
        (split, tokenizer.encode(text), text, bool(text)) for split in both for text in both[split]
    )
    write_tokens(folder, tokenizer, {"name": source, "sha256": digest} | about, encoded)
