"""Positions: attention knows no order, so that it must be told.

Write sinusoidal(T, C), a vector for each position, to be added to the embeddings:

    position 0   sin 0   cos 0   sin 0      cos 0      ...     column 2p is sin(position · ω),
    position 1   sin ω0  cos ω0  sin ω1     cos ω1     ...     column 2p + 1 cos(position · ω)
    position 2   sin 2ω0 cos 2ω0 sin 2ω1    cos 2ω1    ...     with ω = 10000^(−2p/C), C is even

Write rotary(q, k, v), for q, k, v (B, H, T, D) of positions 0 to T − 1: what then goes into
attention. Pair p of features, x[p] and x[p + D/2], turns by the angle a = position · 10000^(−2p/D):

    x[p]       becomes   x[p] · cos a − x[p + D/2] · sin a
    x[p + D/2] becomes   x[p + D/2] · cos a + x[p] · sin a

so that the product of a query and a key depends on their distance alone. Values say what a token
is, not where: they stay as they are.

Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Su et al. 2021, arXiv:2104.09864.
"""

import functools

import torch

LEARN = ("sinusoidal", "rotary")
HINTS = (
    "ω of all pairs: 10000.0 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D).",
    "torch.outer(positions, ω) is (T, D/2): the angle of each position and pair.",
    "x1, x2 = x.chunk(2, dim=-1), and torch.cat of both turned halves.",
)
READ_ON = "attention.py: sinusoidal, rope_table and rotate"


def angles(T, pairs, start=0, power=2.0, base=10000.0):
    omega = base ** (-power * torch.arange(pairs, dtype=torch.float64) / (2 * pairs))
    return torch.outer(torch.arange(start, start + T, dtype=torch.float64), omega)


def sinusoidal(T, C):
    """T, C -> (T, C), in float64."""
    a = angles(T, C // 2)
    return torch.stack([a.sin(), a.cos()], dim=-1).flatten(1)


def rotary(q, k, v):
    """q, k, v (B, H, T, D) -> q, k, v that go into attention."""
    return turn(q), turn(k), v


def turn(x, start=0, sign=1, interleaved=False, power=2.0):
    a = angles(x.shape[-2], x.shape[-1] // 2, start, power)
    x1, x2 = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    parts = x1 * a.cos() - sign * x2 * a.sin(), x2 * a.cos() + sign * x1 * a.sin()
    return torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)


def vectors(T, C, order="alternate", **how):
    a = angles(T, C // 2, **how)
    if order == "halves":
        return torch.cat([a.sin(), a.cos()], dim=1)
    parts = [a.cos(), a.sin()] if order == "swapped" else [a.sin(), a.cos()]
    return torch.stack(parts, dim=-1).flatten(1)


def turned(**how):
    """A rotary whose queries and keys are both turned in this way."""
    return {"rotary": lambda q, k, v: (turn(q, **how), turn(k, **how), v)}


def fixed(**how):
    return {"sinusoidal": functools.partial(vectors, **how)}


MISTAKES = {
    "sines come first and then all cosines, not in turns": fixed(order="halves"),
    "cosines stand in the even columns": fixed(order="swapped"),
    "ω is 10000^(−p/C), and not −2p/C": fixed(power=1.0),
    "the first position of sinusoidal is 1, and not 0": fixed(start=1),
    "pairs are neighbours (2p, 2p + 1), and not halves (p, p + D/2)": turned(interleaved=True),
    "the first position of rotary is 1, and not 0": turned(start=1),
    "pairs turn the other way": turned(sign=-1),
    "a is position · 10000^(−p/D), and not −2p/D": turned(power=1.0),
    "values are turned too": {"rotary": lambda q, k, v: (turn(q), turn(k), turn(v))},
    "only queries are turned": {"rotary": lambda q, k, v: (turn(q), k, v)},
}


def cases():
    yield "T=3, C=4", "sinusoidal", 3, 4
    random = torch.Generator().manual_seed(0)
    for B, H, T, D in (1, 1, 2, 4), (2, 3, 7, 8):
        x = torch.randn(3, B, H, T, D, dtype=torch.float64, generator=random)
        yield f"B={B}, H={H}, T={T}, D={D}", "rotary", *x
    yield "T=40, C=16", "sinusoidal", 40, 16
