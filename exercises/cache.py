"""Cache: a token that is written costs one row of attention, and not all rows again.

Write the class Cache. It keeps keys and values of the past, and attends to them:

    cache = Cache(window=None, padding=None)
    y = cache.attend(q, k, v)       q, k, v (B, H, T, D) of the next T tokens, T is often 1

attend appends k and v, and returns what causal attention of the whole text has in these T rows:

                     k0 k1 k2 k3 k4
    first call   q0   ■  ·                         T = 2
                 q1   ■  ■
    second call  q2   ■  ■  ■                      T = 1
    third call   q3   ■  ■  ■  ■  ·                T = 2: its queries are the last 2 of 5 positions
                 q4   ■  ■  ■  ■  ■

window: a query sees the last `window` positions, itself included. padding (B,): a shorter text of
the batch begins with so many positions that are no tokens, and no token looks at them. What the
rows of padding themselves give is not looked at.

Shazeer 2019, arXiv:1911.02150, section 2.3.1; Beltagy et al. 2020, arXiv:2004.05150.
"""

import math

import torch

LEARN = ("Cache",)
HINTS = (
    "torch.cat([self.k, k], dim=2) appends. The first call has nothing to append to.",
    "With Tk keys in all, the queries stand at positions torch.arange(Tk − T, Tk).",
    "i (T, 1), j (Tk): see = (j <= i) & (j > i − window) & (j >= padding[:, None, None, None]).",
)
READ_ON = "attention.py: KVCache, whose memory is allocated once; masks.py: after_padding"


class Cache:
    """Keys and values of the past."""

    def __init__(self, window=None, padding=None):
        self.window, self.padding = window, padding
        self.k = self.v = None

    def attend(self, q, k, v):
        """q, k, v (B, H, T, D) of the next T tokens -> their attention (B, H, T, D)."""
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        self.k, self.v = k, v
        Tk = k.shape[2]
        i, j = torch.arange(Tk - q.shape[2], Tk)[:, None], torch.arange(Tk)
        see = (j <= i) & (j > i - (self.window or Tk))
        if self.padding is not None:
            see = see & (j >= self.padding[:, None, None, None])
        scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(~see, -math.inf)
        return scores.softmax(dim=-1).nan_to_num() @ v


class Flawed(Cache):
    late, longer, wrong = 0, 0, ""

    def attend(self, q, k, v):
        past = (self.k or []), (self.v or [])
        self.k = [*past[0], k]
        self.v = [*past[1], k if self.wrong == "swapped" else v]
        if self.wrong == "short":
            self.k, self.v = self.k[-3:], self.v[-3:]
        k, v = torch.cat(self.k, dim=2), torch.cat([*self.v[:-1], v], dim=2)
        see = self.see(q.shape[2], k.shape[2])
        scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(~see, -math.inf)
        return scores.softmax(-1).nan_to_num() @ v

    def see(self, T, Tk):
        i, j = torch.arange(Tk - T, Tk)[:, None] + self.late, torch.arange(Tk)
        if self.wrong == "zero":
            i = i - (Tk - T)
        see = (j == j) & (i == i) if self.wrong == "open" else j <= i
        see = see & (j > i - (self.window or Tk) - self.longer)
        if self.padding is not None and self.wrong != "padded":
            padding = self.padding.max() if self.wrong == "all" else self.padding
            see = see & (j >= padding.reshape(-1, 1, 1, 1))
        return see


def wrong(how="", **numbers):
    return {"Cache": type("Cache", (Flawed,), {"wrong": how} | numbers)}


MISTAKES = {
    "queries stand at 0, 1, ... in each call, though the cache is not empty": wrong("zero"),
    "the offset is one too small: a token does not see itself": wrong(late=-1),
    "the offset is one too large: a token sees the one after it": wrong(late=1),
    "the tokens of one call see each other's future": wrong("open"),
    "the window is one position too long": wrong(longer=1),
    "the window is one position too short": wrong(longer=-1),
    "padding is seen": wrong("padded"),
    "all texts have the padding of the shortest one": wrong("all"),
    "keys are kept in the place of values": wrong("swapped"),
    "what came more than two calls ago is forgotten": wrong("short"),
}


def cases():
    random = torch.Generator().manual_seed(0)
    plain = [([1, 1], None, None), ([2, 1, 2], None, None), ([3] + [1] * 6, None, None)]
    more = [([1] * 5, 2, None), ([4, 3, 1], 3, None), ([3, 1, 2], None, [0, 2, 1])]
    for sizes, window, padding in plain + more:
        B = len(padding or [0])
        inputs = torch.randn(3, B, 2, sum(sizes), 2, dtype=torch.float64, generator=random)
        how = sizes, window, padding
        yield "calls of {} tokens, window={}, padding={}".format(*how), in_calls, *inputs, *how


def in_calls(theirs, q, k, v, sizes, window, padding):
    """The attention of all calls, without the rows of padding."""
    start = None if padding is None else torch.tensor(padding)
    cache = theirs.Cache(window, start)
    parts = [x.split(sizes, dim=2) for x in (q, k, v)]
    y = torch.cat([cache.attend(*call) for call in zip(*parts)], dim=2)
    real = torch.arange(sum(sizes)) >= torch.tensor(padding or [0])[:, None]
    return y.masked_fill(~real[:, None, :, None], 0.0)
