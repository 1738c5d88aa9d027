"""tools.from_nanogpt: the same logits and letters, or one line; no code in a pickle runs."""

import pytest
import torch
from conftest import complaint, output_of, run_here

from engine.text import dataset
from model import GPT, GPTConfig
from tools.from_nanogpt import Settings, main, read

ARGS = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size")
SHAPE = dict(block_size=16, vocab_size=13, n_layer=2, n_head=2, n_embd=16)
TEXT = "abcdefgh ijk\n" * 60


def write_nanogpt(path, model, dataset_name="letters", prefix=""):
    """Write a model as nanoGPT's train.py does; return its path."""
    path.parent.mkdir(exist_ok=True)
    weights = {prefix + name: p for name, p in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = model.lm_head.weight
    weights[prefix + "transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    args = {name: getattr(model.config, name) for name in ARGS} | {"dropout": 0.0}
    saved = {"model": weights, "optimizer": {}, "model_args": args, "iter_num": 5}
    saved |= {"best_val_loss": torch.tensor(1.0), "config": {"dataset": dataset_name}}
    torch.save(saved, path)
    return path


def converted(path, out_dir, name=""):
    """The GPT that the tool makes of a ckpt.pt."""
    return GPT.from_pretrained(main(Settings((path, out_dir), name))).eval()


@pytest.mark.parametrize("prefix, bias", [("", True), ("_orig_mod.", False)])
def test_the_same_model(tmp_path, prefix, bias):
    """Catches a matrix that is lost or changed, and another nonlinearity."""
    dataset.write_dataset(tmp_path / "letters", [TEXT], "char", "letters")
    model = GPT(GPTConfig(**SHAPE, mlp="gelu", bias=bias)).eval()
    path = write_nanogpt(tmp_path / "nano" / "ckpt.pt", model, str(tmp_path / "letters"), prefix)
    again = converted(path, tmp_path / "out")
    idx = torch.randint(13, (2, 9))
    assert torch.equal(again(idx)[0], model(idx)[0])
    with pytest.raises(ValueError, match="nano cannot be loaded: .*python -m tools.from_nanogpt"):
        GPT.from_pretrained(path.parent)


def test_from_nanogpt_to_a_text(tmp_path):
    """Catches ids that mean other letters, and a model that cannot be tuned or evaluated."""
    model = GPT(GPTConfig(**SHAPE, mlp="gelu"))
    path = write_nanogpt(tmp_path / "ckpt.pt", model)
    letters, out = str(tmp_path / "letters"), str(tmp_path / "out")
    convert = "-m", "tools.from_nanogpt", path, out
    assert "dataset 'letters' has no train.bin" in complaint(run_here(*convert))
    dataset.write_dataset(letters, [TEXT], "char", "letters")
    assert "step_000005" in output_of(*convert, f"--dataset={letters}")
    assert output_of("sample.py", f"--out_dir={out}", "--start=abc").startswith("abc")
    assert "perplexity" in output_of("-m", "tools.evaluate", f"--out_dir={out}")
    flags = ["--max_iters=1", "--eval_iters=1", "--block_size=16", f"--init_from={out}"]
    train = ["train.py", *flags, f"--out_dir={tmp_path / 'tuned'}"]
    output_of(*train, f"--dataset={letters}")
    dataset.write_dataset(tmp_path / "upper", [TEXT.upper()], "char", "other letters")
    assert "other tokens" in complaint(run_here(*train, f"--dataset={tmp_path / 'upper'}"))
    assert "another optimizer" in complaint(
        run_here("train.py", "--init_from=resume", f"--out_dir={out}", "--max_iters=9")
    )


def test_gpt2s_tokens(tmp_path, gpt2_files):
    """Catches a dataset that is wanted for a model with GPT-2's tokens."""
    model = GPT(GPTConfig(**SHAPE | dict(vocab_size=50304, n_embd=2), mlp="gelu"))
    again = converted(write_nanogpt(tmp_path / "ckpt.pt", model), tmp_path / "out")
    assert again.config.vocab_size == 50304


def test_a_dataset_with_other_tokens(tmp_path):
    """Catches a vocabulary of another size, whose letters would be other ones."""
    path = write_nanogpt(tmp_path / "ckpt.pt", GPT(GPTConfig(**SHAPE, mlp="gelu")))
    dataset.write_dataset(tmp_path / "few", ["abc\n" * 60], "char", "few letters")
    with pytest.raises(ValueError, match="has 13 token ids and dataset .*few 4: prepare"):
        converted(path, tmp_path / "out", str(tmp_path / "few"))


@pytest.mark.parametrize("saved", [[1, 2], {"model": {}}, {"model": {}, "model_args": [[]]}])
def test_what_is_not_nanogpts(tmp_path, saved):
    """Catches a traceback for another file."""
    torch.save(saved, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match="ckpt.pt is no checkpoint of nanoGPT"):
        converted(tmp_path / "ckpt.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pickle_does_not_run(tmp_path):
    """Catches code in a downloaded file that runs."""

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    torch.save({"model": Bomb(), "model_args": {}}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="x.pt is no checkpoint of nanoGPT"):
        read(tmp_path / "x.pt")
    assert not (tmp_path / "exploded").exists()


def test_paths(tmp_path):
    """Catches a folder that is written over, and a missing path that ends in a traceback."""
    with pytest.raises(ValueError, match="exists: choose another"):
        Settings((tmp_path / "ckpt.pt", tmp_path))
    assert "give two paths" in complaint(run_here("-m", "tools.from_nanogpt", "ckpt.pt"))
    missing = "-m", "tools.from_nanogpt", tmp_path / "ckpt.pt", tmp_path / "out"
    assert "ckpt.pt" in complaint(run_here(*missing))
