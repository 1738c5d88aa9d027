"""The weights that are shown are those that attention used."""

import pytest
import torch
from conftest import parametrize, tiny
from mechanisms import MECHANISMS

from tools.shared.inspection import attention_maps, entropy, recording

H, T = 4, 24


def model_of(**changes):
    shape = dict(block_size=32, vocab_size=13, position="rope", attention="masked_fill")
    return tiny(**shape | changes).double()


@parametrize(
    "changes",
    [
        *(m for m in MECHANISMS if m.keys() & {"visible", "attention"} and "mixer" not in m),
        dict(n_kv_head=1, attention="linear"),
        dict(n_kv_head=2, window=3, window_pattern="SL"),
    ],
    ids=str,
)
def test_the_weights_are_those_that_made_the_output(changes):
    """Catches weights of another mask, score, head or feature: times the values, they give y."""
    model = model_of(**changes)
    idx = torch.randint(13, (T,))
    calls = []
    for block in model.transformer.h:
        block.attn.register_forward_hook(lambda *call: calls.append(call))
    maps, found = attention_maps(model, idx)
    for weights, (attn, (x, *_), output) in zip(maps, calls, strict=True):
        G = attn.n_kv_head
        v = attn.c_attn(x[0])[:, -G * attn.value_size :].unflatten(1, (G, -1)).transpose(0, 1)
        y = weights @ v.repeat_interleave(H // G, dim=0)
        assert (attn.c_proj(y.transpose(0, 1).flatten(1)) - output[0]).abs().max() < 1e-12
    assert torch.allclose(found[-1], model(idx[None])[0][0, 0], atol=1e-12)


@parametrize("attention", ["fused", "linear"])
def test_the_model_is_as_it_was(attention):
    """Catches a recorder that stays after an error: every later step would keep all weights."""
    model = model_of(attention=attention)
    attn = model.transformer.h[1].attn
    before = {**vars(attn)}
    with pytest.raises(KeyError), recording(model):
        assert vars(attn) != before
        raise KeyError
    assert vars(attn) == before


def test_entropy():
    """Catches nats for bits, and NaN for a weight of 0."""
    weights = torch.tensor([[1, 0, 0, 0], [0.5, 0.25, 0.25, 0], [0.25] * 4])
    assert entropy(weights).tolist() == [0, 1.5, 2]
