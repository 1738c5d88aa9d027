"""experiments/routing.py at a small size: experts, who asks them, and what balance does."""

import json

import pytest
import torch
from conftest import complaint, run_here

from experiments import routing
from experiments.shared import trials


def routed(kind="routed"):
    torch.manual_seed(0)
    model, (mlp, _) = routing.new_model(kind)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.double(), mlp


def test_experts_that_are_asked():
    """Catches an answer of an expert that a token has not asked, weights that do not add up to 1, and mixed up rows."""
    _, mlp = routed()
    x = torch.randn(2, 9, routing.WIDTH, dtype=torch.float64)
    y = mlp(x)
    for row, place in [(0, 0), (1, 4), (1, 8)]:
        token = x[row, place]
        best = sorted(((mlp.keys[n] @ token).item(), n) for n in range(routing.EXPERTS))[
            -routing.CHOSEN :
        ]
        weights = torch.tensor([score for score, _ in best], dtype=torch.float64).softmax(0)
        right = sum(weight * mlp.experts[n](token) for weight, (_, n) in zip(weights, best))
        assert torch.allclose(y[row, place], right, atol=1e-12)


def test_the_future_is_unseen_and_the_router_learns():
    """Catches routing by which a later token changes what an earlier one gets, and keys that no gradient reaches."""
    model, mlp = routed()
    x = torch.randint(256, (1, 12))
    other = x.clone()
    other[0, 8:] = torch.randint(256, (4,))
    assert torch.allclose(model(x, x)[0][:, :8], model(other, other)[0][:, :8], atol=1e-12)
    model(x, x)[1].backward()
    assert (
        mlp.keys.grad.abs().sum() > 0 and not routed("routed by random keys")[1].keys.requires_grad
    )


def test_the_balancing_loss():
    """Catches a balancing loss that is not 1 where all experts have equally many, and the largest where two have all."""
    _, mlp = routed()
    with torch.no_grad():
        mlp.keys.copy_(10 * torch.eye(routing.EXPERTS, routing.WIDTH))
        everybody = torch.eye(routing.EXPERTS, routing.WIDTH, dtype=torch.float64)
        mlp((everybody + everybody.roll(1, 0))[None])  # each expert is asked by two tokens
        assert mlp.balance_loss.item() == pytest.approx(1)
        mlp(everybody[:1].expand(1, 5, -1) + 0.5 * everybody[1])  # all ask the same two
        assert mlp.balance_loss.item() > routing.EXPERTS / routing.CHOSEN * 0.99


def test_same_operations():
    """Catches a comparison with a dense model that computes less, and parameters that are not more."""
    found = routing.costs()
    dense, many, large = (
        found[kind] for kind in ("dense", "routed", "dense, as large as all experts")
    )
    assert many["MFLOP of a token"] == pytest.approx(dense["MFLOP of a token"], rel=0.02)
    assert large["MFLOP of a token"] > 1.5 * dense["MFLOP of a token"]
    assert (
        many["parameters"] == pytest.approx(large["parameters"], rel=0.01)
        and many["parameters"] > 1.5 * dense["parameters"]
    )


def test_a_small_run(tmp_path, monkeypatch):
    """Catches a script that no longer runs, a balancing loss that does not balance, and shares that are none."""
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    monkeypatch.setattr(routing, "costs", lambda: dict.fromkeys(routing.KINDS, {}))
    monkeypatch.setattr(
        routing, "KINDS", {kind: routing.KINDS[kind] for kind in ("routed", "routed, not balanced")}
    )
    runs = routing.main(routing.Settings(seeds=1, steps=40, out_dir=str(tmp_path)))
    busiest = {kind: max(map(max, run["load"])) for kind, (run,) in runs.items()}
    assert busiest["routed"] < busiest["routed, not balanced"]
    for (run,) in runs.values():
        assert (
            all(sum(parts) == pytest.approx(routing.CHOSEN) for parts in run["load"])
            and 1 < run["loss"] < 5.5
        )
        assert len(run["bytes"]) == 2 and all(
            sum(parts) == pytest.approx(routing.CHOSEN) for parts in run["bytes"][0]
        )
    (name,) = {path.stem for path in tmp_path.iterdir()}
    assert len(json.loads((tmp_path / f"{name}.json").read_text())["tables"]) == 1
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_bad_settings():
    """Catches a traceback for a number of steps that cannot be."""
    assert "steps=0 must be at least 1" in complaint(
        run_here("-m", "experiments.routing", "--steps=0")
    )
