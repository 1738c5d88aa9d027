"""Texts of any size, by Hugging Face's library datasets.

It reads them, encodes them with several processes, and keeps in its cache what is complete.
"""

import contextlib
import hashlib
import itertools
import os
from pathlib import Path

from engine.text.preparation import token_dtype, write_tokens
from engine.text.tokenizer import create_tokenizer

SECTION = 2**18  # bytes of a long text that are one document
ALONE = 10_000  # documents that are encoded before it pays to start processes


def builder_of(path):
    """Return the library's builder for a file of many documents; None for a text."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return {".jsonl": "json", ".parquet": "parquet"}.get(Path(name).suffix)


@contextlib.contextmanager
def datasets_library(source, remedy=""):
    """Give the library datasets; its errors of many types become ValueErrors that name source."""
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{source} needs the library datasets: pip install datasets==5.2.0"
        ) from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield datasets
    except Exception as error:
        cause = error.__cause__ or error
        if type(cause) is ValueError:  # our own
            raise cause from None
        reason = [*str(cause).strip().splitlines(), ""][0][:200]
        raise ValueError(
            f"cannot prepare {source} ({type(cause).__name__}: {reason}){remedy}"
        ) from error


def read_files(paths, column="text"):
    """Read the documents in files into the library's cache, a Dataset with the one column text.

    Texts are cut into documents of about SECTION bytes, at line ends. ValueError names a damaged
    file.
    """
    parts = []
    for path in paths:
        if builder_of(path):
            with datasets_library(path) as datasets:
                rows = datasets.load_dataset(builder_of(path), data_files=str(path), split="train")
            parts.append(only_text(rows, column, path))
    # Times of change: another text at the same path is not taken from the cache.
    texts = [(str(path), path.stat().st_mtime_ns) for path in paths if not builder_of(path)]
    with datasets_library(paths[0]) as datasets:
        if texts:
            rows = datasets.Dataset.from_generator(sections, gen_kwargs={"texts": texts})
            parts.append(rows)
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


def read_hub(name, config=None, column="text", streaming=False):
    """Return the train split of a dataset on the hub, with the one column text.

    streaming: it is read while it is used.
    """
    remedy = (
        ": connect to the internet, or get its files another way and give them as --input FILES"
    )
    with datasets_library(name, remedy) as datasets:
        rows = datasets.load_dataset(name, config, split="train", streaming=streaming)
    return only_text(rows, column, name)


def only_text(rows, column, source):
    """Return rows with the one column text; ValueError if they have no such column of text."""
    kinds = {name: getattr(feature, "dtype", None) for name, feature in rows.features.items()}
    texts = [name for name in kinds if kinds[name] in ("string", "large_string")]
    if column not in texts:
        known = ", ".join(texts)
        raise ValueError(f"{source} has no text {column!r}: choose one by --column ({known})")
    rows = rows.select_columns(column)
    return rows if column == "text" else rows.rename_column(column, "text")


def encode_batch(texts, tokenizer):
    """Return the columns ids, characters and sha256 of a batch of documents."""
    texts = [text for text in texts if text]
    dtype = token_dtype(tokenizer)
    return {
        "ids": [tokenizer.encode(text).astype(dtype) for text in texts],
        "characters": [len(text) for text in texts],
        "sha256": [hashlib.sha256(text.encode()).hexdigest() for text in texts],
    }


def encode_rows(rows, tokenizer, split, val_share=0.0):
    """Yield (split, ids, characters, begins) of each document that is not empty.

    split: train or val; "": val for val_share of them. Many rows are encoded by several processes.
    What these finish is kept in the library's cache.
    """
    settings = {"batched": True, "batch_size": 100, "fn_kwargs": {"tokenizer": tokenizer}}
    if getattr(rows, "num_rows", 0) > ALONE:  # rows that are read while they are used have none
        settings["num_proc"] = os.cpu_count()
    encoded = rows.map(encode_batch, input_columns="text", remove_columns="text", **settings)
    for batch in encoded.with_format("numpy").iter(batch_size=100):  # much faster than row by row
        for ids, characters, sha256 in zip(batch["ids"], batch["characters"], batch["sha256"]):
            yield split or split_of(sha256, val_share), ids, int(characters), True


def split_of(sha256, val_share):
    """Return train or val, by the hash of a document: all of its copies are in the same split."""
    return "val" if int(sha256[:16], 16) < val_share * 2**64 else "train"


def write_large_dataset(folder, rows, tokenizer_name, source, val_share=0.005, val=None, tokens=0):
    """Tokenize documents that need not fit into memory. rows: from read_files or read_hub.

    val: rows for validation; None: val_share of the documents, chosen by a hash of each. tokens:
    stop after this number; 0: at the end.
    """
    if not 0 < val_share < 1:
        raise ValueError(f"val_share={val_share} must be between 0 and 1")
    texts = (row["text"] or "" for row in itertools.chain(rows, val or ()))
    tokenizer = create_tokenizer(tokenizer_name, itertools.chain(["\n"], texts))
    encoded = encode_rows(rows, tokenizer, "train" if val else "", val_share)
    if val:
        encoded = itertools.chain(encoded, encode_rows(val, tokenizer, "val"))
    with datasets_library(source):
        write_tokens(folder, tokenizer, {"name": source}, encoded, limit=tokens)
