"""Texts of any size, by Hugging Face's library datasets.

It reads them, encodes them with several processes, and keeps in its cache what is complete.
"""

import contextlib
import glob
import hashlib
import io
import itertools
import os
from pathlib import Path

import numpy as np

from engine.common.files import shell_path
from engine.text.preparation import SPLITS, separator, token_dtype, write_tokens
from engine.text.tokenizer import create_tokenizer

SECTION = 2**18  # bytes of a long text that are one document
ALONE = 10_000  # documents that are encoded before it pays to start processes
LARGE = 2**30  # bytes that a file may unpack to, if they are not over a hundred times its own


def builder_of(path):
    """Return the library's builder for a file of many documents; None for a text."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return {".jsonl": "json", ".parquet": "parquet"}.get(Path(name).suffix)


def unpacked_size(path):
    """Return the bytes that a compressed file says it unpacks to; 0 if it says nothing."""
    if path.name.lower().endswith(".parquet"):
        from pyarrow import parquet

        groups = parquet.read_metadata(path)
        return sum(groups.row_group(n).total_byte_size for n in range(groups.num_row_groups))
    if path.name.lower().endswith(".zst"):
        import zstandard

        with open(path, "rb") as file:
            return zstandard.frame_content_size(file.read(18))  # a frame's header is no longer
    return 0


@contextlib.contextmanager
def datasets_library(source, remedy=""):
    """Give the library datasets; its errors of many types become ValueErrors that name source."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f'{source} needs the library datasets: pip install -e ".[data]"') from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield datasets
    except Exception as error:
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0] or "is it damaged?"
        raise ValueError(
            f"cannot prepare {source} ({type(cause).__name__}: {reason[:200]}){remedy}"
        ) from error


def check_unpacked_size(path):
    """ValueError for a compressed file that says it unpacks to very much."""
    size = unpacked_size(path)
    if size > max(LARGE, 100 * path.stat().st_size):
        raise ValueError(f"it unpacks to {size:,} bytes: if you trust it, give a .jsonl")


def read_lines(path):
    """Yield the lines of a file, perhaps compressed, as bytes; ValueError if it is damaged."""
    if path.suffix.lower() not in (".gz", ".zst"):
        with open(path, "rb") as file:
            yield from file
        return
    with datasets_library(path):
        import pyarrow

        check_unpacked_size(path)
        with pyarrow.input_stream(str(path), compression="detect") as file:
            yield from io.BufferedReader(file)


def read_rows(path):
    """Return the rows of a file of many documents, with all of their columns."""
    with datasets_library(path) as datasets:
        check_unpacked_size(path)
        name = glob.escape(str(path))
        return datasets.load_dataset(builder_of(path), data_files=name, split="train")


def read_files(paths, column="text"):
    """Read the documents in files into the library's cache, a Dataset with the one column text.

    Texts are cut into documents of about SECTION bytes, at line ends. ValueError names a damaged
    file.
    """
    parts = []
    texts = []
    for path in paths:
        if builder_of(path) is None:
            # Time of change: another text at the same path is not taken from the cache.
            texts.append((str(path), path.stat().st_mtime_ns))
            continue
        parts.append(only_text(read_rows(path), column, path))
    with datasets_library(paths[0]) as datasets:
        if texts:
            parts.append(datasets.Dataset.from_generator(sections, gen_kwargs={"texts": texts}))
        return datasets.concatenate_datasets(parts)


def sections(texts):
    """Yield {"text"} of each section of texts (path, time of change)."""
    for path, _ in texts:
        with open(path, encoding="utf-8-sig", newline="") as file:
            try:
                while block := file.read(SECTION):
                    yield {"text": block + file.readline()}
            except UnicodeDecodeError:
                raise ValueError(f"{path} is not UTF-8 text: convert it first") from None


def read_hub(name, config=None, streaming=False, split="train"):
    """Return the rows of a split of a dataset on the hub.

    streaming: they are read while they are used.
    """
    script = shell_path("data/text/prepare.py")
    remedy = f": connect to the internet, or get its files another way and use {script}"
    with datasets_library(name, remedy) as datasets:
        return datasets.load_dataset(name, config, split=split, streaming=streaming)


def only_text(rows, column, source):
    """Return rows with the one column text; ValueError if they have no such column of texts."""
    if column not in rows.column_names:
        known = ", ".join(rows.column_names)
        raise ValueError(f"{source} has no column {column!r}: choose one by --column ({known})")
    kind = rows.features[column]
    if getattr(kind, "dtype", None) not in ("string", "large_string", "string_view", "null"):
        raise ValueError(f"{source}: its column {column!r} is {str(kind)[:80]}, not text")
    rows = rows.select_columns(column)
    return rows if column == "text" else rows.rename_column(column, "text")


def split_of(text, val_share):
    """Return train or val, by the hash of a document: all of its copies are in the same split."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "val" if int(digest[:16], 16) < val_share * 2**64 else "train"


def encode_batch(texts, tokenizer, val_share):
    """Return the documents of a batch as one row for each split: split, ids and characters."""
    rows = {"split": [], "ids": [], "characters": []}
    for split in SPLITS:
        documents = [text for text in texts if text and split_of(text, val_share) == split]
        if documents:
            parts = []
            for document in documents:
                parts += [tokenizer.encode(document), separator(tokenizer)]
            rows["split"].append(split)
            rows["ids"].append(np.concatenate(parts[:-1]).astype(token_dtype(tokenizer)))
            rows["characters"].append(sum(map(len, documents)) + len(documents) - 1)
    return rows


def encode_rows(rows, tokenizer, val_share):
    """Yield (split, ids, characters, begins) of documents; val_share of them are for validation.

    Many rows are encoded by several processes. The library's cache keeps what these finish.
    """
    settings = {"fn_kwargs": {"tokenizer": tokenizer, "val_share": val_share}}
    if getattr(rows, "num_rows", 0) > ALONE:  # rows that are read while they are used have none
        settings["num_proc"] = os.cpu_count()
    encoded = rows.map(
        encode_batch,
        input_columns="text",
        remove_columns="text",
        batched=True,
        batch_size=100,
        **settings,
    )
    for row in encoded.with_format("numpy"):
        yield row["split"], row["ids"], int(row["characters"]), True


def write_large_dataset(folder, rows, tokenizer_name, source, val_share=0.005, val=None, tokens=0):
    """Tokenize documents that need not fit into memory. rows: from read_files or read_hub.

    val: rows for validation; None: val_share of the documents, chosen by a hash of each. tokens:
    stop after this number, at the end of a batch; 0: never.
    """
    texts = (row["text"] or "" for row in itertools.chain(rows, val or ()))
    tokenizer = create_tokenizer(tokenizer_name, itertools.chain(["\n"], texts))
    encoded = encode_rows(rows, tokenizer, 0 if val else val_share)
    if val:
        encoded = itertools.chain(encoded, encode_rows(val, tokenizer, 1))
    with datasets_library(source):
        write_tokens(folder, tokenizer, {"name": source}, encoded, limit=tokens)
