"""After a kill, a power cut, a full disk, damage or malice: a valid checkpoint, or one line."""

import json
import random

import safetensors.torch
import torch
from conftest import damaged, fit, newest, parametrize, put, refused, save, tiny

from engine.text import dataset
from engine.weights import checkpoint
from model import GPT


@parametrize("name", checkpoint.FILES)
@parametrize("seed", range(6))
def test_damaged_checkpoints(tmp_path, name, seed):
    """Catches damage that is loaded: a bit, a block or the end of each file."""
    folder = save(tmp_path, tiny())
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(damaged(random.Random(seed), good))
    with refused(name):
        GPT.from_checkpoint(folder)
        checkpoint.load_trainer(folder)


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
