"""Keys and values: models of equally many parameters, of which one has values that are its keys."""

import torch

from experiments import values
from experiments.values import KINDS, OneMatrix, new_model


def test_equally_many_parameters():
    """Catches a comparison that one side wins by its size."""
    counts = {kind: new_model(*how).num_params() for kind, how in KINDS.items()}
    smaller = counts.pop("K = V, fewer parameters")
    assert len(set(counts.values())) == 1 and smaller < counts["K = V"]


def test_values_that_are_keys():
    """Catches a third matrix behind the name."""
    q, k, v = OneMatrix(8, 16, bias=False)(torch.randn(2, 3, 8)).chunk(3, dim=-1)
    assert torch.equal(k, v) and not torch.equal(q, k)
    for shape in KINDS.values():
        model = new_model(*shape)
        idx = torch.randint(256, (2, 9))
        other = idx.clone()
        other[:, 5:] = 0
        torch.testing.assert_close(model(idx, idx)[0][:, :5], model(other, idx)[0][:, :5])


def test_a_run(small_experiment):
    """Catches a kind without a loss."""
    rows = small_experiment(values, steps=8)["tables"]["the same GPT"]
    assert [row["model"] for row in rows] == list(KINDS)
    assert all(2 < float(row["validation loss"]) < 5 for row in rows)  # ln 256 is 5.5
