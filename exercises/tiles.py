"""Tiles: attention that never holds all scores.

Write tiled(q, blocks): attention of q to keys and values that come in blocks, one after another.

    q (Tq, D)     blocks: a list of (k, v), k (n, D), v (n, Dv); n may differ     output (Tq, Dv)

    after each block every query keeps three things:

        largest   its largest score so far           1.0  │  3.0
        total     Σ exp(score − largest)             1.4  │  1.4 · exp(1 − 3) + 1.0
        y         Σ exp(score − largest) · value          │  the same, with values

When a block brings a larger score, total and y of the past are relative to the old one: both are
rescaled by exp(old − new). At the end y / total is softmax(q·k / √D) v over all keys, of which only
one block's scores existed at a time. There is no mask.

Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022 (FlashAttention), arXiv:2205.14135.
"""

import math

import torch

LEARN = ("tiled",)
HINTS = (
    "Begin with largest = −∞, total = 0 and y = 0 of shapes (Tq, 1), (Tq, 1) and (Tq, Dv).",
    "new = torch.maximum(largest, scores.amax(-1, keepdim=True)); powers = (scores − new).exp().",
    "shrink = (largest − new).exp(); total = total · shrink + powers.sum(-1), y likewise.",
)
READ_ON = "attention.py: Tiled; engine/kernels/autograd.py: tiled_gradients"


def tiled(q, blocks):
    """q (Tq, D), blocks [(k (n, D), v (n, Dv))] -> (Tq, Dv)."""
    largest = torch.full((len(q), 1), -math.inf, dtype=q.dtype)
    total, y = 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
        shrink, powers = (largest - new).exp(), (scores - new).exp()
        total = total * shrink + powers.sum(dim=-1, keepdim=True)
        y = y * shrink + powers @ v
        largest = new
    return y / total


def flawed(q, blocks, power=0.5, shrinks=("total", "y"), average=False, last=None):
    largest = torch.full((len(q), 1), -math.inf, dtype=q.dtype)
    total, y = 0.0, 0.0
    parts = []
    for k, v in blocks[:last]:
        scores = q @ k.mT / q.shape[-1] ** power
        best = scores.amax(-1, keepdim=True)
        new = torch.maximum(largest, best)
        powers = (scores - new).exp()
        shrink = (largest - new).exp()
        total = total * (shrink if "total" in shrinks else 1) + powers.sum(-1, keepdim=True)
        y = y * (shrink if "y" in shrinks else 1) + powers @ v
        largest = new
        parts.append(scores.softmax(-1) @ v)
    return sum(parts) / len(parts) if average else y / total


MISTAKES = {
    "total and y are not rescaled when a larger score comes": {"shrinks": ()},
    "y is rescaled, and total is not": {"shrinks": ("y",)},
    "total is rescaled, and y is not": {"shrinks": ("total",)},
    "the scale is missing": {"power": 0.0},
    "the scores are divided by D, not by √D": {"power": 1.0},
    "each block is normalized by itself, and the blocks are averaged": {"average": True},
    "the last block is left out": {"last": -1},
    "only the first block counts": {"last": 1},
}


def cases():
    random = torch.Generator().manual_seed(0)
    q = torch.tensor([[1.0, 0.0]]).double()
    low, high = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[3.0, 0.0]]).double()
    values = torch.eye(2).double()
    for label, keys in ("rising scores", (low, high)), ("falling scores", (high, low)):
        yield label, with_blocks, q, *keys, *values[:, None]
    for Tq, D, Dv, sizes in (2, 3, 2, (2, 2)), (5, 4, 3, (4, 4, 1)), (3, 2, 2, (1, 7, 2, 5)):
        shapes = [(n, width) for width in (D, Dv) for n in sizes]
        parts = [torch.randn(n, dtype=torch.float64, generator=random) for n in shapes]
        q = torch.randn(Tq, D, dtype=torch.float64, generator=random)
        yield f"Tq={Tq}, D={D}, Dv={Dv}, blocks of {sizes}", with_blocks, q, *parts
    keys = 1000 * torch.randn(2, 3, 2, dtype=torch.float64, generator=random)
    yield "scores of thousands", with_blocks, q, *keys, *keys


def with_blocks(theirs, q, *parts):
    """parts: the keys of all blocks, and then their values."""
    half = len(parts) // 2
    return theirs.tiled(q, [*zip(parts[:half], parts[half:])])
