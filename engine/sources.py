"""Where texts come from: files of any size, Hugging Face's hub, a download, Python's own library.

What need not fit into memory is read one document after the other, and encoded by several
processes.
"""

import codecs
import gzip
import itertools
import json
import multiprocessing
import signal
import sys
import sysconfig
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from engine.errors import library_errors, one_line_errors
from engine.files import atomic_write, sha256_of, shell_path
from engine.preparation import read_sections, read_text, write_dataset, write_tokens
from engine.settings import parse_settings
from engine.tokenizer import create_tokenizer

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

    column: the only one of parquet that is needed; None: all. ValueError for a damaged file.
    """
    for path in paths:
        if path.is_dir():
            files = [
                file for file in sorted(path.rglob("*")) if kind_of(file) or file.suffix == ".json"
            ]
            if not files:
                raise ValueError(f"{path} has no .jsonl, .json or .parquet")
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
    """Return a value, parsed if it is JSON in bytes or a string; ValueError if it is none."""
    with library_errors("no JSON"):
        return json.loads(value) if isinstance(value, bytes | str) else value


def as_dict(record):
    """Return a record as a dict; ValueError for a line that is none in JSON."""
    record = parse_json(record)
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__} in place of an object")
    return record


def read_documents(records, column="text"):
    """Yield the texts in one column of records (where, record); ValueError for one without text."""
    for where, record in records:
        try:
            record = as_dict(record)
            if column not in record:
                known = ", ".join(record)
                raise ValueError(f"no column {column!r}: choose one by --column ({known})")
            text = record[column]
            if not isinstance(text, str | None):
                raise ValueError(f"its column {column!r} is a {type(text).__name__}, not text")
            text = text or ""
            text.encode()  # UnicodeEncodeError, a ValueError, for half a character
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
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

    ValueError if that fails or the file has another sha256.
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
        raise ValueError(f"{url} is not the expected file (its sha256 differs){remedy}")
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
