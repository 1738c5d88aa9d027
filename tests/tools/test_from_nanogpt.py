"""tools.from_nanogpt: the same logits and letters, or one line; no code in a pickle runs."""

from pathlib import Path

import pytest
import torch
from conftest import complaint, output_of, run_here

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


@pytest.mark.parametrize("prefix, bias", [("", True), ("_orig_mod.", False)])
def test_the_same_model(tmp_path, prefix, bias):
    """Catches a matrix that is lost or changed, another nonlinearity, ids that mean other letters,
    and a folder that is written over.
    """
    model = write_nanogpt(prefix, bias=bias)
    with pytest.raises(ValueError, match="has 13 token ids and dataset few 4: prepare"):
        convert("few")
    again = convert()
    idx = torch.randint(13, (2, 9))
    assert torch.equal(GPT.from_pretrained(again).eval()(idx)[0], model(idx)[0])
    with pytest.raises(ValueError, match="cannot be loaded: .*python -m tools.from_nanogpt"):
        GPT.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="exists: choose another"):
        convert()


def test_from_nanogpt_to_a_text(tmp_path):
    """Catches a model that cannot be sampled, tuned or evaluated, and a traceback."""
    write_nanogpt()
    letters, out = tmp_path / "letters", tmp_path / "out"
    command = "-m", "tools.from_nanogpt", tmp_path / "ckpt.pt"
    assert "give two paths" in complaint(run_here(*command))
    assert "dataset 'letters' has no train.bin" in complaint(run_here(*command, out))
    assert "step_000005" in output_of(*command, out, f"--dataset={letters}")
    assert output_of("sample.py", f"--out_dir={out}", "--start=abc").startswith("abc")
    assert "perplexity" in output_of("-m", "tools.evaluate", f"--out_dir={out}")
    flags = ["--max_iters=1", "--eval_iters=1", "--block_size=16", f"--out_dir={tmp_path / 'new'}"]
    output_of("train.py", *flags, f"--init_from={out}", f"--dataset={letters}")
    resumed = "train.py", "--init_from=resume", f"--out_dir={out}", "--max_iters=9"
    assert "another optimizer" in complaint(run_here(*resumed))


def test_gpt2s_tokens(gpt2_files):
    """Catches a dataset that is wanted for a model with GPT-2's tokens."""
    write_nanogpt(vocab_size=50304, n_embd=2)
    convert("")


class Bomb:
    def __reduce__(self):
        return (print, ("exploded",))


@pytest.mark.parametrize("saved", [[1], {"model": {}}, {"model": Bomb(), "model_args": {}}])
def test_a_pickle_does_not_run(saved, capsys):
    """Catches a traceback for another file, and code in a downloaded file that runs."""
    torch.save(saved, "ckpt.pt")
    with pytest.raises(ValueError, match="ckpt.pt is no checkpoint of nanoGPT"):
        convert()
    assert not Path("out").exists() and "exploded" not in capsys.readouterr().out
