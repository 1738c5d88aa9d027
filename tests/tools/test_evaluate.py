"""How well a model predicts: against a loss that is known, and the one of the training."""

import math
from pathlib import Path

import pytest
import torch
from conftest import fit, save, tiny

from engine import tokenizer
from tools.evaluate import EvaluateConfig, main

pytestmark = pytest.mark.usefixtures("poem_here")


def test_bits_per_byte():
    """Catches characters taken for bytes: without knowledge each costs log2(vocabulary) bits."""
    text = "ää猫b" * 30
    model = tiny(vocab_size=3, position="rope")
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    save("out", model, encoding=tokenizer.create_tokenizer("char", text))
    Path("text.txt").write_text(text)
    bits = math.log2(3) * (len(text) - 1) / (len(text.encode()) - len("ä".encode()))
    expected = dict(tokens=119, loss=math.log(3), perplexity=3, bits_per_byte=bits)
    assert main(EvaluateConfig(text="text.txt")) == pytest.approx(expected)


def test_the_dataset_of_the_run():
    """Catches another text, or another split, than the one that the model was validated on; and a
    stride that does nothing.
    """
    record = fit(max_iters=3, eval_iters=0)
    loss, other = (main(EvaluateConfig(stride=n))["loss"] for n in (0, 4))
    assert loss == pytest.approx(record["val_loss"], rel=1e-5) and loss != other
