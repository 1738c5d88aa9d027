"""Attention and layers that single experiments define."""

import pytest
import torch
from conftest import parametrize

from attention import full, masked_fill
from experiments import choices, efficient, parallel, routing
from experiments.shared.buckets import within_chunks
from masks import sliding_window


def inputs(T):
    """Random q, k and v, each (2, 2, T, 8)."""
    return torch.randn(3, 2, 2, T, 8, dtype=torch.float64)


def test_paths_written_out_here():
    """Catches columns in the wrong order, other keys than strided's, projections of features."""
    q, k, v = inputs(512)
    S = efficient.stride(512)
    local, columns = efficient.two_heads(q, k, v)
    torch.testing.assert_close(local, masked_fill(q, k, v, sliding_window(S)))
    right = masked_fill(q, k, v, lambda i, j: (j <= i) & ((i - j) % S == 0))
    torch.testing.assert_close(columns, right)
    identity = torch.eye(512, dtype=torch.float64)
    mixed = efficient.linformer(q, k, v, identity, identity)
    torch.testing.assert_close(mixed, masked_fill(q, k, v, full))


def test_within_chunks():
    """Catches rows in another order, a token that sees itself or the future, other chunks."""
    q, _, v = inputs(96)
    buckets = torch.randint(5, (2, 2, 96))
    chunk = (96 * buckets + torch.arange(96)).argsort(-1).argsort(-1) // 8
    away = (chunk[..., None] - chunk[..., None, :]) % 12
    seen = (away <= 1).tril(-1)
    scores = (q @ q.mT / 8**0.5).masked_fill(~seen, -torch.inf)
    right = scores.softmax(-1).nan_to_num() @ v
    torch.testing.assert_close(within_chunks(q, v, buckets, 8), right)


def test_models_of_equal_size():
    """Catches attention that is better because it has more parameters."""
    assert len({choices.new_model(kind).num_params() for kind in choices.KINDS}) == 1


@parametrize("name", parallel.LAYERS)
def test_equal_weights(name):
    """Catches a layer that is slower because it is larger."""
    sizes = [p.numel() for p in parallel.new_layer(name).parameters() if p.dim() == 2]
    assert sum(sizes) == 6 * parallel.WIDTH**2


def test_language_models_of_equal_size():
    """Catches a model that learns better because it is larger than its size says."""
    for size, widths in parallel.SIZES.items():
        models = map(parallel.new_model, parallel.LAYERS, widths)
        assert all(model.num_params() == pytest.approx(1000 * size, rel=0.03) for model in models)


def routed(kind="routed"):
    model, (mlp, _) = routing.new_model(kind)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return mlp.double()


def test_experts_that_are_asked():
    """Catches an expert that was not chosen, weights that do not add up to 1, mixed up rows."""
    mlp = routed()
    x = torch.randn(2, 9, routing.WIDTH, dtype=torch.float64)
    y = mlp(x)
    for token, found in zip(x.flatten(0, 1), y.flatten(0, 1)):
        scores, asked = (mlp.keys @ token).topk(routing.CHOSEN)
        answers = torch.stack([mlp.experts[n](token) for n in asked])
        assert torch.allclose(found, scores.softmax(0) @ answers, atol=1e-12)
    y.sum().backward()
    assert mlp.keys.grad.any() and not routed("routed by random keys").keys.requires_grad


def test_the_balancing_loss():
    """Catches a balancing loss that is not 1 for equal loads and 4 where two experts have all."""
    mlp = routed()
    tokens = torch.eye(routing.EXPERTS, routing.WIDTH, dtype=torch.float64)
    mlp.keys.data = 10 * tokens
    mlp((tokens + tokens.roll(1, 0))[None])  # two tokens ask each expert
    assert mlp.balance_loss.item() == pytest.approx(1)
    mlp(tokens[:1].expand(1, 5, -1) + 0.5 * tokens[1])  # all ask the same two
    assert mlp.balance_loss.item() > routing.EXPERTS / routing.CHOSEN * 0.99
