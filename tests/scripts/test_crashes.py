"""After a kill, a power cut, a full disk, damage or malice: a valid checkpoint, or one line."""

import errno
import json
import os
import random
import time

import pytest
import torch
from conftest import SMALL, save

from engine.common import files
from engine.text import dataset, preparation
from engine.text.tokenizer import create_tokenizer
from engine.training.run import start_run
from engine.weights import checkpoint
from model import GPT, GPTConfig
from train import TrainConfig, train

SHAPE = dict(block_size=8, vocab_size=20, n_layer=2, n_head=2, n_embd=8)


def saved(out_dir, step=1):
    torch.manual_seed(step)
    return save(out_dir, GPT(GPTConfig(**SHAPE)), step, create_tokenizer("char", "abc"), seed=1)


def everything(folder):
    """All that a checkpoint holds, to be compared."""
    model = GPT.from_checkpoint(folder)
    weights = {name: p.tolist() for name, p in model.named_parameters()}
    return weights, checkpoint.load_trainer(folder), checkpoint.load_config(folder)


# ---- damage


@pytest.mark.parametrize("name", [*checkpoint.FILES, "manifest.json"])
def test_damaged_checkpoints(tmp_path, name):
    """Catches damage that is loaded: each file cut off, and with one bit changed, at random."""
    folder = saved(tmp_path)
    path = folder / name
    good = path.read_bytes()
    before = everything(folder)
    rng = random.Random(name)
    damaged = [good[: rng.randrange(len(good))] for _ in range(10)]
    for _ in range(50):
        content = bytearray(good)
        content[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(content))
    caught = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            assert everything(folder) == before  # a space of JSON, or the hash of no file
        except ValueError as error:
            caught += 1
            assert name in str(error) or name == "manifest.json"
    assert caught > 0.9 * len(damaged) or name == "manifest.json"


# ---- malice

VALUES = [None, [], {}, "x", 3, -1, 0.5, True, float("nan"), 10**30, {"a": [1]}, "\ud800"]


def every_change(content):
    """A JSON object with one value changed or left out, at every place."""
    for name in content:
        yield {key: value for key, value in content.items() if key != name}
        inner = every_change(content[name]) if isinstance(content[name], dict) else ()
        for value in [*VALUES, *inner]:
            yield content | {name: value}


def every_change_in(path):
    return [*HOSTILE, *every_change(json.loads(path.read_bytes()))]


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


HOSTILE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"3",
    b'"x"',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"\xff\xfe",
    b"\x00",
    {},
    {"step": {}},
]


def test_hostile_configs(tmp_path):
    """Catches a config.json, with the right hash, that ends in a traceback or takes for ever."""
    folder = saved(tmp_path)
    good = json.loads((folder / "config.json").read_text())
    manifest = json.loads((folder / "manifest.json").read_text())
    begun = time.monotonic()
    refused = 0
    shapes = ({"n_layer": 10**9}, {"n_layer": "2"}, {"vocab_size": 10**15}, {"score": []})
    changes = [*HOSTILE, *every_change(good)]
    changes += [good | {"model": good["model"] | change} for change in shapes]
    for content in changes:
        written(folder / "config.json", content)
        written(
            folder / "manifest.json",
            manifest | {"config.json": files.sha256_of_file(folder / "config.json")},
        )
        try:
            GPT.from_checkpoint(folder)
            checkpoint.restore_settings(
                TrainConfig, checkpoint.load_config(folder)["training"], folder
            )
        except (ValueError, MemoryError, RuntimeError) as error:
            refused += 1
            assert isinstance(error, ValueError) or "memory" in str(error)
    assert refused > 0.7 * len(changes) and time.monotonic() - begun < 0.2 * len(changes)


def test_hostile_records(tmp_path, poem):
    """Catches a manifest.json, metrics.jsonl or meta.json that ends in a traceback."""
    for step in 1, 2:
        folder = saved(tmp_path / "out", step)
    metrics_path = tmp_path / "out" / "metrics.jsonl"
    metrics_path.write_text('{"step": 2, "val_loss": 2.0, "wall_s": 1.0}\n')

    def resumed():
        start_run(tmp_path / "out", 2)
        checkpoint.best_checkpoint(tmp_path / "out")

    manifest = folder / "manifest.json"
    meta = tmp_path / "poem" / "meta.json"
    for path, use, contents in (
        (manifest, lambda: GPT.from_checkpoint(folder), every_change_in(manifest)),
        (meta, lambda: dataset.load_dataset(poem, 8), every_change_in(meta)),
        (metrics_path, resumed, HOSTILE),
    ):
        good = path.read_bytes()
        for content in contents:
            written(path, content)
            try:
                use()
            except ValueError as error:
                assert any(name in str(error) for name in (path.name, *checkpoint.FILES))
        path.write_bytes(good)


def test_a_hostile_optimizer(poem, tmp_path):
    """Catches a trainer.safetensors, with the right hash, that ends in a traceback."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path / "out"), eval_iters=1)
    train(TrainConfig(**settings, max_iters=1))
    folder = tmp_path / "out" / "step_000001"
    path = folder / "trainer.safetensors"
    checkpoint.write_safetensors(path, {"x/a": torch.zeros(1)})
    manifest = json.loads((folder / "manifest.json").read_text())
    written(folder / "manifest.json", manifest | {path.name: files.sha256_of_file(path)})
    with pytest.raises(ValueError, match="is of another optimizer"):
        train(TrainConfig(**settings, max_iters=2, init_from="resume"))


def test_a_pipe_in_place_of_a_file(tmp_path):
    """Catches a program that waits for ever for what a pipe does not say."""
    folder = saved(tmp_path)
    for name in *checkpoint.FILES, "manifest.json":
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(ValueError, match=name):
            everything(folder)
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="metrics.jsonl is not a regular file: move it away"):
        start_run(tmp_path, 1)


def test_weights_that_are_not_finite(tmp_path):
    """Catches text from a model that has diverged, as if it were one."""
    model = GPT(GPTConfig(**SHAPE))
    model.transformer.h[1].mlp.c_fc.weight.data[3, 2] = float("nan")
    folder = save(tmp_path, model)
    with pytest.raises(ValueError, match="not finite, in transformer.h.1.mlp.c_fc.weight"):
        GPT.from_checkpoint(folder)


# ---- a full disk


class FullDisk:
    """A file of which half of what is written fits."""

    def __init__(self, *arguments, **settings):
        self.file = open(*arguments, **settings)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, content):
        self.file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_no_space_for_other_files(poem, tmp_path, monkeypatch):
    """Catches half a dataset or half a picture, or no name of it, and a traceback."""
    plot = pytest.importorskip("tools.plot")
    out, picture = tmp_path / "out", tmp_path / "x.png"
    settings = SMALL | dict(dataset=poem, out_dir=str(out), eval_interval=4, eval_iters=1)
    train(TrainConfig(**settings, max_iters=4))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for module in files, preparation:
        monkeypatch.setattr(module, "open", FullDisk, raising=False)
    monkeypatch.setattr(
        plot.plt.Figure, "savefig", lambda figure, path, format: FullDisk(path, "w").write("png")
    )
    with pytest.raises(OSError, match="cannot write .*poem.*No space left"):
        dataset.write_dataset(poem, ["Little Lamb who made thee\n"] * 20, "char", "another poem")
    with pytest.raises(OSError, match="cannot write .*x.png.*No space left"):
        plot.main(plot.PlotSettings((out,), str(picture)))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
