"""Scores: how alike are a query and a key?

Write scaled_dot(q, k): every query with every key.

    q (B, H, Tq, D)      k (B, H, Tk, D)      scores (B, H, Tq, Tk)

                 k0    k1    k2
          q0   q0·k0 q0·k1 q0·k2
          q1   q1·k0 q1·k1 q1·k2        all of it divided by √D

B texts and H heads do not see each other. Without the √D the products of vectors of D random
numbers are as large as √D, and softmax of them nearly picks one key.

Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
"""

import math

import torch

LEARN = ("scaled_dot",)
HINTS = (
    "A product of matrices, @, works on the last two dimensions, and keeps those before.",
    "k.mT swaps the last two dimensions of k.",
    "q @ k.mT has the products; the square root is math.sqrt(q.shape[-1]).",
)
READ_ON = "attention.py: dot and scaled_dot, then General and Additive, which are learned"


def scaled_dot(q, k):
    """q (B, H, Tq, D), k (B, H, Tk, D) -> scores (B, H, Tq, Tk)."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def flawed(q, k, power=0.5, size=-1, swap=False):
    scores = q @ k.mT / q.shape[size] ** power
    return scores.mT if swap else scores


MISTAKES = {
    "the scale is missing": {"power": 0},
    "the products are divided by D, not by √D": {"power": 1},
    "they are multiplied by √D": {"power": -0.5},
    "√Tq stands for √D: q.shape[-2] is the number of queries": {"size": -2},
    "√H stands for √D: q.shape[1] is the number of heads": {"size": 1},
    "rows are keys and columns queries: it is k @ q.mT": {"swap": True},
}


def cases():
    random = torch.Generator().manual_seed(0)
    tiny = torch.tensor([[[[1.0, 0.0], [1.0, 1.0]]]]), torch.tensor([[[[2.0, 0.0], [1.0, 3.0]]]])
    yield "two queries, two keys, D = 2", "scaled_dot", *(x.double() for x in tiny)
    for B, H, Tq, Tk, D in (1, 1, 3, 3, 5), (1, 1, 2, 4, 3), (1, 3, 2, 2, 7), (2, 3, 4, 9, 6):
        q = torch.randn(B, H, Tq, D, dtype=torch.float64, generator=random)
        k = torch.randn(B, H, Tk, D, dtype=torch.float64, generator=random)
        yield f"B={B}, H={H}, Tq={Tq}, Tk={Tk}, D={D}", "scaled_dot", q, k
