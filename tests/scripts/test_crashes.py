"""After a kill, a power cut, a full disk, damage or malice: a valid checkpoint, or one line."""

import random

import safetensors.torch
import torch
from conftest import damaged, fit, newest, parametrize, put, refused, save, tiny

from engine import checkpoint
from model import GPT


@parametrize("name", checkpoint.FILES)
@parametrize("seed", range(6))
def test_damaged_checkpoints(tmp_path, name, seed):
    """Catches damage that is loaded: a bit, a block or the end of each file."""
    folder = save(tmp_path, tiny())
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(damaged(random.Random(seed), good))
    with refused(name):
        GPT.from_pretrained(folder)
        checkpoint.load_trainer(folder)


# ---- malice

HOSTILE = [b"", b"{", b"null", b"[" * 100_000, b"\xff\xfe", b"\x00", b'{"config.json": []}']


@parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_manifest(tmp_path, content):
    """Catches a manifest of hashes that ends in a traceback."""
    folder = save(tmp_path, tiny())
    (folder / "manifest.json").write_bytes(content)
    with refused("config.json is missing or damaged"):
        GPT.from_pretrained(folder)


def test_a_hostile_optimizer(poem_here):
    """Catches a trainer.safetensors, with the right hash, that ends in a traceback."""
    fit(max_iters=1, eval_iters=1)
    other = safetensors.torch.save({"x/a": torch.zeros(1)})
    put(newest("out") / "trainer.safetensors", other)
    with refused("is of another optimizer"):
        fit(max_iters=2, init_from="resume")
