"""Attention: the four lines.

Write attention(q, k, v, visible): each query's average of the values, weighted by its scores.

    q (B, H, Tq, D)   k (B, H, Tk, D)   v (B, H, Tk, Dv)   output (B, H, Tq, Dv)

    visible (Tq, Tk) says True where a query may look at a key:

          k0 k1 k2 k3
      q2   ■  ■  ■  ·      two queries, which are the last two of four tokens
      q3   ■  ■  ■  ■

1 the scores q·k / √D      2 −∞ where a query may not look
3 softmax over the keys    4 the weights times the values

Every query may look somewhere.

Vaswani et al. 2017, arXiv:1706.03762, section 3.2.
"""

import functools
import math

import torch

from attention import ATTENTION

LEARN = ("attention",)
HINTS = (
    "scores.masked_fill(~visible, -math.inf) writes −∞ where a query may not look.",
    "softmax runs over the last dimension, the keys: scores.softmax(dim=-1).",
    "q @ k.mT / √D, masked_fill, softmax, and then weights @ v.",
)
READ_ON = "attention.py: masked_fill does this, and naive does it without a mask"


def attention(q, k, v, visible):
    """q (B, H, Tq, D), k (B, H, Tk, D), v (B, H, Tk, Dv), visible (Tq, Tk) -> (B, H, Tq, Dv)."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    return weights @ v


def flawed(q, k, v, visible, power=0.5, dim=-1, hidden=-math.inf, see=None, late=False):
    scores = q @ k.mT / q.shape[-1] ** power
    if see:
        visible = see(*visible.shape)
    if late:
        weights = scores.softmax(dim).masked_fill(~visible, 0)
    else:
        weights = scores.masked_fill(~visible, hidden).softmax(dim)
    return weights.nan_to_num() @ v  # of a column or a row of nothing but −∞


def square(Tq, Tk, diagonal):
    return torch.ones(Tq, Tk).tril(diagonal).bool()


MISTAKES = {
    "the scale is missing": {"power": 0},
    "the scores are divided by D, not by √D": {"power": 1},
    "softmax is taken over the queries: rows do not sum to 1": {"dim": -2},
    "softmax is taken over the heads": {"dim": 1},
    "the mask comes after softmax: rows do not sum to 1": {"late": True},
    "0 stands for −∞: exp(0) is a weight too": {"hidden": 0.0},
    "nobody is masked: the future is visible": {"see": lambda Tq, Tk: square(Tq, Tk, Tk)},
    "the mask is inverted": {"see": lambda Tq, Tk: ~square(Tq, Tk, Tk - Tq)},
    "the mask is aligned at the top left, though Tq < Tk": {"see": lambda *T: square(*T, 0)},
    "a token cannot see itself": {"see": lambda Tq, Tk: square(Tq, Tk, Tk - Tq - 1)},
    "a token sees one step into the future": {"see": lambda Tq, Tk: square(Tq, Tk, Tk - Tq + 1)},
}


def cases():
    random = torch.Generator().manual_seed(0)
    tiny = [[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [2.0, 0.0]], [[10.0, 0.0], [0.0, 10.0]]
    q, k, v = (torch.tensor(x).double()[None, None] for x in tiny)
    yield "two tokens, D = 2", "attention", q, k, v, square(2, 2, 0)
    for B, H, Tq, Tk, D, Dv in (1, 1, 3, 3, 3, 3), (1, 1, 2, 4, 2, 2), (2, 3, 5, 9, 6, 4):
        shapes = (B, H, Tq, D), (B, H, Tk, D), (B, H, Tk, Dv)
        q, k, v = (torch.randn(x, dtype=torch.float64, generator=random) for x in shapes)
        label = f"B={B}, H={H}, Tq={Tq}, Tk={Tk}, D={D}, Dv={Dv}"
        yield label, "attention", q, k, v, square(Tq, Tk, Tk - Tq)


def beside(theirs):
    """lookback's paths, for 256 tokens and 4 heads."""
    x = torch.randn(1, 4, 256, 32)
    yours = functools.partial(theirs.attention, x, x, x, square(256, 256, 0))
    return {"yours": yours} | {
        name: functools.partial(path, x, x, x) for name, path in ATTENTION.items()
    }
