"""Datasets that are loaded: batches are pure functions, and damage is named."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.common import files
from engine.text import dataset, preparation


def test_batches_are_a_function_of_their_generator():
    """Catches hidden state in the loader, targets that are not one later, and a last window that is
    never drawn.
    """
    tokens = np.arange(50, dtype=np.uint16)
    x, y = dataset.random_batch(tokens, 4, 8, np.random.default_rng([1, 2, 3]))
    again, _ = dataset.random_batch(tokens, 4, 8, np.random.default_rng([1, 2, 3]))
    assert torch.equal(x, again) and torch.equal(y, x + 1)
    assert x.shape == (4, 8) and x.dtype == torch.int64
    assert x[:, 0].tolist() == [40, 28, 36, 4]  # as all versions drew them
    starts = dataset.random_batch(tokens, 5000, 8, np.random.default_rng(0))[0][:, 0]
    assert set(starts.tolist()) == set(range(42))


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
        for inputs, targets in zip(x, y):
            for target in targets[targets >= 0].tolist():
                seen.append(target)
                context = target - int(inputs[0])
                assert context >= min(target, block_size - (stride or block_size) + 1)
    assert seen == list(range(1, length))


def test_bits_per_character(poem):
    """Catches nats taken for bits, or tokens for characters."""
    data = dataset.load_dataset(poem, 8)
    assert math.isclose(data.bits_per_character(math.log(2)), 1.0)
    data.tokens_per_character = 0.25
    assert math.isclose(data.bits_per_character(math.log(2)), 0.25)


def test_nanogpts_folder_loads_as_it_is(tmp_path, gpt2_files):
    """Catches a need for meta.json, a folder half prepared that is taken for nanoGPT's, and foreign
    code that is run.
    """
    (tmp_path / "prepare.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ValueError, match="has no train.bin.*prepare.py --input .* --name mine"):
        dataset.load_dataset(str(tmp_path), 8)
    for split in "train", "val":
        (tmp_path / f"{split}.bin").write_bytes(np.arange(40, dtype="<u2").tobytes())
    with pytest.raises(ValueError, match="prepare it again; or .*--data_tokenizer=gpt2"):
        dataset.load_dataset(str(tmp_path), 8)
    data = dataset.load_dataset(str(tmp_path), 8, "gpt2")
    assert data.tokenizer.vocab_size == 50257 and data.bits_per_character(1.0) is None
    assert data.train.tolist() == list(range(40))
    assert data.hashes == {"train": None, "val": files.sha256_of_file(tmp_path / "val.bin")}
    (tmp_path / "meta.pkl").write_bytes(b"not even a pickle")
    with pytest.raises(ValueError, match="could run any code"):
        dataset.load_dataset(str(tmp_path), 8, "gpt2")


def test_what_an_earlier_version_wrote(poem, tmp_path):
    """Catches a dataset that must be prepared again although it is whole."""
    path = tmp_path / "poem" / "meta.json"
    meta = json.loads(path.read_text())
    before = dataset.load_dataset(poem, 8)
    del meta["sha256"]
    for split in "train", "val":
        meta[split]["shards"] = [dict(meta[split])]
    path.write_text(json.dumps(meta | {"sha256": preparation.meta_digest(meta)}))
    assert dataset.load_dataset(poem, 8).hashes == before.hashes


@pytest.mark.parametrize(
    "name, damage, message",
    [
        ("val.bin", lambda good: good[:-2], "val.bin has .* bytes, not 2 for each"),
        ("val.bin", lambda good: b"\xff\x00" + good[2:], "token id 255; the vocabulary has"),
        ("val.bin", lambda good: good[2:4] + good[2:], "its sha256 is not the one in meta.json"),
        ("meta.json", lambda good: b"{}", "meta.json is damaged"),
    ],
)
def test_damaged_datasets(poem, tmp_path, name, damage, message):
    """Catches damage that would train on nonsense or crash in the middle of a run."""
    path = tmp_path / "poem" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        dataset.load_dataset(poem, 8)


def test_a_flipped_bit_in_meta_json(poem, tmp_path):
    """Catches a tokenizer with another character."""
    path = tmp_path / "poem" / "meta.json"
    good = path.read_bytes()
    before = dataset.load_dataset(poem, 8)
    for position in np.random.default_rng(0).integers(8 * len(good), size=100):
        damaged = bytearray(good)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            data = dataset.load_dataset(poem, 8)
        except ValueError as error:
            assert "meta.json" in str(error)
        else:  # a space between words became another
            assert data.tokenizer.spec() == before.tokenizer.spec() and data.hashes == before.hashes


def test_a_large_dataset_is_not_read_at_the_start(poem, tmp_path, monkeypatch):
    """Catches a start that takes minutes, or that looks at no token at all."""
    path = tmp_path / "poem" / "train.bin"
    good = path.read_bytes()
    monkeypatch.setattr(dataset, "SMALL", 1000)
    path.write_bytes(good[:-2] + b"\xff\xff")
    assert len(dataset.load_dataset(poem, 8).train) == len(good) // 2
    path.write_bytes(b"\xff\xff" + good[2:])
    with pytest.raises(ValueError, match="token id 65535"):
        dataset.load_dataset(poem, 8)


def test_code_in_a_copied_folder(tmp_path):
    """Catches a prepare.py that came with somebody else's dataset and is run by training on it."""
    foreign = dataset.DATA / f"test-{tmp_path.name}"
    foreign.mkdir()
    script = "from pathlib import Path; Path(__file__).with_name('ran').touch()"
    try:
        (foreign / "prepare.py").write_text(script)
        paths = foreign, f"../data/{foreign.name}", f"stdlib/../{foreign.name}"
        for name in (foreign.name, f"{foreign.name}/", *paths):
            with pytest.raises(ValueError):
                dataset.load_dataset(str(name), 8)
            assert not (foreign / "ran").exists()
    finally:
        shutil.rmtree(foreign)


def test_names_that_are_not_there(poem):
    """Catches a traceback for a misspelt dataset, a text or a text that is too short."""
    for name in "shakespeare_chr", str(files.ROOT / "README.md"):
        with pytest.raises(ValueError, match="text/prepare.py.*, or choose .*shakespeare_char"):
            dataset.load_dataset(name, 8)
    with pytest.raises(ValueError, match="not prepared yet: python .*openwebtext/prepare.py"):
        dataset.load_dataset("openwebtext", 8)
    with pytest.raises(ValueError, match="block_size=5000 needs at least 5,001"):
        dataset.load_dataset(poem, 5000)
