"""Texts of any size, without a network: local files stand for the hub."""

import csv
import datetime
import gzip
import io
import json
import runpy
import sys

import numpy as np
import pytest
from conftest import POEM, parametrize, refused

from data.openwebtext import prepare as openwebtext
from engine import dataset, prepare
from engine.files import read_json

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
WORDS = (POEM * 3).split()
LINES = b"".join(b'{"text": "%d"}\n' % n for n in range(999))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The library's cache, of this test alone."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def documents(count, seed=0):
    """Documents of many lengths, some of them empty or with what separates documents."""
    rng = np.random.default_rng(seed)
    found = ["", "<|endoftext|>", 'Füße, 猫 "🐈"\r\n', "NA"]
    for _ in range(count):
        found.append(" ".join(rng.choice(WORDS, size=rng.integers(1, 60))))
    return found


def jsonl(path, texts, key="text"):
    lines = [json.dumps({key: text}) + "\n" for text in texts]
    path.write_text("".join(lines))
    return path


def table(**columns):
    """The bytes of a parquet file."""
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), content)
    return content.getvalue()


def prepared(folder, paths):
    def read():
        return ((0.2, text) for text in prepare.read_files(paths))

    prepare.write_large_dataset(folder, read, "byte", "texts")
    return dataset.load_dataset(folder, 8)


def test_every_kind_of_file(tmp_path):
    """Catches a kind of file that loses, reorders or changes texts, a file deeper in a folder that
    is left out, and one of another kind that is read.
    """
    texts = documents(100)
    (tmp_path / "deep").mkdir()
    path = jsonl(tmp_path / "deep" / "a.jsonl", [*texts, None])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()) + bytes(512))
    lines = path.read_bytes().splitlines(keepends=True)
    (tmp_path / "c.jsonl.gz").write_bytes(b"".join(map(gzip.compress, lines)))
    dates = [datetime.date(2020, 1, 1)] * (len(texts) + 1)  # of no concern
    (tmp_path / "d.parquet").write_bytes(table(text=[*texts, None], dates=dates))
    (tmp_path / "e.txt").write_text("no record")
    with open(tmp_path / "f.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate([*texts, ""])])
    content = (tmp_path / "f.csv").read_bytes()
    (tmp_path / "f.csv").rename(tmp_path / "f.txt")
    (tmp_path / "f.csv.gz").write_bytes(gzip.compress(content))
    records = prepare.read_records(tmp_path)
    assert [*prepare.read_documents(records)] == 5 * [*texts, ""]
    data = prepared(tmp_path / "x", sorted(tmp_path.glob("[cd].*")))
    whole = data.tokenizer.decode([*data.train, 10, *data.val])
    assert sorted(whole.split("\n")) == sorted("\n".join(2 * texts[1:]).split("\n"))


def test_plain_lines_need_no_library(tmp_path, monkeypatch):
    """Catches a .jsonl that is not read without datasets, and a name that looks like a pattern."""
    jsonl(tmp_path / "w1.jsonl", ["wrong"])
    path = jsonl(tmp_path / "w[1].jsonl", ["right"])
    for name, text in ("w1", "wrong"), ("w[1]", "right"):
        (tmp_path / f"{name}.parquet").write_bytes(table(text=[text]))
    assert [*prepare.read_files([tmp_path / "w[1].parquet"])] == ["right"]
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert [*prepare.read_files([path])] == ["right"]
    with refused("a.parquet: it needs the library datasets: pip install"):
        [*prepare.read_files([tmp_path / "a.parquet"])]


def test_compressed_texts(tmp_path):
    """Catches a text that is read as it is compressed, and a damaged one that is a traceback."""
    whole = gzip.compress("Füße\r\n".encode() * 99)
    (tmp_path / "a.txt.gz").write_bytes(whole)
    assert prepare.read_text(tmp_path / "a.txt.gz") == "Füße\r\n" * 99
    broken = whole[:20] + bytes([whole[20] ^ 255]) + whole[21:]
    for content in b"no gzip", whole[:-10], broken, gzip.compress(bytes(9)):
        (tmp_path / "a.txt.gz").write_bytes(content)
        with refused("a.txt.gz is not UTF-8 text: "):
            prepare.read_text(tmp_path / "a.txt.gz")


def test_the_split(tmp_path):
    """Catches a split that depends on more than the document, or on the order of files."""
    texts = documents(300)
    paths = [jsonl(tmp_path / "a.jsonl", texts[:150]), jsonl(tmp_path / "b.jsonl", texts[150:])]
    first = prepared(tmp_path / "x", paths)
    again = prepared(tmp_path / "y", paths)
    assert first.hashes == again.hashes
    other = prepared(tmp_path / "z", paths[::-1])
    ours, theirs = (data.tokenizer.decode(data.val) for data in (first, other))
    assert sorted(ours.split("\n")) == sorted(theirs.split("\n"))
    assert 40 < len({*texts} & {*ours.split("\n")}) < 80
    meta = read_json(tmp_path / "z" / "meta.json")
    assert meta["val"]["characters"] == len(theirs)


def test_a_long_text_is_many_documents(tmp_path, monkeypatch):
    """Catches words or characters that a cut takes apart."""
    monkeypatch.setattr(prepare, "SECTION", 100)
    path = tmp_path / "a.txt"
    text = "Füße, ein Wort\r\n" * 200
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    sections = [*prepare.read_files([path])]
    assert "".join(sections) == text and len(sections) > 10
    assert all(section.endswith("\n") for section in sections)


@parametrize(
    "name, content, message",
    [
        ("a.jsonl", b'{"text": "a"}\n{"text":', "a.jsonl, line 2: no JSON"),
        ("b.jsonl", b"5\n", "b.jsonl, line 1: a int instead of an object"),
        ("c.jsonl", b'{"content": "a"}\n', r"line 1: no column 'text': .* --column \(content\)"),
        ("d.jsonl", b'{"text": 5}\n', r"d.jsonl, line 1: its column 'text' is a int, not text"),
        ("e.jsonl", b'{"text": "one"}\n', "texts: there is no text"),
        ("g.jsonl", b'{"text": "\\ud800"}\n', "g.jsonl, line 1: .* surrogates not allowed"),
        ("h.jsonl.gz", gzip.compress(LINES)[:-20], "cannot read .*h.jsonl.gz"),
        ("i.csv", b"id,text\n1,a\n2\n", "i.csv .line 3 has another number of fields"),
        ("i.csv", b"id,text\n1,a,b\n", "i.csv .line 2 has another number of fields"),
        ("i.csv", b'id,text\n1,"a"b\n', "cannot read .*i.csv"),
        ("i.csv", b"id,text\n1,F\xfc\xdfe\n", "i.csv is not UTF-8 text"),
        ("i.csv", b"id,words\n1,a\n", r"i.csv, line 2: no column 'text': .* --column .id, words."),
        ("k.parquet", b"no parquet", "cannot read .*k.parquet"),
        ("l.parquet", table(text=[None, 5]), "l.parquet, row 2: its column 'text' is a int"),
        ("m.parquet", table(text=[datetime.date(2020, 1, 1)]), "row 1: .* is a date, not text"),
        ("o.parquet", table(text=pyarrow.array([], "string")), "texts: there is no text"),
        ("p.parquet", table(content=["a"]), r"row 1: no column 'text': .* --column \(content\)"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 12 else "",
)
def test_files_that_cannot_be_used(tmp_path, name, content, message):
    """Catches a traceback that names no file, an archive that is cut off and read all the same, and
    a folder that is left behind.
    """
    (tmp_path / name).write_bytes(content)
    with refused(message):
        prepared(tmp_path / "x", [tmp_path / name])
    assert not [*tmp_path.glob("x/[!.]*")]


def test_the_script(tmp_path, monkeypatch):
    """Catches a script that does not know jsonl, compressed or not, forgets a text beside it, or
    trains on --val, in the same folder or under another name.
    """
    texts = tmp_path / "texts"
    texts.mkdir()
    jsonl(texts / "a.jsonl", [f"abc {n} " * 9 for n in range(99)], key="content")
    (texts / "b.txt").write_text("hij " * 400)
    (texts / "c.jsonl.gz").write_bytes(gzip.compress(b'{"content": "klm"}'))
    val = jsonl(texts / "val.jsonl", ["xyz"] * 30, key="content")
    other_name = texts / "latest.jsonl"
    other_name.symlink_to(val)
    script = runpy.run_path(str(dataset.DATA / "text" / "prepare.py"))
    monkeypatch.setattr(prepare, "DATA", tmp_path)

    def run(**settings):
        script["main"](script["Settings"](input=(texts,), name="mine", **settings))
        return dataset.load_dataset(tmp_path / "mine", 8)

    with refused("choose one by --column"):
        run(val=(val,))
    with refused("--encoding=cp1252: it is for texts and .csv; leave it out"):
        (texts / "b.txt").rename(tmp_path / "b.txt")
        run(column="content", encoding="cp1252")
    (tmp_path / "b.txt").rename(texts / "b.txt")
    data = run(val=(other_name,), column="content")
    assert {*data.tokenizer.decode(data.train)} == {*"abchijklm 0123456789\n"}
    assert data.tokenizer.decode(data.val) == "\n".join(["xyz"] * 30)
    [path.unlink() for path in texts.glob("*.jsonl*")]
    (texts / "c.txt").write_text("xyz " * 9)
    data = run(val=(texts / "c.txt",))
    with refused("--column=content: only tables have columns"):
        run(column="content")
    assert data.tokenizer.decode(data.val) == "xyz " * 9
    assert data.tokenizer.decode(data.train) == "hij " * 400


def test_the_hub(tmp_path, monkeypatch):
    """Catches another dataset than its name, and --tokens that reads on."""
    path = jsonl(tmp_path / "a.jsonl", documents(1000))
    really = datasets.load_dataset
    calls = []

    def load_dataset(*name, **how):
        calls.append((*name, how))
        return really("json", data_files=str(path), **how)

    def prepare_hub(name, *flags):
        monkeypatch.setattr("sys.argv", ["prepare.py", "--tokenizer=byte", *flags])
        openwebtext.prepare(tmp_path / name, "someone/something", "sample")
        return dataset.load_dataset(tmp_path / name, 8)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    whole = prepare_hub("hub")
    part = prepare_hub("part", "--tokens=90000")
    about = {"split": "train", "streaming": False}
    assert calls[0] == ("someone/something", "sample", about) and calls[-1][2]["streaming"]
    assert 90_000 <= len(part.train) + len(part.val) < len(whole.train) / 1.3
    assert np.array_equal(part.train, whole.train[: len(part.train)])


@parametrize("name", ["openwebtext", "fineweb_edu"])
def test_the_scripts_of_the_hub(name, monkeypatch):
    """Catches a script that does not start, or names no dataset."""
    calls = []
    monkeypatch.setattr("sys.argv", ["prepare.py", "--tokens=5"])
    for module in prepare, openwebtext:
        monkeypatch.setattr(module, "write_large_dataset", lambda *what: calls.append(what))
    runpy.run_path(str(dataset.DATA / name / "prepare.py"), run_name="__main__")
    folder, _, tokenizer, source, limit = calls[0]
    assert folder == dataset.DATA / name and "/" in source and (tokenizer, limit) == ("gpt2", 5)
