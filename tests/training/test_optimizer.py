"""Muon against the singular value decomposition, AdamW against PyTorch's own, and the schedule."""

import pytest
import torch
from conftest import parametrize
from mechanisms import assert_same

from engine.optimizer import (
    DECAY,
    POLAR_EXPRESS,
    Muon,
    learning_rate_at,
    make_optimizer,
    orthogonalize,
)
from model import GPT, GPTConfig
from train import TrainConfig

# ---- the learning rate


@parametrize("schedule", DECAY)
def test_learning_rate(schedule):
    """Catches a schedule that starts at zero, jumps, or does not end at min_lr; and a decay that
    decay_lr=False does not stop.
    """
    config = TrainConfig(
        learning_rate=1.0,
        min_lr=0.1,
        warmup_iters=10,
        hold=0.0,
        lr_decay_iters=110,
        lr_schedule=schedule,
    )
    rates = [learning_rate_at(step, config) for step in range(200)]
    assert 0 < rates[0] < rates[1] < rates[9] < rates[10] == max(rates) == 1.0
    assert rates[35] == pytest.approx(0.1 + 0.9 * DECAY[schedule](0.25))
    assert DECAY["cosine"](0.25) == pytest.approx(0.853553)
    assert all(a > b for a, b in zip(rates[10:110], rates[11:111]))
    assert set(rates[110:]) == {0.1}
    config.decay_lr = False
    assert [learning_rate_at(step, config) for step in (9, 10, 150)] == [rates[9], 1.0, 1.0]


# ---- groups of parameters


def test_muon_takes_the_matrices_of_the_blocks():
    """Catches an embedding that is orthogonalized, a parameter in no group, or QKV taken as one."""
    shape = dict(block_size=8, vocab_size=10, n_layer=1, n_head=2, n_kv_head=1, n_embd=8)
    model = GPT(GPTConfig(**shape, tie_weights=False))
    block = model.transformer.h[0]
    block.scale = torch.nn.Parameter(torch.ones(2, 1, 1))
    block.wte = torch.nn.Embedding(3, 2)
    rates = dict(learning_rate=0.5, embedding_lr=0.4, head_lr=0.3, vector_lr=0.2)
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon", muon_steps=4, **rates))
    assert optimizer.param_groups[0]["steps"] == 4
    expected = {
        0.5: {
            block.attn.c_attn.weight,
            block.attn.c_proj.weight,
            block.mlp.c_fc.weight,
            block.mlp.c_proj.weight,
        },
        0.4: {model.transformer.wte.weight, model.transformer.wpe.weight, block.wte.weight},
        0.3: {model.lm_head.weight},
    }
    expected[0.2] = {*model.parameters()}.difference(*expected.values())
    assert {group["lr"]: {*group["params"]} for group in optimizer.param_groups} == expected
    parts = [optimizer.parts[layer.weight] for layer in (block.attn.c_attn, block.mlp.c_fc)]
    assert parts == [[8, 4, 4], [len(block.mlp.c_fc.weight)]]


# ---- Muon


@parametrize("shape", [(32, 32), (48, 16), (128, 512), (3, 1, 7)])
def test_orthogonalize_is_the_svd(shape):
    """Catches coefficients in the wrong order, a lost transpose, a norm over the batch, another
    number of steps, or gradients that are converted before they are normalized.
    """
    G = torch.randn(shape, dtype=torch.float64)
    if len(shape) == 3:  # a batch, in which one is a million times another
        G *= torch.logspace(-3, 3, len(G), dtype=torch.float64)[:, None, None]
    U, values, Vh = torch.linalg.svd(G, full_matrices=False)
    values = values / (1.01 * values.norm(dim=-1, keepdim=True))
    for steps, (a, b, c) in enumerate(POLAR_EXPRESS, 1):
        values = a * values + b * values**3 + c * values**5
        got = orthogonalize(G, steps, torch.float64)
        assert_same([got], [U * values[..., None, :] @ Vh])
    assert values.min() > 0.87 and values.max() < 1.13
    got = orthogonalize(G)
    assert (got - U @ Vh).norm() < 0.15 * (U @ Vh).norm()
    torch.testing.assert_close(orthogonalize(1e-4 * G), got, rtol=1e-3, atol=1e-3)
    for size in 1e-12, 1e12:
        half = orthogonalize(size * G.float(), 5, torch.float16)
        assert half.dtype == torch.float32 and (half - U @ Vh).norm() < 0.15 * (U @ Vh).norm()


@parametrize("dtype", [torch.bfloat16, torch.float16])
@parametrize("share", [0.3, 0.374, 0.376, 0.39])
def test_orthogonalize_in_half_precision(share, dtype):
    """Catches a singular value that rounding lifts out of the next polynomial's interval."""
    for large in range(1, 6):  # near the highest point of the first polynomial, and small ones
        G = torch.zeros(16, 16)
        G.diagonal()[:large] = share * 1.01
        G.diagonal()[large:] = max(1e-3, (1 - large * share**2) / (16 - large)) ** 0.5
        values = torch.linalg.svdvals(orthogonalize(G / G.norm(), dtype=dtype).float())
        assert 0.7 < values.min() and values.max() < 1.3


def test_muon_is_its_definition():
    """Catches momentum that is not Nesterov's, coupled decay, parts taken as one, a lost scale, or
    other steps than its own.
    """
    shapes = (8, 8), (8, 8), (24, 8), (16, 8), (8, 16), (6, 8)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    parts = {params[2]: [8, 8, 8], params[5]: [4, 2]}
    expected = [p.detach().clone() for p in params]
    momentum = [torch.zeros_like(p) for p in params]
    group = dict(params=params, kind="muon", lr=0.1, weight_decay=0.5, momentum=0.9, steps=2)
    optimizer = Muon([group], parts, {})
    for _ in range(3):
        for n, p in enumerate(params):
            p.grad = torch.randn_like(p)
            momentum[n] = 0.9 * momentum[n] + 0.1 * p.grad
            ahead = 0.9 * momentum[n] + 0.1 * p.grad
            expected[n] *= 1 - 0.1 * 0.5
            heights = parts.get(p, [len(p)])
            for target, part in zip(expected[n].split(heights), ahead.split(heights)):
                scale = max(1, len(part) / p.shape[1]) ** 0.5
                target -= 0.1 * scale * orthogonalize(part, 2)
        optimizer.step()
    assert_same(params, expected, error=1e-5)
