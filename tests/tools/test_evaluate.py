"""How well a model predicts: against a loss that is computed one token at a time."""

import math

import pytest
import torch
from conftest import POEM, complaint, run_here, save, tiny

from engine.text import tokenizer
from tools.evaluate import EvaluateConfig, main
from train import TrainConfig, train


def model_of(vocab_size):
    return tiny(vocab_size=vocab_size, position="rope")


def evaluated(folder, **settings):
    """The figures of the model in a folder."""
    return main(EvaluateConfig(out_dir=str(folder / "out"), device="cpu", **settings))


def test_bits_per_byte(tmp_path):
    """Catches characters taken for bytes: without knowledge each costs log2(vocabulary) bits."""
    text = "ää猫b" * 30
    model = model_of(3)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    save(tmp_path / "out", model, encoding=tokenizer.create_tokenizer("char", text))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    found = evaluated(tmp_path, text=str(tmp_path / "text.txt"))
    bits = math.log2(3) * (len(text) - 1)
    size = len(text.encode()) - len("ä".encode())
    expected = dict(tokens=119, loss=math.log(3), perplexity=3, bits_per_byte=bits / size)
    assert found == pytest.approx(expected)


def test_the_dataset_of_the_run(tmp_path, poem):
    """Catches another text, or another split, than the one that the model was validated on; and a
    stride that does nothing.
    """
    shape = dict(block_size=16, n_layer=1, n_embd=16, n_head=1, device="cpu")
    folder = dict(dataset=poem, out_dir=str(tmp_path / "out"))
    record = train(TrainConfig(**folder, **shape, max_iters=3, eval_iters=0))
    assert evaluated(tmp_path)["loss"] == pytest.approx(record["val_loss"], rel=1e-5)
    assert evaluated(tmp_path, stride=4)["loss"] != evaluated(tmp_path)["loss"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--text={}/none.txt"], "none.txt"),
        (["--text=x", "--dataset=y"], "not both"),
        (["--text={}/short.txt"], "at least two"),
        (["--stride=17", "--text={}/text.txt"], "at most the model's context"),
        ([], "which text"),
    ],
)
def test_bad_input(flags, message, tmp_path):
    """Catches a traceback, or a figure for another text."""
    encoding = tokenizer.create_tokenizer("char", POEM)
    save(tmp_path / "out", model_of(encoding.vocab_size), encoding=encoding)
    (tmp_path / "text.txt").write_text(POEM)
    (tmp_path / "short.txt").write_text("T")
    flags = [f"--out_dir={tmp_path / 'out'}", *(flag.format(tmp_path) for flag in flags)]
    assert message in complaint(run_here("-m", "tools.evaluate", "--device=cpu", *flags))
