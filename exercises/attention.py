"""Attention: the four lines.

Write attention(q, k, v, visible): each query's average of the values, weighted by its scores:
    q (B, H, Tq, D)   k (B, H, Tk, D)   v (B, H, Tk, Dv)   output (B, H, Tq, Dv)
    visible (Tq, Tk) says True where a query may look at a key; each may look somewhere:
          k0 k1 k2 k3
      q2   ■  ■  ■  ·      two queries, which are the last two of four tokens
      q3   ■  ■  ■  ■
1 the scores q·k / √D      2 −∞ where a query may not look
3 softmax over the keys    4 the weights times the values
Vaswani et al. 2017, arXiv:1706.03762, section 3.2.
"""

import torch

from exercises.shared.cases import random, small


def attention(q, k, v, visible):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    # masked_fill writes where a mask is True, so that it gets ~visible.
    scores = scores.masked_fill(~visible, -torch.inf)
    # dim=-1 are the keys: each query's weights sum to 1.
    weights = scores.softmax(dim=-1)
    return weights @ v


# Read on: attention.py: masked_fill does this, and naive does it without a mask
def cases():
    q = small([0, 0], [1, 0])
    k = small([1, 0], [2, 0])
    v = small([10, 0], [0, 10])
    past = torch.ones(2, 2).tril().bool()
    sizes = "B=1, H=1, Tq=2, Tk=2, D=2, Dv=2"
    yield sizes, "attention", q, k, v, past
    yield f"{sizes}, large scores, ahead", "attention", -1e5 * q + 0, k, v, past.T
    for sizes in "B=1, H=1, Tq=2, Tk=4, D=3, Dv=1", "B=2, H=3, Tq=5, Tk=9, D=6, Dv=4":
        q, k, v = random(sizes, "B H Tq D", "B H Tk D", "B H Tk Dv")
        Tq, Tk = q.shape[2], k.shape[2]
        yield sizes, "attention", q, k, v, torch.ones(Tq, Tk).tril(Tk - Tq).bool()
