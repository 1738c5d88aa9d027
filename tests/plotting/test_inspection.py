"""What is shown of attention is what attention does."""

import math

import pytest
import torch

from attention import FEATURE, NORMALIZE, SCORE, VISIBLE, attention_weights
from engine.plotting.inspection import attention_maps, distance, entropy, losses, recording, rollout
from model import GPT, GPTConfig

H, T = 4, 24


def model_of(**changes):
    torch.manual_seed(0)
    settings = dict(
        block_size=32,
        n_layer=2,
        n_head=H,
        n_embd=32,
        vocab_size=13,
        position="rope",
        attention="masked_fill",
    )
    model = GPT(GPTConfig(**settings | changes)).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    return model


def idx_of(T=T):
    return torch.randint(13, (T,), generator=torch.Generator().manual_seed(1))


def visible_specs():
    return ["causal", "sliding_window:5", "local_global:4,2", "strided:3", f"alibi:{H}"]


@pytest.mark.parametrize(
    "changes",
    [
        *(dict(visible=spec) for spec in visible_specs()),
        *(dict(score=name) for name in SCORE),
        *(dict(normalize=name) for name in NORMALIZE),
        *(dict(attention=name) for name in FEATURE),
        dict(n_kv_head=2),
        dict(n_kv_head=1, attention="linear"),
        dict(window=3, window_pattern="SL"),
        dict(attention="fused", window=6),
        dict(attention="tiled", visible="sliding_window:7"),
        dict(attention="naive"),
        dict(qk_norm=True, position="learned"),
    ],
    ids=str,
)
def test_the_weights_are_those_that_made_the_output(changes):
    """Catches weights of another mask, score, head or feature: with each layer's own values they must give its own output."""
    model, idx, outputs = model_of(**changes), idx_of(), []
    values = []
    for block in model.transformer.h:
        attn = block.attn
        attn.c_attn.register_forward_hook(
            lambda m, i, o, attn=attn: values.append(
                o.unflatten(2, (attn.n_head + 2 * attn.n_kv_head, -1))[
                    0, :, -attn.n_kv_head :
                ].transpose(0, 1)
            )
        )
        attn.c_proj.register_forward_pre_hook(
            lambda m, i: outputs.append(i[0][0].unflatten(1, (H, -1)).transpose(0, 1))
        )
    with torch.no_grad():
        model(idx[None])  # as the model runs without a recorder
        plain, outputs[:], values[:] = list(outputs), [], []
        maps, logits = attention_maps(model, idx, attention_weights)
    assert [tuple(weights.shape) for weights in maps] == [(H, T, T)] * 2
    for weights, v, y in zip(maps, values, plain):
        assert (weights @ v.repeat_interleave(H // len(v), dim=0) - y).abs().max() < 1e-12
        assert (weights.sum(-1) - 1).abs().max() < 1e-12 and (weights.triu(1) == 0).all()
    assert torch.allclose(logits[-1], model(idx[None])[0][0, 0], atol=1e-12)


def test_all_predicates_are_tried():
    """Catches a new predicate in the registry that nobody has looked at."""
    assert {spec.partition(":")[0] for spec in visible_specs()} == set(VISIBLE)


def test_the_model_is_as_it_was():
    """Catches a recorder that stays, also after an error: every later step would keep all weights."""
    for attention in "fused", "tiled":
        model = model_of(attention=attention)
        before = [(block.attn.attention, block.attn.feature) for block in model.transformer.h]
        with pytest.raises(KeyError), recording(model, attention_weights) as maps:
            model(idx_of()[None])
            assert len(maps) == 2 and maps[0].shape == (1, H, T, T)
            raise KeyError
        assert [
            (block.attn.attention, block.attn.feature) for block in model.transformer.h
        ] == before


def test_losses_are_those_of_the_next_tokens():
    """Catches losses that stand one token too early or late."""
    model, idx = model_of(), idx_of()
    _, logits = attention_maps(model, idx, attention_weights)
    found, probabilities = losses(logits, idx), logits.softmax(-1)
    want = [-math.log(probabilities[n, idx[n + 1]]) for n in range(T - 1)]
    assert found.shape == (T - 1,) and torch.allclose(
        found.double(), torch.tensor(want).double(), atol=1e-6
    )


def test_documents_stay_apart():
    """Catches maps of a model that was trained with documents apart, on looks at the one before, which it never had."""
    for attention in "fused", "tiled":
        model = model_of(attention=attention)
        model.separator = 5
        maps, logits = attention_maps(
            model, (idx := torch.tensor([1, 2, 3, 5, 1, 2, 4, 3])), attention_weights
        )
        assert all(
            (weights[:, 4:, :3] == 0).all() and (weights[:, 3, 3] == 1).all() for weights in maps
        )
        assert torch.allclose(logits, model(idx[None], idx[None])[0][0])


def weights_of(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(2)).double().tril().pow(4)


def test_entropy_and_distance():
    """Catches nats for bits, NaN for a weight of 0, and a distance from the wrong end."""
    weights = weights_of(3, 9, 9)
    weights = weights / weights.sum(-1, keepdim=True)
    for h in range(3):
        for i in range(9):
            row = weights[h, i].tolist()
            assert math.isclose(
                entropy(weights)[h, i], -sum(w * math.log2(w) for w in row if w), abs_tol=1e-6
            )
            assert math.isclose(
                distance(weights)[h, i], sum(w * (i - j) for j, w in enumerate(row)), abs_tol=1e-9
            )
    assert (
        entropy(torch.eye(4)).tolist() == [0] * 4
        and entropy(torch.full((4, 4), 0.25)).tolist() == [2] * 4
    )


def test_rollout_follows_every_way_through_the_layers():
    """Catches layers in the wrong order: the share of j in i is the sum over all ways from i down to j, by brute force."""
    maps = [weights_of(2, 5, 5) + torch.eye(5), weights_of(2, 5, 5).sqrt() + torch.eye(5)]
    maps = [weights / weights.sum(-1, keepdim=True) for weights in maps]
    mixed = [weights.mean(0) / 2 + torch.eye(5).double() / 2 for weights in maps]
    first, second = rollout(maps)
    assert torch.allclose(first, mixed[0])
    for i in range(5):
        for j in range(5):
            assert math.isclose(
                second[i, j], sum(mixed[1][i, m] * mixed[0][m, j] for m in range(5)), abs_tol=1e-12
            )
