"""Cross: look at another sequence, whose end may be padding.

Write additive(s, h, W1, W2, u): Bahdanau's weights of a decoder's state, and its context:
    s (B, C) the state     h (B, S, C) the encoder's states     W1, W2 (C, A)     u (A)
    score of state i of h:  u · tanh(s W1 + h[i] W2)            weights: softmax over the S states
    context: the average of h with these weights            return weights (B, S), context (B, C)
Write cross_attention(q, k, v, real), a decoder's attention (scores / √D); return (B, H, T, D):
    q (B, H, T, D)     k, v (B, H, S, D)     real (B, S): False for padding, of any numbers
           real = ■ ■ ■ ·             every query sees the same three keys: there is no future in
      q0, q1, ... ■ ■ ■ ·             another sequence, and T may be larger than S
Bahdanau et al. 2014, arXiv:1409.0473; Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
"""

import torch

from exercises.shared.cases import random


def additive(s, h, W1, W2, u):
    # s[:, None] is (B, 1, C): it is added to each of the S states.
    hidden = torch.tanh(s[:, None] @ W1 + h @ W2)
    weights = (hidden @ u).softmax(dim=-1)
    return weights, (weights[:, :, None] * h).sum(1)


def cross_attention(q, k, v, real):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    # real[:, None, None] is (B, 1, 1, S): one mask for all heads and queries.
    real = real[:, None, None]
    scores = scores.masked_fill(~real, -torch.inf)
    return scores.softmax(dim=-1) @ v


# Read on: attention.py: Additive and CrossAttention; masks.py: present
def cases():
    for sizes in "B=1, S=2, C=2, A=3", "B=3, S=6, C=5, A=4":
        for size in 1, 2:
            inputs = random(sizes, "B C", "B S C", "C A", "C A", "A")
            yield f"{sizes}, times {size}", "additive", *(size * x for x in inputs)
    for sizes in "B=2, H=1, T=1, S=4, D=2", "B=1, H=1, T=4, S=4, D=2", "B=3, H=2, T=6, S=4, D=5":
        q, k, v = random(sizes, "B H T D", "B H S D", "B H S D")
        padding = torch.tensor([2, 0, 1])[: len(q), None]
        real = torch.arange(k.shape[2]) < k.shape[2] - padding
        if len(q) > 2:  # the scores of padding are large
            k = k + 500 * ~real[:, None, :, None]
        yield sizes, "cross_attention", q, k, v, real
