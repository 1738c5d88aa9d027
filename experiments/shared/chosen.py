"""Attention to a few keys that are chosen by what is in them, not by where they stand.

Reformer (Kitaev et al. 2020, arXiv:2001.04451) and routing attention (Roy et al. 2020,
arXiv:2003.05997) find these keys by hashes and by clusters. Here a cheap score finds them: the dot
product in a random projection to a few features.
"""

import torch

from attention import causal, dot, masked_fill, scaled_dot, share_heads, softmax
from masks import mask_of, positions, present

KEYS = 32  # that a query chooses
FEATURES = 8  # of the projection
ROWS = 256  # queries at a time, so that memory grows with the length only


def chosen(q, k, v, visible=causal, score=scaled_dot, normalize=softmax, keys=KEYS):
    """Attention of each query to the visible keys, at most `keys` of them, whose score is best.

    A path as in attention.py, but another function where a query sees more. Time is O(Tq·Tk) all
    the same, to score and to rank.
    """
    k, v = share_heads(q, k), share_heads(q, v)
    Tq, Tk = q.shape[2], k.shape[2]
    random = torch.Generator().manual_seed(0)
    projection = torch.randn(q.shape[3], FEATURES, generator=random).to(q)
    few = k @ projection
    i, j = positions(Tq, Tk, q.device)
    parts = []
    for rows in torch.arange(Tq, device=q.device).split(ROWS):
        queries = q[:, :, rows]
        mask = mask_of(visible, i[rows], j, len(q))[:, None]
        scores = dot(queries @ projection, few)
        scores = scores.masked_fill(~mask, -torch.inf)
        best, places = scores.topk(min(keys, Tk))  # (B, H, rows, keys)
        real = best > -torch.inf
        places = places[..., None]
        own = [x[:, :, None].take_along_dim(places, 3) for x in (k, v)]
        own_k, own_v = (x.flatten(0, 2)[:, None] for x in own)  # (B·H·rows, 1, keys, D or Dv)
        one = queries.flatten(0, 2)[:, None, None]
        y = masked_fill(one, own_k, own_v, present(real.flatten(0, 2)), score, normalize)
        parts.append(y.view(*queries.shape[:3], -1))
    return torch.cat(parts, 2)
