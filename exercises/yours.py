"""Yours: a mechanism of your own.

Write attention(q, k, v), causal, with a score, a mask or a way to share that you invent. Whatever
its numbers are, it must keep what every mechanism of this repository keeps:
    q (B, H, Tq, D)   k (B, H, Tk, D)   v (B, H, Tk, Dv)   output (B, H, Tq, Dv)
    rows sum to 1      values that are all ones come out as ones
    no future          keys and values of later positions change nothing
    Tq < Tk            the last queries alone get the last rows of the whole
    texts, heads       each gets what it gets alone, whatever stands beside it
    float16            inputs of a thousand give finite numbers, in float16
    the gradient       is the slope: what a small step in a direction changes
Ideas: the cosine; a penalty for age; sparsemax. It can be trained then: docs/hacking.md.
"""

import torch
from torch.autograd import gradcheck

from exercises.shared.cases import random
from exercises.shared.comparison import equal


def attention(q, k, v):
    Tq, Tk = q.shape[2], k.shape[2]
    # float16 has no number above 65504. The score is minus the distance.
    scores = -torch.cdist(q.double(), k.double())
    # Of Tk positions the queries are the last Tq.
    future = torch.ones(Tq, Tk).triu(Tk - Tq + 1).bool()
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return weights.to(v.dtype) @ v


# Read on: docs/hacking.md: train with it; tests/model/test_registries.py then tests it further
def cases():
    inputs = random("B=2, H=3, T=6, D=4", *["B H T D"] * 3)
    for name in HOLDS:
        yield name, holds, *inputs, name


def of_a_part(*part):
    """A part of the inputs alone gets what it gets in the whole."""
    return lambda f, *x: (f(*(one.narrow(*part) for one in x)), f(*x).narrow(*part))


HOLDS = {  # a function attention and q, k, v -> two tensors that must be equal
    "rows sum to 1": lambda f, q, k, v: (f(q, k, v * 0 + 1), v * 0 + 1),
    "no future": of_a_part(2, 0, 4),
    "Tq < Tk": lambda f, q, k, v: (f(q[:, :, 4:], k, v), f(q, k, v)[:, :, 4:]),
    "texts": of_a_part(0, 1, 1),
    "heads": of_a_part(1, 1, 1),
    "the gradient": lambda f, *x: (gradcheck(f, x, fast_mode=True, raise_exception=False), True),
    "float16": lambda f, q, k, v: (0 * f(999 * q.half(), 999 * k.half(), v.half()), 0 * v.half()),
}


def holds(theirs, q, k, v, name):
    got, expected = map(torch.as_tensor, HOLDS[name](theirs.attention, q, k, v))
    if not equal(got, expected, 1e-6):
        raise ValueError(f"it does not keep what the task calls {name}")
    return q
