"""tools.from_nanogpt: the same logits and letters, or one line; no code in a pickle runs."""

import pytest
import torch
from conftest import complaint, output_of, run_here

from engine.text import dataset
from model import GPT, GPTConfig
from tools.from_nanogpt import Settings, main

SHAPE = dict(block_size=16, vocab_size=13, n_layer=2, n_head=2, n_embd=16, bias=True)
TEXT = "abcdefgh ijk\n" * 60


def write_nanogpt(path, prefix="", **changes):
    """Write a model as nanoGPT's train.py does; return it."""
    shape = SHAPE | changes
    model = GPT(GPTConfig(**shape, mlp="gelu")).eval()
    weights = {prefix + name: p for name, p in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = model.lm_head.weight
    weights[prefix + "transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    saved = {"model": weights, "optimizer": {}, "model_args": shape | {"dropout": 0.0}}
    saved |= {"iter_num": 5, "best_val_loss": torch.tensor(1.0), "config": {"dataset": "letters"}}
    torch.save(saved, path)
    return model


@pytest.mark.parametrize("prefix, bias", [("", True), ("_orig_mod.", False)])
def test_the_same_model(tmp_path, prefix, bias):
    """Catches a matrix that is lost or changed, another nonlinearity, ids that mean other letters,
    and a folder that is written over.
    """
    path = tmp_path / "ckpt.pt"
    model = write_nanogpt(path, prefix, bias=bias)
    for name, text in ("letters", TEXT), ("few", "abc\n" * 60):
        dataset.write_dataset(tmp_path / name, [text], "char", name)
    with pytest.raises(ValueError, match="has 13 token ids and dataset .*few 4: prepare"):
        main(Settings((path, tmp_path / "out"), str(tmp_path / "few")))
    again = main(Settings((path, tmp_path / "out"), str(tmp_path / "letters")))
    idx = torch.randint(13, (2, 9))
    assert torch.equal(GPT.from_pretrained(again).eval()(idx)[0], model(idx)[0])
    with pytest.raises(ValueError, match="cannot be loaded: .*python -m tools.from_nanogpt"):
        GPT.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="exists: choose another"):
        Settings((path, tmp_path / "out"))


def test_from_nanogpt_to_a_text(tmp_path):
    """Catches a model that cannot be sampled, tuned or evaluated, and a traceback."""
    write_nanogpt(tmp_path / "ckpt.pt")
    letters, out = str(tmp_path / "letters"), str(tmp_path / "out")
    convert = "-m", "tools.from_nanogpt", tmp_path / "ckpt.pt"
    assert "give two paths" in complaint(run_here(*convert))
    assert "dataset 'letters' has no train.bin" in complaint(run_here(*convert, out))
    dataset.write_dataset(letters, [TEXT], "char", "letters")
    assert "step_000005" in output_of(*convert, out, f"--dataset={letters}")
    assert output_of("sample.py", f"--out_dir={out}", "--start=abc").startswith("abc")
    assert "perplexity" in output_of("-m", "tools.evaluate", f"--out_dir={out}")
    flags = ["--max_iters=1", "--eval_iters=1", "--block_size=16", f"--out_dir={tmp_path / 'new'}"]
    output_of("train.py", *flags, f"--init_from={out}", f"--dataset={letters}")
    resumed = "train.py", "--init_from=resume", f"--out_dir={out}", "--max_iters=9"
    assert "another optimizer" in complaint(run_here(*resumed))


def test_gpt2s_tokens(tmp_path, gpt2_files):
    """Catches a dataset that is wanted for a model with GPT-2's tokens."""
    write_nanogpt(tmp_path / "ckpt.pt", vocab_size=50304, n_embd=2)
    main(Settings((tmp_path / "ckpt.pt", tmp_path / "out")))


class Bomb:
    def __reduce__(self):
        return (print, ("exploded",))


@pytest.mark.parametrize("saved", [[1], {"model": {}}, {"model": Bomb(), "model_args": {}}])
def test_a_pickle_does_not_run(tmp_path, saved, capsys):
    """Catches a traceback for another file, and code in a downloaded file that runs."""
    torch.save(saved, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match="ckpt.pt is no checkpoint of nanoGPT"):
        main(Settings((tmp_path / "ckpt.pt", tmp_path / "out")))
    assert not (tmp_path / "out").exists() and "exploded" not in capsys.readouterr().out
