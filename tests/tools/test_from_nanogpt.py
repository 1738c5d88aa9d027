"""tools.from_nanogpt: the same logits and letters, and no code in a pickle runs."""

from pathlib import Path

import pytest
import torch
from conftest import fit, output_of, parametrize, refused

from engine.text import dataset
from model import GPT, GPTConfig
from tools.from_nanogpt import Settings, main

SHAPE = dict(block_size=16, vocab_size=13, n_layer=2, n_head=2, n_embd=16, bias=True)


@pytest.fixture(autouse=True)
def datasets(here):
    """A current folder with datasets of 13 and of 4 characters."""
    for name, text in ("letters", "abcdefgh ijk\n"), ("few", "abc\n"):
        dataset.write_dataset(Path(name), [text * 60], "char", name)


def convert(name="letters"):
    return main(Settings((Path("ckpt.pt"), Path("out")), name))


def write_nanogpt(prefix="", **changes):
    """Write a model to ckpt.pt as nanoGPT's train.py does; return it."""
    shape = SHAPE | changes
    model = GPT(GPTConfig(**shape, mlp="gelu")).eval()
    weights = {prefix + name: p for name, p in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = model.lm_head.weight
    weights[prefix + "transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    saved = {"model": weights, "optimizer": {}, "model_args": shape | {"dropout": 0.0}}
    saved |= {"iter_num": 5, "best_val_loss": torch.tensor(1.0), "config": {"dataset": "letters"}}
    torch.save(saved, "ckpt.pt")
    return model


@parametrize("prefix, bias", [("", True), ("_orig_mod.", False)])
def test_the_same_model(prefix, bias):
    """Catches a matrix that is lost or changed, another nonlinearity, or ids of other letters."""
    model = write_nanogpt(prefix, bias=bias)
    with refused("has 13 token ids and dataset few 4: prepare"):
        convert("few")
    again = convert()
    idx = torch.randint(13, (2, 9))
    assert torch.equal(GPT.from_pretrained(again).eval()(idx)[0], model(idx)[0])


def test_tuning_what_nanogpt_trained(tmp_path):
    """Catches a checkpoint that cannot be tuned, or whose letters or step are lost."""
    write_nanogpt()
    command = "-m", "tools.from_nanogpt", tmp_path / "ckpt.pt", tmp_path / "out"
    assert "step_000005" in output_of(*command, f"--dataset={tmp_path / 'letters'}")
    fit(dataset="letters", init_from="out", out_dir="new", max_iters=1)


def test_gpt2s_tokens(gpt2_files):
    """Catches a dataset that is wanted for a model with GPT-2's tokens."""
    write_nanogpt(vocab_size=50304, n_embd=2)
    convert("")


class Bomb:
    def __reduce__(self):
        return (print, ("exploded",))


@parametrize("saved", [[1], {"model": {}}, {"model": Bomb(), "model_args": {}}])
def test_a_pickle_does_not_run(saved, capsys):
    """Catches a traceback for another file, and code in a downloaded file that runs."""
    torch.save(saved, "ckpt.pt")
    with refused("ckpt.pt is no checkpoint of nanoGPT"):
        convert()
    assert not Path("out").exists() and "exploded" not in capsys.readouterr().out
