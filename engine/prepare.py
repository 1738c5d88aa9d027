"""Documents to token files.

A dataset is a folder with train.bin and val.bin: little-endian uint16 or uint32 ids, documents
separated by the tokenizer's end-of-text id or else a newline. meta.json has the whole tokenizer,
and the counts and hashes of the files. write_dataset() takes documents that fit into memory, and
write_large_dataset() any number of them.
"""

import codecs
import collections
import contextlib
import csv
import glob
import gzip
import io
import itertools
import json
import multiprocessing
import re
import signal
import sys
import zlib
from pathlib import Path

import numpy as np
from tqdm import tqdm

from engine.errors import UserError, library_errors
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
# A text of fewer bytes is prepared in memory, and a smaller file is verified when it is loaded.
SMALL = 2**28
# The masks of conversations say what each token is, in one byte: read, learned, or the first one.
MASKS = "train.mask", "val.mask"
READ, LEARNED, BEGINS = 0, 1, 2
BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Lines of at least this many characters are compared between the splits, by at most LINES hashes.
LINE = 20
LINES = 2**20
DEFAULT_RUN = 900 * 8 * 128  # tokens that train.py reads by default: steps, sequences, context
SECTION = 2**18  # characters of a long text that are one document
VAL_SHARE = 0.005  # of many documents
TABLES = ".jsonl", ".csv", ".parquet"  # files of many documents; .gz may follow


def check_exists(*paths):
    """UserError for the first of these paths that is not there."""
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no file or folder {path}")


def check_name(name):
    """UserError for a name that a user's own dataset in data/ cannot have."""
    if (DATA / name / "prepare.py").exists() or not re.fullmatch(r"\w[\w. -]*", name):
        raise UserError(f"--name={name} must be a folder's name, and no included dataset's")


# ---- Reading


def open_bytes(path):
    """Open a file to read its bytes: - is the standard input, and .gz is uncompressed."""
    if str(path) == "-":
        return sys.stdin.buffer
    check_exists(Path(path))
    return gzip.open(path) if str(path).lower().endswith(".gz") else open(path, "rb")


def read_sections(path, encoding="utf-8", size=-1):
    """Yield the text of a file; line ends stay as they are.

    encoding: of a file without a byte-order mark. size: characters of a section, which goes on to
    the end of its line; -1: all in one. UserError for a file that is not text.
    """
    with open_bytes(path) as file:
        try:
            begin = file.peek(3)
            encoding = next((BOMS[bom] for bom in BOMS if begin.startswith(bom)), encoding)
            text = io.TextIOWrapper(file, encoding, newline="")
            while section := text.read(size):
                section += text.readline()
                if "\0" in section:
                    raise UserError("it has a zero byte")
                yield section
        # UnicodeDecodeError, no such encoding, or a damaged .gz
        except (ValueError, LookupError, OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "reason", error)
            raise UserError(f"{path} is not {encoding.upper()} text: {reason}") from None


def read_text(path, encoding="utf-8"):
    """Return what read_sections yields as one text."""
    return "".join(read_sections(path, encoding))


def kind_of(path):
    """Return the kind of a file of many documents, one of TABLES, or "" for any other file."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    return kind if kind in TABLES else ""


def read_records(*paths, column=None, encoding="utf-8"):
    """Yield (where, record) of tables and .json files, and of all in folders.

    A record is a dict, or JSON that is not parsed yet. UserError for a damaged file.
    """
    for path in paths:
        kind = kind_of(path)
        if path.is_dir():
            found = [f for f in sorted(path.rglob("*")) if kind_of(f) or f.suffix == ".json"]
            if not found:
                raise UserError(f"{path} has no {', '.join(TABLES)} or .json")
            yield from read_records(*found, column=column, encoding=encoding)
        elif kind == ".parquet":
            # Without streaming, the library would copy the file to its cache. Its own batch_size
            # fails for an empty table.
            name = glob.escape(str(path))
            how = {"data_files": name, "streaming": True, "batch_size": 1000}
            yield from read_rows(path, "parquet", column=column, **how)
        else:
            with library_errors(f"cannot read {path}"):
                found = read_csv(path, encoding) if kind == ".csv" else read_json_lines(path)
                for place, record in found:
                    yield f"{path}, {place}", record


def read_rows(source, *name, remedy="", column=None, **how):
    """Yield (where, row) of a table, as load_dataset of the library datasets reads it.

    column: the only one of a parquet file that is needed. Reading all takes ten times as long.
    """
    with library_errors(f"cannot read {source}", remedy):
        import datasets

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        if column:
            from pyarrow import parquet  # datasets needs it, too

            if column in parquet.read_schema(source).names:
                how["columns"] = [column]
        for n, row in enumerate(datasets.load_dataset(*name, split="train", **how), 1):
            yield f"{source}, row {n}", row


def read_csv(path, encoding):
    """Yield (place, row) of a table in CSV, whose first row names the columns."""
    csv.field_size_limit(2**31 - 1)
    sections = read_sections(path, encoding, SECTION)
    lines = (line for section in sections for line in io.StringIO(section, newline=""))
    rows = csv.DictReader(lines, strict=True)
    for row in rows:
        place = f"line {rows.line_num}"
        if None in row or None in row.values():
            raise UserError(f"{place} has another number of fields than the first line")
        yield place, row


def read_json_lines(path):
    """Yield (place, record) of JSON: a record in each line, or in .json an array of records."""
    with open_bytes(path) as file:
        begin = file.peek(99).lstrip(codecs.BOM_UTF8 + b" \r\n\t")
        name = path.name.lower().removesuffix(".gz")
        if name.endswith(".json") and begin.startswith(b"["):
            for n, record in enumerate(json.loads(file.read()), 1):
                yield f"record {n}", record
        for n, line in enumerate(file, 1):
            if line.strip():
                yield f"line {n}", line


def parse_json(value):
    """Return a value, parsed if it is JSON in bytes or a string; UserError if it is none."""
    with library_errors("no JSON"):
        return json.loads(value) if isinstance(value, bytes | str) else value


def read_documents(records, column="text"):
    """Yield the texts in one column of records (where, record); UserError for one without text."""
    for where, record in records:
        try:
            record = as_dict(record)
            if column not in record:
                known = ", ".join(record)
                raise UserError(f"no column {column!r}: choose one by --column ({known})")
            text = record[column] or ""
            if not isinstance(text, str):
                raise UserError(f"its column {column!r} is a {type(text).__name__}, not text")
            text.encode()  # UnicodeEncodeError, a ValueError, for half a character
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
        yield text


def as_dict(record):
    """Return a record as a dict; UserError for a line that is none in JSON."""
    record = parse_json(record)
    if not isinstance(record, dict):
        raise UserError(f"a {type(record).__name__} instead of an object")
    return record


def read_files(paths, column="text", encoding="utf-8"):
    """Yield the documents in files: the texts in one column of tables, and sections of texts."""
    for path in paths:
        if kind_of(path):
            records = read_records(path, column=column, encoding=encoding)
            yield from read_documents(records, column)
        else:
            yield from read_sections(path, encoding, SECTION)


# ---- Splitting


def split_documents(documents):
    """Return (train, val), two lists of texts: about a tenth of the characters is for validation.

    These are whole documents if there are at least twenty and none is longer than a tenth of all;
    else the last tenth of each.
    """
    train, val = [], []
    total = chosen = 0
    for document in documents:
        total += len(document)
        if chosen + len(document) / 2 <= total / 10:
            val.append(document)
            chosen += len(document)
        else:
            train.append(document)
    if len(documents) >= 20 and max(map(len, documents)) <= total / 10:
        return train, val
    train, val = [], []
    for document in documents:
        end = len(document) * 9 // 10
        end = document.find("\n", end, len(document) * 19 // 20) + 1 or end  # of a line, if near
        train.append(document[:end])
        val.append(document[end:])
    return train, val


def split_of(text, val_share):
    """Return train or val, by the hash of a document: all of its copies are in the same split."""
    digest = sha256_of([text.encode()])
    return "val" if int(digest[:16], 16) < val_share * 2**64 else "train"


# ---- Writing


class SplitWriter:
    """Writes the tokens of one split, or a mask, to a file as they come, and counts them."""

    def __init__(self, path, tokenizer, dtype):
        self.path = path
        self.file = open(path, "wb")
        self.separator = separator(tokenizer)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.count = collections.Counter(documents=0, characters=0, tokens=0)
        # Hashes of lines, up to a limit that falls when there are too many. Then they are a sample,
        # and both splits sample the same lines.
        self.lines = set()
        self.limit = 2**32

    def append(self, ids, text="", begins=False):
        """Write ids, an array, for a text; begins: a document that a separator precedes."""
        if begins and self.count["tokens"]:
            ids = np.append(self.separator, ids)
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
    """Return the share of val's lines that train has too, of two SplitWriters."""
    lines = {line for line in val.lines if line <= train.limit}
    return len(lines & train.lines) / max(1, len(lines))


def separator(tokenizer):
    """Return the ids, an array, between two documents."""
    end_of_text = tokenizer.end_of_text
    return tokenizer.encode("\n") if end_of_text is None else np.array([end_of_text])


def write_tokens(folder, tokenizer, source, encoded, limit=0):
    """Write train.bin and val.bin, which appear when they are complete, and last meta.json.

    source: its entry in meta.json, a dict with the name. encoded: yields (name, ids, text, begins)
    for the files of SPLITS, or also of MASKS, as SplitWriter.append takes them. limit: stop after
    this number of tokens; 0: never. Prints what the splits are. UserError if one is empty.
    """
    folder = Path(folder)
    size = tokenizer.vocab_size
    meta = {"dtype": "uint16" if size <= 2**16 else "uint32", "vocab_size": size}
    meta |= {"tokenizer": tokenizer.spec(), "source": source}
    writers = {}
    with folder_lock(folder):
        with contextlib.ExitStack() as files:
            for name, *piece in tqdm(encoded, "writing", leave=False, delay=1):
                if name not in writers:
                    path = files.enter_context(atomic_path(folder / f"{name}.bin"))
                    dtype = "uint8" if name in MASKS else meta["dtype"]
                    writers[name] = SplitWriter(path, tokenizer, dtype)
                writers[name].append(*piece)
                if limit and sum(writer.count["tokens"] for writer in writers.values()) >= limit:
                    break
            meta |= {name: writer.finish() for name, writer in writers.items()}
            if not all(name in meta and meta[name]["tokens"] for name in SPLITS):
                raise UserError(
                    f"{source['name']}: there is no text, or too little to split it: give other "
                    "text by --val"
                )
            meta["repeated_lines"] = repeated_lines(writers["val"], writers["train"])
            if len(writers) == 2:  # conversations are packed into rows first
                meta["epochs"] = DEFAULT_RUN / meta["train"]["tokens"]
            # An interruption must not leave meta.json next to files that it does not describe.
            remove_path(folder / "meta.json")
        meta["sha256"] = sha256_of_json(meta)
        atomic_write(folder / "meta.json", json.dumps(meta, indent=1).encode())
    print(f"{folder.name}: {source['name']}, vocabulary {size:,}")
    for split in SPLITS:
        counts = writers[split].count.items()
        print(f"  {split}: " + ", ".join(f"{name} {n:,}" for name, n in counts))
    print(f"  {meta['repeated_lines']:.1%} of val's lines of {LINE} characters are in train too")
    if "epochs" in meta:
        print(f"  train.py's own settings make {meta['epochs']:,.2f} epochs")


def write_dataset(folder, documents, tokenizer, source, val=(), **about):
    """Tokenize documents, an iterable of str that fit into memory, into a dataset.

    tokenizer: one, or a name for create_tokenizer. source: the name of where they come from. val:
    documents for validation; without any, about a tenth of documents. about: more on the source,
    for meta.json. UserError if there is no text.
    """
    train, val = [*documents], [*val]
    if not val:
        train, val = split_documents(train)
    texts = [*train, *val]
    if isinstance(tokenizer, str):
        # A line end separates documents, ends what is typed, and begins a sample.
        tokenizer = create_tokenizer(tokenizer, [*texts, "\n"])
    splits = ["train"] * len(train) + ["val"] * len(val)
    encoded = (
        (split, tokenizer.encode(text), text, bool(text)) for split, text in zip(splits, texts)
    )
    about = {"name": source, "sha256": sha256_of(map(str.encode, texts))} | about
    write_tokens(folder, tokenizer, about, encoded)


def write_large_dataset(folder, read, tokenizer_name, source, limit=0, **about):
    """Tokenize documents that need not fit into memory, in several processes.

    read: a function that yields (val_share, text), from the beginning whenever it is called; of
    such texts, val_share are for validation. limit: stop after this number of tokens; 0: never.
    about: more on the source, for meta.json.
    """
    texts = itertools.chain(["\n"], (text for _, text in read()))
    tokenizer = create_tokenizer(tokenizer_name, texts)
    with multiprocessing.Pool(initializer=start_process, initargs=(tokenizer,)) as pool:
        encoded = pool.imap(encode_in_process, read(), chunksize=16)
        write_tokens(folder, tokenizer, {"name": source} | about, encoded, limit)


def start_process(tokenizer):
    global process_tokenizer
    process_tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started it


def encode_in_process(document):
    """Return what write_tokens takes of a (val_share, text), in a process that was started."""
    val_share, text = document
    return split_of(text, val_share), process_tokenizer.encode(text), text, bool(text)
