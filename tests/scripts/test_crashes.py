"""After a kill, a power cut, a full disk, damage or malice: a valid checkpoint, or one line."""

import errno
import io
import json
import random
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import fit, newest, parametrize, put, refused, save, tiny

from engine.common import files
from engine.text import dataset, preparation
from engine.text.tokenizer import create_tokenizer
from engine.weights import checkpoint
from model import GPT


def saved(out_dir):
    return save(out_dir, tiny(), encoding=create_tokenizer("char", "abc"), seed=1)


def everything(folder):
    """All that a checkpoint holds, to be compared."""
    model = GPT.from_checkpoint(folder)
    weights = {name: p.tolist() for name, p in model.named_parameters()}
    return weights, checkpoint.load_trainer(folder), checkpoint.load_config(folder)


@parametrize("name", [*checkpoint.FILES, "manifest.json"])
def test_damaged_checkpoints(tmp_path, name):
    """Catches damage that is loaded: each file cut off, and with one bit changed, at random."""
    folder = saved(tmp_path)
    path = folder / name
    good = path.read_bytes()
    before = everything(folder)
    rng = random.Random(name)
    caught = 0
    for n in range(60):
        content = bytearray(good)
        where = rng.randrange(len(good))
        if n < 10:
            del content[where:]
        else:
            content[where] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            assert everything(folder) == before  # a space of JSON, or the hash of no file
        except ValueError as error:
            caught += 1
            assert name in str(error) or name == "manifest.json"
    assert caught > 54 or name == "manifest.json"


# ---- malice

VALUES = [None, [], {}, "x", 3, -1, 0.5, True, float("nan"), 10**9, 10**30, {"a": [1]}, "\ud800"]
HOSTILE = [
    b"",
    b"{",
    b"null",
    b"3",
    b'"x"',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"\xff\xfe",
    b"\x00",
]


def every_change(content):
    """A JSON object with one value changed or left out, at every place."""
    for name in content:
        yield {key: value for key, value in content.items() if key != name}
        inner = every_change(content[name]) if isinstance(content[name], dict) else ()
        for value in [*VALUES, *inner]:
            yield content | {name: value}


@parametrize("name", ["manifest.json", "meta.json"])
def test_hostile_json(tmp_path, poem, name):
    """Catches a file, with the right hash, that ends in a traceback or takes for ever."""
    folder = saved(tmp_path)

    def load():
        if name == "meta.json":
            dataset.load_dataset(poem, 8)
        GPT.from_checkpoint(folder)

    path = (tmp_path / "poem" if name == "meta.json" else folder) / name
    changes = every_change(json.loads(path.read_bytes()))
    contents = [*HOSTILE, *(json.dumps(change).encode() for change in changes)]
    begun = time.monotonic()
    caught = 0
    for content in contents:
        put(path, content)
        try:
            load()
        except (ValueError, MemoryError, RuntimeError) as error:
            caught += 1
            assert isinstance(error, ValueError) or "memory" in str(error)
            names = name, str(folder), *checkpoint.FILES
            assert any(place in str(error) for place in names)
    assert caught > 0.5 * len(contents)
    assert time.monotonic() - begun < 0.2 * len(contents)


def test_a_hostile_optimizer(poem_here):
    """Catches a trainer.safetensors, with the right hash, that ends in a traceback."""
    fit(max_iters=1, eval_iters=1)
    other = safetensors.torch.save({"x/a": torch.zeros(1)})
    put(newest("out") / "trainer.safetensors", other)
    with refused("is of another optimizer"):
        fit(max_iters=2, init_from="resume")


# ---- a full disk


class FullDisk(io.FileIO):
    """A file of which half of what is written fits."""

    def write(self, content):
        super().write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_no_space_for_other_files(poem_here, tmp_path, monkeypatch):
    """Catches half a dataset or half a picture, or no name of it, and a traceback."""
    drawing = pytest.importorskip("matplotlib.figure")
    plot = pytest.importorskip("tools.plot")
    fit(max_iters=4, eval_interval=4, eval_iters=1)

    def complete_files():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = complete_files()
    for module in files, preparation:
        monkeypatch.setattr(module, "open", FullDisk, raising=False)
    monkeypatch.setattr(
        drawing.Figure, "savefig", lambda figure, path, **how: FullDisk(path, "w").write(b"png")
    )
    with pytest.raises(OSError, match="cannot write .*poem.*No space left"):
        dataset.write_dataset("poem", ["Little Lamb who made thee\n"] * 20, "char", "another poem")
    with pytest.raises(OSError, match="cannot write .*x.png.*No space left"):
        plot.main(plot.PlotSettings((Path("out"),), "x.png"))
    assert complete_files() == before
