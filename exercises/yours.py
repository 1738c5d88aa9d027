"""Yours: a mechanism of your own.

Write attention(q, k, v), causal, with a score, a mask or a way to share that you invent. Nobody
knows what its numbers should be. But whatever it is, it must keep what every mechanism of this
repository keeps, and that is what the check looks at:

    q (B, H, Tq, D)   k (B, H, Tk, D)   v (B, H, Tk, Dv)   output (B, H, Tq, Dv)

    rows sum to 1      values that are all ones come out as ones
    no future          keys and values of later positions change nothing
    Tq < Tk            the last queries alone get the last rows of the whole
    texts, heads       each gets what it gets alone, whatever stands beside it
    large scores       inputs of thousands give finite numbers
    float16            finite too, and in float16
    the gradient       is the slope: what a small step in a direction changes

Ideas: the cosine of query and key; minus their distance; a penalty for age; only every second
position; sparsemax. An entry in a dictionary then trains with it: docs/hacking.md.
"""

import math

import torch
import torch.nn.functional as F

LEARN = ("attention",)
HINTS = (
    "Begin with ordinary attention, whose mask has Tk − Tq: torch.ones(Tq, Tk).tril(Tk − Tq).",
    "float16 has no number above 65504: compute scores in q.float(), and weights.to(v.dtype).",
    "Sums over texts, heads or positions (mean, norm, softmax) mix what must stay apart.",
)
READ_ON = "docs/hacking.md: train with it; tests/model/test_registries.py then tests it further"


def attention(q, k, v):
    """q (B, H, Tq, D), k (B, H, Tk, D), v (B, H, Tk, Dv) -> (B, H, Tq, Dv)."""
    return flawed(q, k, v)


def flawed(q, k, v, mixed=None, late=False, dim=-1, shift=None, **wrong):
    """Ten times the cosine of query and key, and softmax."""
    Tq, Tk = q.shape[2], k.shape[2]
    hidden = ~torch.ones(Tq, Tk).tril(Tk - Tq if shift is None else shift).bool()
    if "half" not in wrong:
        q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
    if mixed is not None:
        q = q - q.mean(mixed, keepdim=True)
    if "dot" not in wrong:
        q, k = 10 * F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    scores = (q.detach() if "cut" in wrong else q) @ k.mT
    if "unstable" in wrong:
        powers = scores.exp().masked_fill(hidden, 0)
        weights = powers / powers.sum(-1, keepdim=True)
    elif late:
        weights = scores.softmax(-1).masked_fill(hidden, 0)
    else:
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim)
    return weights.nan_to_num(0 if dim == -2 else math.nan).to(v.dtype) @ v


MISTAKES = {
    "later positions are visible": {"shift": 999},
    "the mask is aligned at the top left, though Tq < Tk": {"shift": 0},
    "the mask comes after softmax, whose sum includes the future": {"late": True},
    "the weights of a key sum to 1 over the queries": {"dim": -2},
    "a mean or a sum runs over the texts": {"mixed": 0},
    "a mean or a sum runs over the heads": {"mixed": 1},
    "a mean or a sum runs over all positions": {"mixed": 2},
    "exp of large scores overflows: subtract each row's largest": {"dot": True, "unstable": True},
    "float16 overflows: compute scores in float32": {"dot": True, "half": True},
    "a part of the gradient is cut off (detach, .data, no_grad, item)": {"cut": True},
}


def later(x):
    """Other numbers at the last two positions."""
    return torch.cat([x[:, :, :4], x[:, :, :2].exp()], dim=2)


def slope(f, q, k, v):
    """The gradient in a direction, and how much a small step in it changes."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    way = [x.detach().cos() for x in inputs]
    gradients = torch.autograd.grad(f(*inputs).sin().sum(), inputs, allow_unused=True)
    ends = [
        f(*(x.detach() + step * to for x, to in zip(inputs, way))).sin().sum()
        for step in (1e-5, -1e-5)
    ]
    total = sum((g * to).sum() for g, to in zip(gradients, way) if g is not None)
    return total, (ends[0] - ends[1]) / 2e-5


HOLDS = {  # a function attention and q, k, v -> two tensors that must be equal
    "rows sum to 1": lambda f, q, k, v: (f(q, k, v * 0 + 1), v * 0 + 1),
    "no future": lambda f, *x: (f(*map(later, x))[:, :, :4], f(*x)[:, :, :4]),
    "Tq < Tk": lambda f, q, k, v: (f(q[:, :, 4:], k, v), f(q, k, v)[:, :, 4:]),
    "texts": lambda f, *x: (f(*(part[1:] for part in x)), f(*x)[1:]),
    "heads": lambda f, *x: (f(*(part[:, 1:2] for part in x)), f(*x)[:, 1:2]),
    "large scores": lambda f, q, k, v: (0 * f(3000 * q, 3000 * k, v), v * 0),
    "float16": lambda f, q, k, v: (
        0 * f(*(999 * x.half() for x in (q, k)), v.half()),
        v.half() * 0,
    ),
    "the gradient": slope,
}


def cases():
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 2, 3, 6, 4, dtype=torch.float64, generator=random)
    for name in HOLDS:
        yield name, holds, *inputs, name


def holds(theirs, q, k, v, name):
    got, expected = HOLDS[name](theirs.attention, q, k, v)
    close = got.dtype == expected.dtype and torch.allclose(got, expected, rtol=1e-6, atol=1e-9)
    return torch.tensor(close)
