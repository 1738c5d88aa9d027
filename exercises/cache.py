"""Cache: a token that is written costs one row of attention, and not all rows again.

Write the class Cache. It keeps keys and values of the past, and attends to them:
    cache = Cache(window=None, rotate=None)
    y = cache.attend(q, k, v)       q, k, v (B, H, T, D) of the next T tokens, T >= 1
attend appends k and v, and returns what causal attention (scores / √D) of the whole text has there:
                     k0 k1 k2 k3 k4
    first call   q0   ■  ·                         T = 2
                 q1   ■  ■
    second call  q2   ■  ■  ■                      T = 1
    third call   q3   ■  ■  ■  ■  ·                T = 2: its queries are the last 2 of 5 positions
                 q4   ■  ■  ■  ■  ■
window: a query sees the last `window` positions, itself included. rotate: a function, and
rotate(x, positions) turns queries or keys x (B, H, T, D) of the positions (T,), which count from 0
in the first call. Gradients flow through what is kept.
Shazeer 2019, arXiv:1911.02150, section 2.3.1; Beltagy et al. 2020, arXiv:2004.05150.
"""

import torch

from exercises.shared.cases import random


class Cache:
    def __init__(self, window=None, rotate=None):
        self.window = window
        self.rotate = rotate or (lambda x, positions: x)
        self.past = 0
        self.k = self.v = None

    def attend(self, q, k, v):
        T, D = q.shape[2:]
        # The queries are the last T of all positions j.
        i = torch.arange(T) + self.past
        # Keys are turned before they are kept: those of the past are turned already.
        q = self.rotate(q, i)
        k = self.rotate(k, i)
        if self.past:
            k = torch.cat([self.k, k], dim=2)
            v = torch.cat([self.v, v], dim=2)
        self.k, self.v = k, v
        self.past += T
        i = i[:, None]
        j = torch.arange(k.shape[2])
        see = (j <= i) & (j > i - (self.window or self.past))
        scores = (q @ k.mT / D**0.5).masked_fill(~see, -torch.inf)
        return scores.softmax(dim=-1) @ v


# Read on: attention.py: KVCache, whose memory is allocated once
def cases():
    def times_cos(x, positions):
        return x * positions[:, None].cos()

    table = [  # texts, tokens of the calls, window
        (1, [1, 2], None),
        (1, [2, 1, 1], 2),
        (2, [2, 2, 1], 3),
        (1, [1, 1, 1], 1),
        (4, [1, 3, 1], 9),
        (4, [5] + [1] * 7, 7),
    ]
    for B, calls, W in table:
        for rotate in None, times_cos:
            sizes = f"B={B}, H={(B + 1) // 2}, T={sum(calls)}, D={sum(calls) + 1}"
            label = f"{sizes}, calls of {calls} tokens, window={W}, rotate={bool(rotate)}"
            inputs = random(sizes, *["B H T D"] * 3)
            yield label, in_calls, *inputs, calls, W, rotate


def in_calls(theirs, q, k, v, calls, window, rotate):
    cache = theirs.Cache(window, rotate)
    outputs = [cache.attend(*call) for call in zip(*(x.split(calls, dim=2) for x in (q, k, v)))]
    for name, part in vars(theirs.Cache).items():
        if isinstance(part, list | torch.Tensor) and any(map(torch.is_tensor, part)):
            raise ValueError(f"all caches share {name}: it belongs to the class, and not to self")
    return torch.cat(outputs, dim=2)
