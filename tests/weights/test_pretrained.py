"""Weights from elsewhere: Hugging Face's layout on disk, nanoGPT's ckpt.pt, and our own folders."""

import shutil

import pytest
import torch
from conftest import TINY, complaint, hugging_face_folder, output_of, run, run_here, tiny
from safetensors.torch import load_file, save_file

from engine.text import dataset
from model import GPT, GPTConfig

NANOGPT = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size")


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_gpt2_from_a_folder(tmp_path, prefix):
    """Catches a matrix that is not transposed, or a tensor that is left at its random start."""
    model = tiny()
    idx = torch.randint(33, (2, 9))
    hugging_face_folder(tmp_path, model, prefix)
    loaded = GPT.from_pretrained(tmp_path, dropout=0.1)
    assert GPT.from_pretrained(tmp_path, {"dropout": 0.2}).config.dropout == 0.2  # nanoGPT's form
    assert loaded.config.dropout == 0.1
    assert loaded.config.block_size == TINY["block_size"]
    assert torch.equal(loaded.eval()(idx, idx)[0], model(idx, idx)[0])


def nanogpt_folder(folder, model, dataset_name, prefix):
    """Write a model as nanoGPT's train.py does."""
    folder.mkdir()
    weights = {prefix + name: p for name, p in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = model.lm_head.weight
    args = {name: getattr(model.config, name) for name in NANOGPT}
    saved = {"model": weights, "optimizer": {}, "model_args": args | {"dropout": 0.0}}
    saved |= {
        "iter_num": 5,
        "best_val_loss": torch.tensor(1.0),
        "config": {"dataset": dataset_name},
    }
    torch.save(saved, folder / "ckpt.pt")


def test_nanogpts_checkpoint(tmp_path):
    """Catches a nanoGPT run that cannot be used or tuned, or whose ids mean other letters."""
    text = "abcdefgh ijk\n" * 60
    name = f"test-{tmp_path.name}"
    shape = dict(block_size=16, vocab_size=13, n_layer=2, n_head=2, n_embd=16)
    model = GPT(GPTConfig(**shape, mlp="gelu", bias=False)).eval()
    idx = torch.randint(13, (2, 9))
    for folder, prefix in (tmp_path / "nano", ""), (tmp_path / "compiled", "_orig_mod."):
        nanogpt_folder(folder, model, name, prefix)
        assert torch.equal(GPT.from_pretrained(folder).eval()(idx)[0], model(idx)[0])
    start = f"--init_from={tmp_path / 'nano'}"
    flags = ["--max_iters=1", "--eval_iters=1", "--block_size=16"]
    train = ["train.py", start, *flags, f"--out_dir={tmp_path / 'tuned'}"]
    assert f"no data/{name} here has" in complaint(run_here("sample.py", start))
    try:
        dataset.write_dataset(dataset.DATA / name, [text], "char", "letters")
        written = output_of("sample.py", start, "--max_new_tokens=9", "--start=abc")
        assert written.startswith("abc")
        output_of(*train, f"--dataset={name}")
        dataset.write_dataset(tmp_path / "upper", [text.upper()], "char", "other letters")
        assert "other tokens" in complaint(run_here(*train, f"--dataset={tmp_path / 'upper'}"))
    finally:
        shutil.rmtree(dataset.DATA / name, ignore_errors=True)


NESTED = []  # of which each list holds the one before ten times
for _ in range(12):
    NESTED = [NESTED] * 10


@pytest.mark.parametrize(
    "saved", [[1, 2], {"model": {}}, {"model_args": dict.fromkeys(NANOGPT, NESTED)}]
)
def test_what_is_not_nanogpts(tmp_path, saved):
    """Catches a traceback for another file, and one that takes hours to print."""
    torch.save(saved, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match="cannot be loaded"):
        GPT.from_pretrained(tmp_path)


def test_what_cannot_be_loaded(tmp_path):
    """Catches weights of another shape."""
    hugging_face_folder(tmp_path / "short", tiny(), n_positions=12)
    with pytest.raises(ValueError, match=r"wpe.weight is \(16, 16\) there and \(12, 16\) here"):
        GPT.from_pretrained(tmp_path / "short")
    path = tmp_path / "short" / "model.safetensors"
    save_file(load_file(path) | {"transformer.ln_f.bias": torch.tensor(1.0)}, path)
    with pytest.raises(ValueError, match=r"its tensor transformer.ln_f.bias is .* of shape \(\)"):
        GPT.from_pretrained(tmp_path / "short")


def test_a_name_without_a_network():
    """Catches a traceback of the hub's, and a remedy that is not named."""
    line = complaint(run("sample.py", "--init_from=gpt2", HF_ENDPOINT="http://127.0.0.1:9"))
    assert "or give a folder that holds" in line
