"""Documents to token files.

A dataset is a folder with train.bin and val.bin: little-endian uint16 or uint32 ids, documents
separated by the tokenizer's end-of-text id or else a newline. meta.json has the whole tokenizer,
and the counts and hashes of the files. write_dataset() takes documents that fit into memory;
sources.py has the rest.
"""

import codecs
import collections
import contextlib
import gzip
import io
import itertools
import json
import multiprocessing
import re
import signal
import sys
import sysconfig
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from engine.errors import UserError, library_errors, one_line_errors
from engine.files import (
    atomic_path,
    atomic_write,
    folder_lock,
    remove_path,
    sha256_of,
    sha256_of_file,
    sha256_of_json,
    shell_path,
)
from engine.settings import parse_settings
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
    its line; -1: all in one. UserError for what is no text.
    """
    if str(path) != "-":
        check_exists(Path(path))
    with sys.stdin.buffer if str(path) == "-" else open(path, "rb") as file:
        begin = file.peek(3)
        encoding = next((BOMS[bom] for bom in BOMS if begin.startswith(bom)), encoding)
        try:
            text = io.TextIOWrapper(file, encoding, newline="")
            while section := text.read(size):
                section += text.readline()
                if "\0" in section:
                    raise UserError("it has a zero byte")
                yield section
        except (ValueError, LookupError) as error:  # UnicodeDecodeError, and no such encoding
            reason = getattr(error, "reason", error)
            raise UserError(f"{path} is not {encoding.upper()} text: {reason}") from None


def read_text(path, encoding="utf-8"):
    """Return what read_sections yields as one text."""
    return "".join(read_sections(path, encoding))


def check_exists(*paths):
    """UserError for the first of these paths that is not there."""
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no file or folder {path}")


def check_name(name):
    """UserError for a name under which no dataset of one's own can stand in data/."""
    if (DATA / name / "prepare.py").exists() or not re.fullmatch(r"\w[\w. -]*", name):
        raise UserError(f"--name={name} must be a folder's name, and no included dataset's")


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
    UserError if a split is empty.
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
                raise UserError(
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
    for meta.json. UserError if there is no text.
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


# --------------------------------------------------------------------------------------------------
# Where texts come from: files of any size, Hugging Face's hub, a download, Python's own library.
#
# What need not fit into memory is read one document after the other, and encoded by several
# processes.

SECTION = 2**18  # characters of a long text that are one document
VAL_SHARE = 0.005  # of many documents
SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

# ---- Files of many documents, and the hub


def kind_of(path):
    """Return .jsonl or .parquet for a file of many documents, perhaps compressed; "" for a text."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix if name.endswith((".jsonl", ".parquet")) else ""


def read_records(*paths, column=None):
    """Yield (where, record) of files, or of those in folders. A record is JSON as bytes, or parsed.

    column: the only one of parquet that is needed; None: all. UserError for a damaged file.
    """
    for path in paths:
        if path.is_dir():
            files = [
                file for file in sorted(path.rglob("*")) if kind_of(file) or file.suffix == ".json"
            ]
            if not files:
                raise UserError(f"{path} has no .jsonl, .json or .parquet")
            yield from read_records(*files)
        elif kind_of(path) == ".parquet":
            for n, row in enumerate(read_rows(path, column), 1):
                yield f"{path}, row {n}", row
        else:
            yield from read_json_records(path)


def read_rows(path, column):
    with library_errors(f"cannot prepare {path}"):
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        columns = [column] if column in file.schema_arrow.names else None
        for batch in file.iter_batches(batch_size=1000, columns=columns):
            yield from batch.to_pylist()


def read_json_records(path):
    """Yield (where, record) of JSON: a record in each line, or all of them in one array."""
    first = next(filter(bytes.strip, read_lines(path)), b"").removeprefix(codecs.BOM_UTF8)
    if first.lstrip().startswith(b"[") and not is_conversation(first):
        with library_errors(f"{path} is no JSON"):
            records = json.loads(b"".join(read_lines(path)))
        for n, record in enumerate(records, 1):
            yield f"{path}, record {n}", record
        return
    for n, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield f"{path}, line {n}", line


def is_conversation(value):
    """Return whether JSON is a list of messages, and not of records, or another value."""
    try:
        found = parse_json(value)
    except ValueError:
        return False
    first = found[0] if found and isinstance(found, list) else None
    return isinstance(first, dict) and not {"role", "from"}.isdisjoint(first)


def read_lines(path):
    read = gzip.open if path.suffix.lower() == ".gz" else open
    with library_errors(f"cannot prepare {path}"), read(path, "rb") as file:
        yield from file


def read_hub(name, config, streaming):
    """Yield (where, row) of a dataset on the hub, or its variant config.

    streaming: its files are not kept.
    """
    script = shell_path("data/text/prepare.py")
    remedy = f": connect to the internet, or get its files another way and use {script}"
    with library_errors(f"cannot prepare {name}", remedy):
        import datasets

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        rows = datasets.load_dataset(name, config, split="train", streaming=streaming)
        for n, row in enumerate(rows, 1):
            yield f"{name}, row {n}", row


def parse_json(value):
    """Return a value, parsed if it is JSON in bytes or a string; UserError if it is none."""
    with library_errors("no JSON"):
        return json.loads(value) if isinstance(value, bytes | str) else value


def as_dict(record):
    """Return a record as a dict; UserError for a line that is none in JSON."""
    record = parse_json(record)
    if not isinstance(record, dict):
        raise UserError(f"a {type(record).__name__} in place of an object")
    return record


def read_documents(records, column="text"):
    """Yield the texts in one column of records (where, record); UserError for one without text."""
    for where, record in records:
        try:
            record = as_dict(record)
            if column not in record:
                known = ", ".join(record)
                raise UserError(f"no column {column!r}: choose one by --column ({known})")
            text = record[column]
            if not isinstance(text, str | None):
                raise UserError(f"its column {column!r} is a {type(text).__name__}, not text")
            text = text or ""
            text.encode()  # UnicodeEncodeError, a ValueError, for half a character
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
        yield text


def read_files(paths, column="text", encoding="utf-8"):
    """Yield the documents in files: the texts in one column, and texts in sections."""
    for path in paths:
        if kind_of(path):
            yield from read_documents(read_records(path, column=column), column)
        else:
            yield from read_sections(path, encoding, SECTION)


# ---- Many documents to token files


def split_of(text, val_share):
    """Return train or val, by the hash of a document: all of its copies are in the same split."""
    digest = sha256_of([text.encode()])
    return "val" if int(digest[:16], 16) < val_share * 2**64 else "train"


def start_process(tokenizer):
    global process_tokenizer
    process_tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started it


def encode_in_process(document):
    """Return what write_tokens takes of a (val_share, text), in a process that was started."""
    val_share, text = document
    return split_of(text, val_share), process_tokenizer.encode(text), text, bool(text)


def write_large_dataset(folder, read, tokenizer_name, source, limit=0, **about):
    """Tokenize documents that need not fit into memory.

    read: a function that yields (val_share, text), from the beginning whenever it is called; of
    such texts, val_share are for validation. limit: stop after this number of tokens; 0: never.
    about: more on the source, for meta.json.
    """
    texts = itertools.chain(["\n"], (text for _, text in read()))
    tokenizer = create_tokenizer(tokenizer_name, texts)
    with multiprocessing.Pool(initializer=start_process, initargs=(tokenizer,)) as pool:
        encoded = pool.imap(encode_in_process, read(), chunksize=16)
        write_tokens(folder, tokenizer, {"name": source} | about, encoded, limit)


# ---- The whole of a prepare.py for a published text


def download(url, sha256, path):
    """Download url to path, if it is not there.

    UserError if that fails or the file has another sha256.
    """
    if path.exists():
        return
    remedy = f": get the file another way, as {path}"
    print(f"downloading {url}")
    with (
        library_errors(f"cannot download {url}", remedy),
        urllib.request.urlopen(url, timeout=30) as response,
    ):
        content = response.read()
    if sha256_of([content]) != sha256:
        raise UserError(f"{url} is not the expected file (its sha256 differs){remedy}")
    atomic_write(path, content)


@one_line_errors()
def prepare_shakespeare(folder, tokenizer_name):
    """Prepare tiny Shakespeare, input.txt. Its last tenth is for validation, as in nanoGPT."""
    path = folder / "input.txt"
    download(SHAKESPEARE, SHA256, path)
    text = read_text(path)
    end = int(len(text) * 0.9)
    write_dataset(folder, [text[:end]], tokenizer_name, path.name, val=[text[end:]])


@dataclass
class HubSettings:
    tokens: int = 0
    """Stop after this number of tokens, and download no more than they need; 0: all of it."""
    tokenizer: str = "gpt2"
    """gpt2 or another of tiktoken, bpe:VOCAB (learned from the text), byte, or a model's folder."""


@one_line_errors()
def prepare_hub(folder, name, config=None):
    """Prepare a dataset on the hub, or its variant config: [--tokens=N] [--tokenizer=NAME].

    A hash of each document decides whether it is for validation.
    """
    settings = parse_settings(HubSettings, sys.argv[1:])

    def read():
        rows = read_hub(name, config, settings.tokens > 0)
        return ((VAL_SHARE, text) for text in read_documents(rows))

    write_large_dataset(folder, read, settings.tokenizer, name, settings.tokens)


# ---- Python's own standard library, as it stands on this machine


def library_files():
    """Return the source files of the standard library, ordered by their names."""
    paths = sorted(LIBRARY.rglob("*.py"), key=Path.as_posix)
    return [path for path in paths if LEFT_OUT.isdisjoint(path.relative_to(LIBRARY).parts)]
