"""Files of tensors from strangers: read without running code, without end, or named in one line."""

import pytest
import torch

from engine.weights.tensor_files import is_stored, read_pickle


def test_dense_tensors_and_plain_values(tmp_path):
    """Catches tensors that share memory, like tied weights, or are transposed, and are refused."""
    weight = torch.rand(3, 4)
    saved = {
        "a": weight,
        "b": [weight.t(), weight[1:]],
        "c": {"step": 3, "name": "x", "none": None},
    }
    torch.save(saved, tmp_path / "x.pt")
    found = read_pickle(tmp_path / "x.pt")
    assert found["c"] == saved["c"]
    assert torch.equal(found["a"], weight)
    assert all(torch.equal(x, y) for x, y in zip(found["b"], saved["b"]))


def test_a_pickle_does_not_run(tmp_path):
    """Catches code in a downloaded file that runs."""

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    torch.save({"state": Bomb()}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="x.pt is damaged, or is something else"):
        read_pickle(tmp_path / "x.pt")
    assert not (tmp_path / "exploded").exists()


def test_tensors_without_the_memory_they_claim():
    """Catches a small file whose tensors fill the memory when they are converted."""
    for tensor in (
        torch.zeros(1).expand(2**40),
        torch.eye(3).to_sparse(),
        torch.zeros(2**40, device="meta"),
    ):
        assert not is_stored(tensor)
    assert is_stored(torch.rand(3, 4).t()[1:])
