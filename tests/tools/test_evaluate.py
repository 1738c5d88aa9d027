"""How well a model predicts: against a loss that is known, and the one of the training."""

import math

import pytest
import torch
from conftest import POEM, complaint, run_here, save, tiny

from engine.text import tokenizer
from tools.evaluate import EvaluateConfig, main
from train import TrainConfig, train


def test_bits_per_byte(tmp_path):
    """Catches characters taken for bytes: without knowledge each costs log2(vocabulary) bits."""
    text = "ää猫b" * 30
    model = tiny(vocab_size=3, position="rope")
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    save(tmp_path / "out", model, encoding=tokenizer.create_tokenizer("char", text))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    found = main(EvaluateConfig(out_dir=str(tmp_path / "out"), text=str(tmp_path / "text.txt")))
    bits = math.log2(3) * (len(text) - 1) / (len(text.encode()) - len("ä".encode()))
    expected = dict(tokens=119, loss=math.log(3), perplexity=3, bits_per_byte=bits)
    assert found == pytest.approx(expected)


def test_the_dataset_of_the_run(tmp_path, poem):
    """Catches another text, or another split, than the one that the model was validated on; and a
    stride that does nothing.
    """
    shape = dict(block_size=16, n_layer=1, n_embd=16, n_head=1, device="cpu")
    out_dir = str(tmp_path / "out")
    record = train(TrainConfig(dataset=poem, out_dir=out_dir, **shape, max_iters=3, eval_iters=0))
    loss, other = (main(EvaluateConfig(out_dir=out_dir, stride=n))["loss"] for n in (0, 4))
    assert loss == pytest.approx(record["val_loss"], rel=1e-5) and loss != other


def test_bad_input(tmp_path):
    """Catches a traceback, or a figure for another text."""
    encoding = tokenizer.create_tokenizer("char", POEM)
    save(tmp_path / "out", tiny(vocab_size=encoding.vocab_size), encoding=encoding)
    (tmp_path / "text").write_text(POEM)
    (tmp_path / "short").write_text("T")
    for flags, message in {
        "--text={}/none": "none",
        "--text=x --dataset=y": "not both",
        "--text={}/short": "at least two",
        "--stride=17 --text={}/text": "at most the model's context",
        "": "which text",
    }.items():
        command = "-m", "tools.evaluate", f"--out_dir={tmp_path / 'out'}"
        assert message in complaint(run_here(*command, *flags.format(tmp_path).split()))
