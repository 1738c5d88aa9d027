"""Positions: attention knows no order, so that it must be told.

Write sinusoidal(T, C), a vector for each position, to be added to the embeddings, in float64:
    position 0   sin 0   cos 0   sin 0      cos 0      ...     column 2p is sin(position · ω),
    position 1   sin ω0  cos ω0  sin ω1     cos ω1     ...     column 2p + 1 cos(position · ω)
    position 2   sin 2ω0 cos 2ω0 sin 2ω1    cos 2ω1    ...     with ω = 10000^(−2p/C), C is even
Write rotary(q, k, v), each (B, H, T, D) of positions 0 to T − 1; return the three for attention.
Pair p of features, x[p] and x[p + D/2], turns by the angle a = position · 10000^(−2p/D):
    x[p]       becomes   x[p] · cos a − x[p + D/2] · sin a
    x[p + D/2] becomes   x[p + D/2] · cos a + x[p] · sin a
so that the product of a query and a key depends on their distance alone. Values stay as they are.
Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Su et al. 2021, arXiv:2104.09864.
"""

import torch

from exercises.shared.cases import random


def sinusoidal(T, C):
    # Positions (T, 1) times the ω of all pairs: the angles (T, pairs).
    a = torch.arange(0, T)[:, None] * 10000 ** (-2 * torch.arange(C // 2).double() / C)
    return torch.stack([a.sin(), a.cos()], dim=-1).flatten(1)


def rotary(q, k, v):
    T, D = q.shape[2:]
    a = torch.arange(0, T)[:, None] * 10000 ** (-2 * torch.arange(D // 2).double() / D)
    cos = a.cos()
    sin = a.sin()

    def turn(x):
        # chunk halves the features; cat joins what became of both halves.
        x1, x2 = x.chunk(2, dim=-1)
        y1 = x1 * cos - x2 * sin
        y2 = x2 * cos + x1 * sin
        return torch.cat([y1, y2], dim=-1)

    return turn(q), turn(k), v


# Read on: attention.py: sinusoidal, rope_table and rotate
def cases():
    yield "T=3, C=4", "sinusoidal", 3, 4
    yield "T=40, C=16", "sinusoidal", 40, 16
    for sizes in "B=1, H=1, T=2, D=4", "B=2, H=3, T=7, D=8":
        yield sizes, "rotary", *random(sizes, *["B H T D"] * 3)
