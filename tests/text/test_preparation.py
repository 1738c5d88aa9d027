"""Documents to token files: nothing is lost, and an interruption leaves no mixture."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import POEM, SHARED, refused
from hypothesis import given
from hypothesis import strategies as st

from data.shakespeare import prepare as shakespeare
from engine import dataset, files, prepare
from train import TrainConfig

FILES = "train.bin", "val.bin", "meta.json"  # in the order in which they appear, but the first two


def test_written_and_read_back(tmp_path):
    """Catches lost or reordered text, a split of one's own that is mixed, characters without the
    line end with which sample.py begins, a meta.json that does not describe the files, and other
    epochs than train.py makes.
    """
    text = POEM.replace("\n", " ") * 5 + "the end"
    train, val = text[:500], text[500:]
    prepare.write_dataset(tmp_path, [train], "char", "poem.txt", val=[val])
    data = dataset.load_dataset(tmp_path, 8)
    meta = files.read_json(tmp_path / "meta.json")
    config = TrainConfig()
    assert config.gradient_accumulation_steps == 1
    assert meta["dtype"] == "uint16" and meta["vocab_size"] == len({*text, "\n"})
    assert meta["source"] == {"name": "poem.txt", "sha256": files.sha256_of([text.encode()])}
    for split, expected in ("train", train), ("val", val):
        assert data.tokenizer.decode(getattr(data, split)) == expected
        assert meta[split] == {
            "documents": 1,
            "tokens": len(expected),
            "characters": len(expected),
            "sha256": files.sha256_of_file(tmp_path / f"{split}.bin"),
        }
    assert meta["epochs"] * len(train) == config.max_iters * config.batch_size * config.block_size
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == sorted(FILES)


def test_repeated_lines(tmp_path, monkeypatch, capsys):
    """Catches lines of one's validation text that were trained on, without a word."""
    lines = [f"This is line {n:09}\n" for n in range(2000)]
    for most in 2**20, 400:  # of all lines, and of a sample
        monkeypatch.setattr(prepare, "LINES", most)
        val = "".join(["short\n", *lines[:300], "x" * 20 + "\n"] + lines[1000:1100])
        prepare.write_dataset(
            tmp_path, ["short\n" + "".join(lines[200:1000])], "byte", "lines", [val]
        )
        found = files.read_json(tmp_path / "meta.json")["repeated_lines"]
        assert found == 100 / 401 or most == 400 and 0.1 < found < 0.4
        assert f"{found:.1%} of val's lines" in capsys.readouterr().out


def test_whole_documents_validate(tmp_path):
    """Catches validation text that is also trained on, and documents that run into each other."""
    documents = [f"document {n:02}" for n in range(25)]
    prepare.write_dataset(tmp_path, iter(["", *documents]), "byte", "documents")
    data = dataset.load_dataset(str(tmp_path), 4)
    assert data.tokenizer.decode(data.val.tolist()) == "document 04\ndocument 14\ndocument 24"
    train = data.tokenizer.decode(data.train.tolist()).split("\n")
    assert train == [document for document in documents if document[-1] != "4"]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(0, 2**31))
def test_a_tenth_of_any_documents(lengths, seed):
    """Catches a validation split that is one large file, nothing at all, or text that is lost."""
    rng = np.random.default_rng(seed)
    documents = ["".join(rng.choice([*"ab \n"], size=length)) for length in lengths]
    train, val = prepare.split_documents(documents)
    total = sum(lengths)
    share = sum(map(len, val)) / total
    assert sum(map(len, train + val)) == total
    assert total <= 1000 or 0.04 < share < 0.16
    if len(train + val) == len(documents) >= 20:
        assert sorted(train + val) == sorted(documents)


def test_the_end_of_each_document_validates():
    """Catches a cut in a word, and a validation split without the longest document."""
    lines = "".join(f"line {n}\n" for n in range(2600))
    train, val = prepare.split_documents([lines, "end"])
    assert [*map("".join, zip(train, val))] == [lines, "end"] and train[0].endswith("\n")
    long = "LONG\n" * 12_000
    train, val = prepare.split_documents([*["short\n" * 300] * 40, long])
    assert 0.3 < "".join(val).count("LONG") / 1200 < 3


def test_nanogpts_tokens(tmp_path, gpt2_files):
    """Catches other tokens than those nanoGPT writes for tiny Shakespeare."""
    text = SHARED / "tinyshakespeare" / "input.txt"
    if not text.exists():
        pytest.skip("needs ../shared/data/tinyshakespeare/input.txt")
    for name, counts in ("char", (1_003_854, 111_540)), ("gpt2", (301_966, 36_059)):
        (tmp_path / name).mkdir()
        shutil.copy(text, tmp_path / name)
        shakespeare.prepare(tmp_path / name, name)
        data = dataset.load_dataset(tmp_path / name, 8)
        assert (len(data.train), len(data.val)) == counts


def test_a_preparation_that_is_interrupted(poem, tmp_path, monkeypatch):
    """Catches a new train.bin beside an old val.bin that load as if they were one dataset."""
    folder = tmp_path / "poem"
    for file in FILES:

        def replace(source, target, really=os.replace):
            really(source, target)
            if Path(target) == folder / file:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "replace", replace)
            prepare.write_dataset(folder, ["Another text. " * 200], "char", "another")
        if file == "meta.json":
            assert "A" in dataset.load_dataset(poem, 8).tokenizer.characters
        else:
            with refused("has no meta.json: prepare it again"):
                dataset.load_dataset(poem, 8)
        prepare.write_dataset(folder, [POEM * 30], "char", "a poem")
        assert "T" in dataset.load_dataset(poem, 8).tokenizer.characters
        assert sorted(path.name for path in folder.glob("[!.]*")) == sorted(FILES)


def test_download_without_network_or_with_another_file(tmp_path):
    """Catches a half-written or forged file that is kept, and a traceback without a network."""
    good, path = tmp_path / "good.txt", tmp_path / "input.txt"
    good.write_text("good")
    with refused("not the expected file"):
        shakespeare.download(good.as_uri(), "0" * 64, path)
    assert not path.exists()
    with refused("get the file another way, as .*input.txt"):
        shakespeare.download("http://127.0.0.1:9/none", "0" * 64, path)
    shakespeare.download(good.as_uri(), files.sha256_of([b"good"]), path)
    assert path.read_text() == "good"
