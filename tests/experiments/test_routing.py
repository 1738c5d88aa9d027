"""experiments/routing.py at a small size: experts, who asks them, and what balance does."""

import pytest
import torch

from experiments import routing


def routed(kind="routed"):
    torch.manual_seed(0)
    model, (mlp, _) = routing.new_model(kind)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.double(), mlp


def test_experts_that_are_asked():
    """Catches an expert that was not chosen, weights that do not add up to 1, mixed up rows."""
    _, mlp = routed()
    x = torch.randn(2, 9, routing.WIDTH, dtype=torch.float64)
    y = mlp(x)
    for row, place in [(0, 0), (1, 4), (1, 8)]:
        token = x[row, place]
        scores, chosen = (mlp.keys @ token).topk(routing.CHOSEN)
        answers = torch.stack([mlp.experts[n](token) for n in chosen])
        assert torch.allclose(y[row, place], scores.softmax(0) @ answers, atol=1e-12)


def test_the_future_is_unseen_and_the_router_learns():
    """Catches a later token that changes an earlier one, and keys without a gradient."""
    model, mlp = routed()
    x = torch.randint(256, (1, 12))
    other = x.clone()
    other[0, 8:] = torch.randint(256, (4,))
    assert torch.allclose(model(x, x)[0][:, :8], model(other, other)[0][:, :8], atol=1e-12)
    model(x, x)[1].backward()
    assert mlp.keys.grad.abs().sum() > 0
    assert not routed("routed by random keys")[1].keys.requires_grad


def test_the_balancing_loss():
    """Catches a balancing loss that is not 1 for equal loads and 4 where two experts have all."""
    _, mlp = routed()
    with torch.no_grad():
        mlp.keys.copy_(10 * torch.eye(routing.EXPERTS, routing.WIDTH))
        tokens = torch.eye(routing.EXPERTS, routing.WIDTH, dtype=torch.float64)
        mlp((tokens + tokens.roll(1, 0))[None])  # two tokens ask each expert
        assert mlp.balance_loss.item() == pytest.approx(1)
        mlp(tokens[:1].expand(1, 5, -1) + 0.5 * tokens[1])  # all ask the same two
        assert mlp.balance_loss.item() > routing.EXPERTS / routing.CHOSEN * 0.99


def test_same_operations(monkeypatch):
    """Catches a dense model that computes less, and experts without more parameters."""
    monkeypatch.setattr(routing, "time_interleaved", lambda steps, *_: [[1.0] * len(steps)])
    found = routing.costs()
    dense, many, large = (found[kind] for kind in (routing.DENSE, routing.ROUTED, routing.LARGE))
    assert many["MFLOP of a token"] == pytest.approx(dense["MFLOP of a token"], rel=0.02)
    assert large["MFLOP of a token"] > 1.5 * dense["MFLOP of a token"]
    assert many["parameters"] == pytest.approx(large["parameters"], rel=0.01)
    assert many["parameters"] > 1.5 * dense["parameters"]


@pytest.mark.slow
def test_a_small_run(small_experiment, monkeypatch):
    """Catches a balancing loss that does not balance, and shares that are none."""
    kinds = {kind: routing.KINDS[kind] for kind in (routing.ROUTED, "routed, not balanced")}
    monkeypatch.setattr(routing, "KINDS", kinds)
    monkeypatch.setattr(routing, "costs", lambda: dict.fromkeys(kinds, {}))
    runs = small_experiment(routing, steps=40)["runs"]
    busiest = []
    for (run,) in runs.values():
        assert 0.5 < run["validation loss"] < 5.5 and len(run["load"]) == 2
        for load in run["load"]:
            assert sum(load) == pytest.approx(routing.CHOSEN)
        busiest.append(max(map(max, run["load"])))
    assert busiest[0] < busiest[1]
