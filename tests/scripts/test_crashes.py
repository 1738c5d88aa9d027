"""After a kill, a power cut, a full disk, damage or malice: a valid checkpoint, or one line."""

import json
import random

import safetensors.torch
import torch
from conftest import damaged, fit, newest, parametrize, put, refused, save, tiny

from engine.text import dataset
from engine.weights import checkpoint
from model import GPT


def everything(folder):
    """All that a checkpoint holds, to be compared."""
    model = GPT.from_checkpoint(folder)
    weights = {name: p.tolist() for name, p in model.named_parameters()}
    return weights, checkpoint.load_trainer(folder), checkpoint.load_config(folder)


@parametrize("name", [*checkpoint.FILES, "manifest.json"])
def test_damaged_checkpoints(tmp_path, name):
    """Catches damage that is loaded: a bit, a block or the end of each file."""
    folder = save(tmp_path, tiny())
    path = folder / name
    good = path.read_bytes()
    before = everything(folder)
    rng = random.Random(name)
    caught = 0
    for _ in range(60):
        path.write_bytes(damaged(rng, good))
        try:
            assert everything(folder) == before  # a space of JSON, or the hash of no file
        except ValueError as error:
            caught += 1
            assert name in str(error) or name == "manifest.json"
    assert caught > 54 or name == "manifest.json"


# ---- malice

VALUES = [None, [], "x", -1, 0.5, True, float("nan"), 10**30, {"a": [1]}, "\ud800"]
HOSTILE = [b"", b"{", b"null", b"[" * 100_000, b"\xff\xfe", b"\x00"]


def every_change(content):
    """A JSON object with one value changed or left out, at every place."""
    for name in content:
        yield {key: value for key, value in content.items() if key != name}
        inner = every_change(content[name]) if isinstance(content[name], dict) else ()
        for value in [*VALUES, *inner]:
            yield content | {name: value}


@parametrize("name", ["manifest.json", "meta.json"])
def test_hostile_json(tmp_path, poem, name):
    """Catches a file, with the right hash, that ends in a traceback."""
    folder = save(tmp_path, tiny())

    def load():
        if name == "meta.json":
            dataset.load_dataset(poem, 8)
        GPT.from_checkpoint(folder)

    path = (tmp_path / "poem" if name == "meta.json" else folder) / name
    changes = every_change(json.loads(path.read_bytes()))
    contents = [*HOSTILE, *(json.dumps(change).encode() for change in changes)]
    caught = 0
    for content in contents:
        put(path, content)
        try:
            load()
        except ValueError as error:
            caught += 1
            names = name, str(folder), *checkpoint.FILES
            assert any(place in str(error) for place in names)
    assert caught > 0.5 * len(contents)


def test_a_hostile_optimizer(poem_here):
    """Catches a trainer.safetensors, with the right hash, that ends in a traceback."""
    fit(max_iters=1, eval_iters=1)
    other = safetensors.torch.save({"x/a": torch.zeros(1)})
    put(newest("out") / "trainer.safetensors", other)
    with refused("is of another optimizer"):
        fit(max_iters=2, init_from="resume")
