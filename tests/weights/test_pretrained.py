"""Weights from elsewhere: Hugging Face's layout on disk, and our own folders."""

import pytest
import torch
from conftest import TINY, complaint, hugging_face_folder, refused, run, tiny

from model import GPT


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_gpt2_from_a_folder(tmp_path, prefix):
    """Catches a matrix that is not transposed, a tensor that is left at its random start, and
    weights of another shape.
    """
    model = tiny()
    idx = torch.randint(33, (2, 9))
    hugging_face_folder(tmp_path, model, prefix)
    loaded = GPT.from_pretrained(tmp_path, dropout=0.1)
    assert GPT.from_pretrained(tmp_path, {"dropout": 0.2}).config.dropout == 0.2  # nanoGPT's form
    assert loaded.config.dropout == 0.1
    assert loaded.config.block_size == TINY["block_size"]
    assert torch.equal(loaded.eval()(idx, idx)[0], model(idx, idx)[0])
    hugging_face_folder(tmp_path, model, n_positions=12)
    with refused(r"wpe.weight is \(16, 16\) there and \(12, 16\) here"):
        GPT.from_pretrained(tmp_path)


def test_a_name_without_a_network():
    """Catches a traceback of the hub's, and a remedy that is not named."""
    line = complaint(run("sample.py", "--init_from=gpt2", HF_ENDPOINT="http://127.0.0.1:9"))
    assert "or give a folder that holds" in line
