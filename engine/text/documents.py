"""Documents out of files: text, .jsonl (also .gz and .zst) and .parquet, one after the other, however long the files are.

    for text, read in Part(path).read(): ...

What is not as it should be is Damaged, which names the file and the line or the row group.
"""

import contextlib
import functools
import gzip
import json
import zlib
from pathlib import Path

from engine.common.files import DamagedFile

RECORDS = ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"
BLOCK = 1 << 20  # bytes that are read at a time
SECTION = 1 << 18  # bytes of a text file that are one document where files are not read as a whole
LONGEST = 1 << 28  # bytes of a line: a longer one is no text, but would fill the memory


def has_records(path):
    """Whether a file holds many documents, by its name; any other is one text."""
    return path.name.lower().endswith(RECORDS)


def decoded(content, path, start=0):
    """UTF-8 from offset start of a file as text, line ends as they are; Damaged says where it is not UTF-8."""
    try:
        text = content.decode("utf-8" if start else "utf-8-sig")
        wrong = content.find(0)  # as in UTF-16
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        raise DamagedFile(f"{path} is not UTF-8 text (offset {start + wrong}): convert it first")
    return text


def read_text(path):
    """A UTF-8 file as text, line ends as they are; ValueError says where it is not UTF-8."""
    return decoded(Path(path).read_bytes(), path)


class Part:
    """One file of a corpus. column: the text's column or key. split: train or val, if it is not for a hash to decide."""

    unit = "B"

    def __init__(self, path, column="text", split=None):
        self.path, self.column, self.split = Path(path), column, split
        self.state = self.size, _ = self.look()

    def look(self):
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    @property
    def key(self):
        """Another key, another text."""
        return [str(self.path.resolve()), *self.state, self.column, self.split]

    def read(self, start=0):
        """(text, bytes of the file read so far) of its documents from number start on; an empty text is a document too.

        Damaged for a file that cannot be read to its end, or is changed meanwhile; ValueError if there is no such column.
        """
        name = self.path.name.lower()
        reader = (
            sections
            if not has_records(self.path)
            else parquet
            if name.endswith(".parquet")
            else json_lines
        )
        yield from reader(self.path, self.column, start)
        if self.look() != self.state:
            raise DamagedFile(f"{self.path} was changed while it was read")


def sections(path, column, start):
    """A text in sections of about SECTION bytes, cut at line ends; a shorter one is a single document."""
    with open(path, "rb") as file:
        number = at = 0
        while block := file.read(SECTION):
            block += file.readline(LONGEST)
            if number >= start:
                yield decoded(block, path, at), at + len(block)
            number, at = number + 1, at + len(block)


def json_lines(path, column, start):
    """The value of `column` in each line that is not blank. null is an empty text; half a surrogate pair is U+FFFD."""
    number = found = 0
    with open(path, "rb") as file:
        records = lines(unpacked(file, path))
        while True:
            try:
                line = next(records, None)
            except (DamagedFile, EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DamagedFile(f"{path} is damaged after line {number:,} ({error})") from None
            if line is None:
                return
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            found += 1
            if found > start:
                yield text_in(line, column, f"{path}, line {number:,}"), file.tell()


def unpacked(file, path):
    """The bytes of a file that may be compressed, as its name says, in blocks."""
    if path.name.lower().endswith(".zst"):
        yield from zstd_frames(file, path)
        return
    with (
        gzip.open(file)
        if path.name.lower().endswith(".gz")
        else contextlib.nullcontext(file) as whole
    ):
        yield from iter(functools.partial(whole.read1, BLOCK), b"")


def zstd_frames(file, path):
    """The bytes of all frames of a zstd file; EOFError if the last is not whole, which the library's own reader overlooks."""
    try:
        import zstandard
    except ImportError:
        raise ValueError(f"{path} needs the library zstandard: pip install zstandard") from None

    unpacker, frame = zstandard.ZstdDecompressor(max_window_size=1 << 31), None
    try:
        while block := file.read(BLOCK // 8):
            while block:
                frame = frame or unpacker.decompressobj()
                yield frame.decompress(block)
                block, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    except zstandard.ZstdError as error:
        raise DamagedFile(str(error)) from None
    if frame:
        raise EOFError("it ends in the middle of a frame")


def lines(blocks):
    """Lines without their ends; Damaged if one is longer than any text."""
    parts, size = [], 0
    for block in blocks:
        *ends, rest = block.split(b"\n")
        for end in ends:
            yield b"".join([*parts, end])
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > LONGEST:
            raise DamagedFile(f"a line of more than {LONGEST:,} bytes")
    if size:
        yield b"".join(parts)


def text_in(line, column, where):
    """The text in a line of JSON."""
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{where} is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise DamagedFile(f"{where} is a {type(record).__name__}, not an object with a text")
    if column not in record:
        there = ", ".join(record) or "it is empty"
        raise ValueError(
            f"{where} has no {column!r}: rename one, or choose its text by --column ({there})"
        )
    text = record[column]
    if not isinstance(text, str | None):
        raise DamagedFile(f"{where}: {column!r} is a {type(text).__name__}, not a text")
    if (
        text and b"\\u" in line
    ):  # the only way to half a pair, which is no character and cannot be encoded
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text or ""


def parquet(path, column, start):
    """The values of a column, a few rows at a time; row groups before number start are not even read. null is an empty text."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{path} needs the library pyarrow: pip install pyarrow") from None

    group = None
    try:
        with parquet.ParquetFile(path) as file:
            check_column(file.schema_arrow, column, path)
            done, rows, size = 0, file.metadata.num_rows, path.stat().st_size
            for group in range(file.num_row_groups):
                if done + file.metadata.row_group(group).num_rows <= start:
                    done += file.metadata.row_group(group).num_rows
                    continue
                for batch in file.iter_batches(64, row_groups=[group], columns=[column]):
                    for text in batch.column(0).to_pylist():
                        done += 1
                        if done > start:
                            yield text or "", size * done // rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        where = "" if group is None else f" in row group {group}"
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DamagedFile(f"{path} is damaged{where} ({reason[0][:100]})") from None


def check_column(schema, column, path):
    """ValueError if a file has no such column, or no text in it."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise ValueError(
            f"{path} has no column {column!r}: choose one by --column ({', '.join(schema.names)})"
        )
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise ValueError(
            f"{path}: column {column!r} holds {kind}, not text: choose another by --column "
            f"({', '.join(schema.names)})"
        )
