"""Any number of files to token files: the same bytes on any path to them, and bad files that are named."""

import gzip
import hashlib
import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
from conftest import POEM, complaint, run_here
from hypothesis import given
from hypothesis import strategies as st

from engine.common import files
from engine.text import dataset, documents, preparation, streams
from engine.text import tokenizer as tokenizer_module

WORDS = (POEM * 3).split()


def texts(count, seed=0):
    """Documents of many lengths, some of them empty or with what separates documents."""
    rng = np.random.default_rng(seed)
    found = [
        " ".join(rng.choice(WORDS, size=rng.integers(1, 60))) + "\n" * int(rng.integers(3))
        for _ in range(count)
    ]
    return [*found[:3], "", "<|endoftext|>", "Füße 猫 🐈\r\n", *found[3:]]


def jsonl(path, documents, key="text", **how):
    path.write_text(
        "".join(json.dumps({key: text}, **how) + "\n" for text in documents), encoding="utf-8"
    )
    return path


def parquet(path, documents, key="text", **how):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({key: documents}), path, **how)
    return path


def small(monkeypatch):
    """Shards and batches of a few documents."""
    monkeypatch.setattr(preparation, "SHARD", 3000)
    monkeypatch.setattr(preparation, "BATCH", 500)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepared(folder, paths, tokenizer="byte", **settings):
    streams.write_stream(
        folder,
        [documents.Part(path) for path in paths],
        tokenizer,
        "texts",
        **{"val_share": 0.2} | settings,
    )
    return dataset.load_dataset(str(folder), 8)


def test_every_kind_of_file(tmp_path, monkeypatch):
    """Catches a kind of file that loses, reorders or changes texts, or that differs from another kind with the same texts."""
    small(monkeypatch)
    documents, zstandard = texts(200), pytest.importorskip("zstandard")
    lines = jsonl(tmp_path / "a.jsonl", documents).read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines[:9000]) + gzip.compress(lines[9000:]))
    (tmp_path / "c.jsonl.zst").write_bytes(
        zstandard.compress(lines[:9000]) + zstandard.compress(lines[9000:])
    )
    (tmp_path / "e.jsonl").write_bytes(
        b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n\n")
    )  # a BOM, CRLF and empty lines
    parquet(tmp_path / "d.parquet", documents, row_group_size=17)
    for path in sorted(tmp_path.glob("?.*")):
        part = documents.Part(path)
        assert [text for text, _ in part.read()] == documents
        for start in (0, 1, 17, 20, 203, 206):
            assert [text for text, _ in part.read(start)] == documents[start:]
        folder = tmp_path / f"of {path.name}"
        prepared(folder, [path])
        before = content(folder)
        assert {name: before[name] for name in before} == content(tmp_path / "of a.jsonl")


def test_shards_and_the_split(tmp_path, monkeypatch):
    """Catches text that is lost at the end of a shard, a split that depends on more than it, and borders without a mark."""
    small(monkeypatch)
    documents = texts(400)
    first, second = (
        jsonl(tmp_path / "a.jsonl", documents[:150]),
        jsonl(tmp_path / "b.jsonl", documents[150:]),
    )
    data = prepared(tmp_path / "x", [first, second])
    meta = json.loads((tmp_path / "x" / "meta.json").read_text())
    share, expected = 0.2, {"train": [], "val": []}
    for text in filter(None, documents):
        digest = hashlib.sha256(text.encode()).digest()
        expected["val" if int.from_bytes(digest[:8], "big") < share * 2**64 else "train"].append(
            text
        )
    for name, tokens in (("train", data.train), ("val", data.val)):
        assert data.tokenizer.decode(tokens[:].tolist()) == "\n".join(expected[name])
        assert meta[name]["tokens"] == len(tokens) and meta[name]["characters"] == len(
            "\n".join(expected[name])
        )
        files = dataset.files_of(tmp_path / "x", name)
        assert [shard["tokens"] for shard in meta[name]["shards"]] == [
            path.stat().st_size // 2 for path in files
        ]
        assert all(
            shard["sha256"] == dataset.sha256_of_file(path)
            for shard, path in zip(meta[name]["shards"], files)
        )
    assert (
        len(meta["train"]["shards"]) > 5
        and max(shard["tokens"] for shard in meta["train"]["shards"]) == 3000
    )
    assert not (tmp_path / "x" / "new").exists()
    prepared(tmp_path / "y", [second, first])
    again = dataset.load_dataset(str(tmp_path / "y"), 8)
    assert sorted(again.tokenizer.decode(again.val[:].tolist())) == sorted(
        data.tokenizer.decode(data.val[:].tolist())
    )


def killed(function, number):
    """Run function in a fork that is killed at the number-th write or rename; whether it came to its end before."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    count = 0

    def deadly(really):
        def call(*arguments, **settings):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return really(*arguments, **settings)

        return call

    try:
        preparation.Split.append, os.replace = deadly(preparation.Split.append), deadly(os.replace)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        function()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("tokenizer, tokens", [("byte", 0), ("char", 0), ("byte", 9000)])
def test_killed_at_any_time(tmp_path, monkeypatch, tokenizer, tokens):
    """Catches a preparation that is interrupted and ends with other bytes, or does all of its work again."""
    small(monkeypatch)
    paths = [
        jsonl(tmp_path / f"{n}.jsonl", [*texts(60, seed=n), "one long document\n" * 100])
        for n in range(3)
    ]
    prepared(tmp_path / "whole", paths, tokenizer, tokens=tokens)
    rng, resumed = np.random.default_rng(0), 0
    for round in range(4):
        folder = tmp_path / str(round)
        while not killed(
            lambda: prepared(folder, paths, tokenizer, tokens=tokens), int(rng.integers(2, 60))
        ):
            resumed += (folder / "new" / "journal.json").exists()
        assert content(folder) == content(tmp_path / "whole")
    assert resumed > 4


def test_other_settings_start_anew(tmp_path, monkeypatch, capsys):
    """Catches shards of two preparations that are mixed, because a file or a setting has changed in between."""
    small(monkeypatch)
    path = jsonl(tmp_path / "a.jsonl", texts(200))
    shard = tmp_path / "x" / "new" / "train_000001.bin"
    for change in (lambda: None, lambda: jsonl(path, texts(200, seed=1)), shard.unlink):
        killed(lambda: prepared(tmp_path / "x", [path]), 75)
        change()
        data = prepared(tmp_path / "x", [path])
        prepared(tmp_path / "y", [path])
        assert content(tmp_path / "x") == content(tmp_path / "y") and len(data.train)
        shutil.rmtree(tmp_path / "x")
    said = capsys.readouterr().out
    assert all(
        words in said
        for words in ("going on after ", "other settings or inputs: starting anew", "is not whole")
    )


DAMAGED = {
    "cut.jsonl.gz": (lambda good: gzip.compress(good)[:-100], "cut.jsonl.gz is damaged after line"),
    "bad.jsonl.gz": (lambda good: b"no gzip", "bad.jsonl.gz is damaged after line 0"),
    "cut.jsonl.zst": (
        lambda good: pytest.importorskip("zstandard").compress(good)[:-9],
        "cut.jsonl.zst is damaged after line",
    ),
    "bad.jsonl.zst": (lambda good: b"no zstd", "bad.jsonl.zst is damaged after line 0"),
    "cut.jsonl": (lambda good: good[:-9], "cut.jsonl, line 33 is not JSON"),
    "list.jsonl": (lambda good: good + b"[1]\n", "list.jsonl, line 34 is a list"),
    "number.jsonl": (
        lambda good: good + b'{"text": 5}\n',
        "number.jsonl, line 34: 'text' is a int, not a text",
    ),
    "bytes.jsonl": (lambda good: good + b'{"text": "\xff"}\n', "bytes.jsonl, line 34 is not JSON"),
    "bytes.txt": (lambda good: good + b"\xff", "bytes.txt is not UTF-8 text"),
    "bad.parquet": (lambda good: b"no parquet", "bad.parquet is damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_one_damaged_file_of_many(tmp_path, name, capsys):
    """Catches a traceback that names no file, text that is left out in silence, and one bad file that costs all of them."""
    damage, message = DAMAGED[name]
    good = [jsonl(tmp_path / f"{n}.jsonl", texts(30, seed=n)) for n in range(2)]
    (tmp_path / name).write_bytes(damage(good[0].read_bytes()))
    with pytest.raises(ValueError, match=message.replace(".", r"\.") + ".*--skip_damaged"):
        prepared(tmp_path / "x", [good[0], tmp_path / name, good[1]])
    assert not (tmp_path / "x").exists()
    data = prepared(tmp_path / "x", [good[0], tmp_path / name, good[1]], skip_damaged=True)
    assert f"skipped the rest of {tmp_path / name}: " in capsys.readouterr().out
    assert len(data.train) > 3000 and name in (tmp_path / "x" / "meta.json").read_text()


def test_damage_in_a_row_group(tmp_path):
    """Catches a corrupt column chunk that is reported without its place, or that is read as if it were text."""
    path = parquet(
        tmp_path / "a.parquet",
        ["".join(chr(97 + n * k % 26) for k in range(500)) for n in range(100)],
        row_group_size=10,
        compression="snappy",
        use_dictionary=False,
    )
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.parquet is damaged in row group \d"):
        list(documents.Part(path).read())


def test_columns(tmp_path):
    """Catches a wrong column that is found out after an hour, or with no word about the right one."""
    for path in (
        jsonl(tmp_path / "a.jsonl", ["x"], key="content"),
        parquet(tmp_path / "a.parquet", ["x"], key="content"),
    ):
        with pytest.raises(
            ValueError, match=r"no (column )?'text': .*choose .* by --column \(content\)"
        ) as caught:
            prepared(tmp_path / "x", [path], skip_damaged=True)
        assert path.name in str(caught.value)
        assert [text for text, _ in documents.Part(path, "content").read()] == ["x"]
    with pytest.raises(ValueError, match="column 'text' holds int64, not text"):
        list(documents.Part(parquet(tmp_path / "n.parquet", [1, 2])).read())
    with pytest.raises(ValueError, match="texts: it has no text"):
        prepared(tmp_path / "x", [parquet(tmp_path / "empty.parquet", np.array([], dtype=str))])
    with pytest.raises(
        ValueError, match="texts: none of its 1 documents fell to val: choose another --val_share"
    ):
        prepared(tmp_path / "x", [jsonl(tmp_path / "one.jsonl", ["one text"])], val_share=1e-9)
    assert not (tmp_path / "x").exists()


def test_half_a_surrogate_pair(tmp_path):
    r"""Catches a \ud800 in JSON, which cannot be encoded, and a whole pair or a backslash that is taken for one."""
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "a\ud800b \ud83d\ude00 \\ud800"}' + '\n{"text": null}\n')
    assert [text for text, _ in documents.Part(path).read()] == ["a\ufffdb 😀 \\ud800", ""]


def test_a_file_that_changes_while_it_is_read(tmp_path):
    """Catches half of the old and half of the new, as if that had been the text."""
    path = jsonl(tmp_path / "a.jsonl", texts(30))
    part = documents.Part(path)
    os.truncate(path, path.read_bytes().index(b"\n") + 1)
    with pytest.raises(ValueError, match="a.jsonl was changed while it was read"):
        list(part.read())


def test_a_long_text_is_many_documents(tmp_path, monkeypatch):
    """Catches a text of any length that must fit into memory, and words or characters that a cut takes apart."""
    monkeypatch.setattr(documents, "SECTION", 100)
    text = "Füße, ein Wort\n" * 200
    (tmp_path / "a.txt").write_text("\ufeff" + text, encoding="utf-8")
    sections = [section for section, _ in documents.Part(tmp_path / "a.txt").read()]
    assert (
        "".join(sections) == text
        and len(sections) > 25
        and all(section.endswith("Wort\n") for section in sections)
    )
    assert [section for section, _ in documents.Part(tmp_path / "a.txt").read(7)] == sections[7:]
    (tmp_path / "a.txt").write_bytes(text.encode() + b"x\0")
    with pytest.raises(ValueError, match=rf"offset {len(text.encode()) + 1}\)"):
        list(documents.Part(tmp_path / "a.txt").read())


def test_a_line_that_would_fill_the_memory(tmp_path, monkeypatch):
    """Catches a small archive that unpacks to a line of any size."""
    monkeypatch.setattr(documents, "LONGEST", 1 << 20)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(ValueError, match="a.jsonl.gz is damaged after line 0 .a line of more than"):
        list(documents.Part(tmp_path / "a.jsonl.gz").read())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_shards_are_one_sequence(lengths, data):
    """Catches a token that is lost or doubled where one shard ends and the next begins."""
    numbers = np.arange(sum(lengths), dtype=np.uint16)
    tokens = dataset.Tokens(np.split(numbers, np.cumsum(lengths)[:-1]), 1000, "x")
    assert len(tokens) == len(numbers) and tokens.dtype == numbers.dtype
    places = st.integers(-len(numbers), len(numbers) - 1)
    index = np.array(
        data.draw(st.lists(st.lists(places, min_size=3, max_size=3), max_size=4)), dtype=int
    ).reshape(-1, 3)
    bounds = st.none() | st.integers(-400, 400)
    cut = slice(
        data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, -1, 7]))
    )
    assert np.array_equal(tokens[index], numbers[index]) and np.array_equal(
        tokens[cut], numbers[cut]
    )
    assert tokens[3 % len(numbers)] == 3 % len(numbers)
    for outside in len(numbers), -len(numbers) - 1:
        with pytest.raises(IndexError):
            tokens[outside]


def test_batches_of_shards(tmp_path, monkeypatch):
    """Catches a batch that depends on where shards end, and an old meta.json that no longer loads."""
    path = jsonl(tmp_path / "a.jsonl", texts(200))
    one = prepared(tmp_path / "one", [path])
    small(monkeypatch)
    many = prepared(tmp_path / "many", [path])
    assert (tmp_path / "one" / "train.bin").exists() and (
        tmp_path / "many" / "train_000003.bin"
    ).exists()
    for x, y in zip(
        dataset.random_batch(one.train, 64, 30, np.random.default_rng(0)),
        dataset.random_batch(many.train, 64, 30, np.random.default_rng(0)),
    ):
        assert x.equal(y)
    for x, y in zip(
        dataset.sequential_batches(one.val, 4, 30),
        dataset.sequential_batches(many.val, 4, 30),
        strict=True,
    ):
        assert x[0].equal(y[0]) and x[1].equal(y[1])
    meta = json.loads((tmp_path / "one" / "meta.json").read_text())
    del meta["sha256"]
    for shards in [], [{"tokens": 5, "sha256": ""}], 7, [[]]:
        damaged = meta | {"val": meta["val"] | {"shards": shards}}
        (tmp_path / "one" / "meta.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match="meta.json is damaged"):
            dataset.load_dataset(str(tmp_path / "one"), 8)
    for split in meta["train"], meta["val"]:
        del split["shards"]
    (tmp_path / "one" / "meta.json").write_text(json.dumps(meta))
    assert np.array_equal(dataset.load_dataset(str(tmp_path / "one"), 8).train, one.train)


def test_a_large_dataset_is_not_read_at_the_start(tmp_path, monkeypatch):
    """Catches a start that takes minutes, damage that is drawn in silence, and a check that was asked for and not made."""
    small(monkeypatch)
    prepared(tmp_path / "x", [jsonl(tmp_path / "a.jsonl", texts(200))])
    shard = tmp_path / "x" / "train_000001.bin"
    shard.write_bytes(b"\xff\xff" * (shard.stat().st_size // 2))
    monkeypatch.setattr(dataset, "SMALL", 0)
    data = dataset.load_dataset(str(tmp_path / "x"), 8)
    assert len(data.train[:3000]) == 3000
    with pytest.raises(ValueError, match="token id 65535; the vocabulary has 256"):
        data.train[2990:3010]
    with pytest.raises(ValueError, match="train_000001.bin has token id 65535"):
        dataset.load_dataset(str(tmp_path / "x"), 8, verify=True)
    shard.write_bytes(bytes(shard.stat().st_size))
    dataset.load_dataset(str(tmp_path / "x"), 8)
    with pytest.raises(ValueError, match="train_000001.bin is damaged .its sha256"):
        dataset.load_dataset(str(tmp_path / "x"), 8, verify=True)
    shard.unlink()
    with pytest.raises(ValueError, match="train_000001.bin is missing"):
        dataset.load_dataset(str(tmp_path / "x"), 8)


def test_another_number_of_shards(tmp_path, monkeypatch):
    """Catches files of an earlier preparation that stay beside those of the new one."""
    path = jsonl(tmp_path / "a.jsonl", texts(200))
    for shard in (3000, 4000, 10**9, 4000):
        monkeypatch.setattr(preparation, "SHARD", shard)
        prepared(tmp_path / "x", [path])
        meta = json.loads((tmp_path / "x" / "meta.json").read_text())
        names = [
            name
            for split in ("train", "val")
            for name in preparation.shard_names(split, len(meta[split]["shards"]))
        ]
        assert sorted([*names, "meta.json"]) == sorted(content(tmp_path / "x"))


def test_prepare_of_streams(tmp_path):
    """Catches a script that does not know jsonl, mixes validation files into training, or forgets a file in a folder."""
    name = f"test-{tmp_path.name}"
    (tmp_path / "texts").mkdir()
    jsonl(tmp_path / "texts" / "a.jsonl", ["abc " * 9] * 30, key="content")
    (tmp_path / "texts" / "b.txt").write_text("hij " * 400)
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG\x00")
    val = jsonl(tmp_path / "val.jsonl", ["xyz "] * 30, key="content")
    flags = ["--input", tmp_path / "texts", f"--name={name}", "--val", val]
    try:
        line = complaint(run_here("data/text/prepare.py", *flags))
        assert "no 'text': rename one, or choose its text by --column (content)" in line
        assert not (dataset.DATA / name).exists()
        result = run_here("data/text/prepare.py", *flags, "--column=content")
        assert (
            result.returncode == 0
            and "skipped 1 that are not UTF-8 text: picture.png" in result.stdout
        ), result
        data = dataset.load_dataset(name, 8)
        assert set(data.tokenizer.decode(data.train.tolist())) == set("abchij \n")
        assert set(data.tokenizer.decode(data.val.tolist())) == set("xyz \n")
    finally:
        shutil.rmtree(dataset.DATA / name, ignore_errors=True)


def test_a_character_of_a_stream_that_a_tokenizer_lacks(tmp_path, monkeypatch):
    """Catches an error that names no document."""
    monkeypatch.setattr(
        streams,
        "tokenizer_of_folder",
        lambda name: tokenizer_module.create_tokenizer("char", "abc\n"),
    )
    with pytest.raises(ValueError, match="a.jsonl, document 2: character 'd'"):
        prepared(tmp_path / "x", [jsonl(tmp_path / "a.jsonl", ["abc", "abd"])])


def test_a_text_that_cannot_be_encoded(tmp_path, gpt2_files):
    """Catches an error of a regular expression that names none of a million documents."""
    path = jsonl(tmp_path / "a.jsonl", [*texts(30), "blanks" + " " * 2_000_000 + "!"])
    with pytest.raises(
        ValueError, match="the text that begins with 'blanks  .* cannot be encoded: Regex error"
    ):
        prepared(tmp_path / "x", [path], "gpt2")


def test_ctrl_c(tmp_path, monkeypatch, capsys):
    """Catches a traceback, work that is lost, and a message that does not say how to go on."""
    small(monkeypatch)
    path, append, count = jsonl(tmp_path / "a.jsonl", texts(200)), preparation.Split.append, 0

    def interrupted(split, ids):
        nonlocal count
        count += 1
        if count in (3, 70):
            raise KeyboardInterrupt
        append(split, ids)

    monkeypatch.setattr(preparation.Split, "append", interrupted)
    for message, left in (
        ("interrupted: nothing is kept", False),
        (r" tokens are kept; the same command goes on", True),
    ):
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path / "x", [path])
        assert message in capsys.readouterr().out and (tmp_path / "x" / "new").exists() == left
    prepared(tmp_path / "x", [path])
    prepared(tmp_path / "y", [path])
    assert (
        content(tmp_path / "x") == content(tmp_path / "y")
        and "going on after" in capsys.readouterr().out
    )


def test_several_processes(tmp_path, monkeypatch):
    """Catches batches that come in another order, or in other ids, where several processes encode them."""
    monkeypatch.setattr(preparation, "BATCH", 500)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    path, found = jsonl(tmp_path / "a.jsonl", texts(300)), []
    for alone in 0, 3, 10**6:
        monkeypatch.setattr(preparation, "ALONE", alone)
        prepared(tmp_path / str(alone), [path], "bpe:300")
        found.append(content(tmp_path / str(alone)))
    assert found[0] == found[1] == found[2]


def test_a_process_that_is_killed(tmp_path, monkeypatch):
    """Catches a preparation that waits for ever for a process that is dead."""

    class Pool(preparation.workers.Pool):
        def __init__(self, count):
            super().__init__(count)
            self.processes[0].kill()

    small(monkeypatch)
    alone = preparation.encoded
    monkeypatch.setattr(
        preparation, "encoded", lambda *args: time.sleep(0.1) or alone(*args)
    )  # others get their share
    monkeypatch.setattr(preparation.workers, "Pool", Pool)
    monkeypatch.setattr(preparation.workers, "cores", lambda: 2)
    with pytest.raises(ValueError, match="was killed: is there enough memory?"):
        prepared(tmp_path / "x", [jsonl(tmp_path / "a.jsonl", texts(3000))], "bpe:300")


def test_good_lines_before_the_damage(tmp_path):
    """Catches lines that are lost although they can be read, and half a surrogate pair that nobody names."""
    lines = jsonl(tmp_path / "a.jsonl", texts(500)).read_bytes()
    whole = gzip.compress(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(whole + b"\x1f\x8b garbage")
    (tmp_path / "c.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    found = {name: [] for name in "bc"}
    for name in found:
        with pytest.raises(files.DamagedFile, match=r"is damaged after line [1-9]"):
            for text, _ in documents.Part(tmp_path / f"{name}.jsonl.gz").read():
                found[name].append(text)
    written = [json.loads(line)["text"] for line in lines.splitlines()]
    assert (
        found["b"] == written and found["c"] == written[: len(found["c"])] and len(found["c"]) > 100
    )
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xed\xa0\x80"}\n')
    with pytest.raises(files.DamagedFile, match="d.jsonl, line 2 is not JSON"):
        [*documents.Part(tmp_path / "d.jsonl").read()]
