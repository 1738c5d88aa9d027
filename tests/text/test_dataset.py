"""Datasets that are loaded: batches are pure functions, and damage is named."""

import json
import math
import shutil

import numpy as np
import torch
from conftest import parametrize, refused
from hypothesis import given
from hypothesis import strategies as st

from engine import dataset, files, prepare


def test_batches_are_a_function_of_their_generator():
    """Catches hidden state in the loader, targets that are not one later, and a last window that is
    never drawn.
    """
    tokens = np.arange(50, dtype=np.uint16)

    def batch(size, seed):
        return dataset.random_batch(tokens, size, 8, np.random.default_rng(seed))

    x, y = batch(4, [1, 2, 3])
    assert x.shape == (4, 8) and x.dtype == torch.int64
    assert torch.equal(y, x + 1) and torch.equal(batch(4, [1, 2, 3])[0], x)
    assert x[:, 0].tolist() == [40, 28, 36, 4]  # as all versions drew them
    assert {*batch(5000, 0)[0][:, 0].tolist()} == {*range(42)}


@given(st.integers(2, 100), st.integers(1, 5), st.integers(1, 9), st.integers(0, 9))
def test_every_token_is_a_target_once(length, batch_size, block_size, stride):
    """Catches a validation loss that skips the end of the text, counts a token twice or shortens
    its context.
    """
    tokens = np.arange(length, dtype=np.uint16)
    stride = min(stride, block_size)
    seen = []
    for x, y in dataset.sequential_batches(tokens, batch_size, block_size, stride):
        assert x.shape == y.shape == (batch_size, block_size)
        assert torch.equal(y[y >= 0], x[y >= 0] + 1)
        seen += y[y >= 0].tolist()
        contexts = y - x[:, :1]
        least = y.clamp(max=block_size - (stride or block_size) + 1)
        assert (contexts >= least)[y >= 0].all()
    assert seen == [*range(1, length)]


def test_bits_per_byte(tmp_path):
    """Catches nats taken for bits, or tokens for bytes."""
    for text, size in ("a", 1), ("ß", 2), ("猫", 3):
        prepare.write_dataset(tmp_path, [text * 400], "char", "letters")
        data = dataset.load_dataset(tmp_path, 8)
        assert math.isclose(data.bits_per_byte(math.log(2)), 1 / size)


def test_nanogpts_folder_loads_as_it_is(tmp_path, gpt2_files, capsys):
    """Catches a need for meta.json, other tokens that are taken for GPT-2's, and foreign code that
    is run.
    """

    def load(message):
        with refused(message):
            dataset.load_dataset(tmp_path, 8)

    (tmp_path / "prepare.py").write_text("raise SystemExit('it ran')")
    load("has no train.bin.*prepare.py --input FILE")
    for split in dataset.SPLITS:
        np.arange(40, dtype="<u2").tofile(tmp_path / f"{split}.bin")
    data = dataset.load_dataset(tmp_path, 8)
    assert "no meta.json: reading it as GPT-2's tokens" in capsys.readouterr().out
    assert data.tokenizer.vocab_size == 50257 and data.bits_per_byte(1.0) > 0
    assert data.train.tolist() == [*range(40)]
    hashes = {split: files.sha256_of_file(tmp_path / f"{split}.bin") for split in dataset.SPLITS}
    assert data.hashes == hashes
    (tmp_path / "val.bin").write_bytes(b"abc")
    load("val.bin has 3 bytes, not 2 for each of 1 tokens")
    np.full(40, 60_000, "<u2").tofile(tmp_path / "val.bin")
    load("val.bin has token id 60000; the vocabulary has 50257")
    (tmp_path / "meta.pkl").write_bytes(b"not even a pickle")
    load("has a meta.pkl, .*never read because a pickle can run any code")


def without_val(good):
    meta = json.loads(good)
    del meta["val"], meta["sha256"]
    return json.dumps(meta | {"sha256": files.sha256_of_json(meta)}).encode()


@parametrize(
    "name, damage, message",
    [
        ("val.bin", lambda good: good[:-2], "val.bin has .* bytes, not 2 for each"),
        ("val.bin", lambda good: b"\xff\x00" + good[2:], "token id 255; the vocabulary has"),
        ("val.bin", lambda good: good[2:4] + good[2:], "its sha256 is not the one in meta.json"),
        ("meta.json", lambda good: good.replace(b"T", b"X", 1), "meta.json is damaged"),
        ("meta.json", lambda good: good[:-1], r"cannot be read \(\S*meta.json is damaged"),
        ("meta.json", without_val, r"\S cannot be read .KeyError: 'val'"),
    ],
)
def test_damaged_datasets(poem, tmp_path, name, damage, message):
    """Catches damage that would train on nonsense, or on another character."""
    path = tmp_path / "poem" / name
    path.write_bytes(damage(path.read_bytes()))
    with refused(message):
        dataset.load_dataset(poem, 8)


def test_a_large_dataset_is_not_read_at_the_start(poem, tmp_path, monkeypatch):
    """Catches a start that takes minutes, or that looks at no token at all."""
    path = tmp_path / "poem" / "train.bin"
    good = path.read_bytes()
    monkeypatch.setattr(dataset, "SMALL", 1000)
    path.write_bytes(good[:1000] + b"\xff\xff" + good[1002:])
    assert len(dataset.load_dataset(poem, 8).train) == len(good) // 2
    path.write_bytes(good[:998] + b"\xff\xff" + good[1000:])
    with refused("token id 65535"):
        dataset.load_dataset(poem, 8)


def test_code_in_a_copied_folder(tmp_path):
    """Catches a prepare.py that came with somebody else's dataset and is run by training on it."""
    foreign = dataset.DATA / f"test-{tmp_path.name}"
    foreign.mkdir()
    try:
        (foreign / "prepare.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        name = foreign.name
        for path in name, f"{name}/", foreign, f"../data/{name}", f"stdlib/../{name}":
            with refused("prepare.py"):
                dataset.load_dataset(path, 8)
            assert not (tmp_path / "ran").exists()
    finally:
        shutil.rmtree(foreign)


def test_names_that_are_not_there(poem):
    """Catches a traceback for a misspelt dataset, a text or a text that is too short."""
    for name in "shakespeare_chr", str(files.ROOT / "README.md"):
        with refused("text/prepare.py.*, or choose .*shakespeare_char"):
            dataset.load_dataset(name, 8)
    with refused("'openwebtext' has no train.bin and val.bin: run its prepare.py"):
        dataset.load_dataset("openwebtext", 8)
    with refused("block_size=5000 needs at least 5,001"):
        dataset.load_dataset(poem, 5000)
