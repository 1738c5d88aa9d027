"""Attention to a few keys that are chosen by what is in them, not by where they stand.

Reformer (Kitaev et al. 2020, arXiv:2001.04451) and routing attention (Roy et al. 2020,
arXiv:2003.05997) find these keys by hashes and by clusters. Here a cheap score finds them: the dot
product in a random projection to a few features.
"""

import torch

from attention import causal, dot, masked_fill, scaled_dot, softmax
from masks import mask_of, positions, present

KEYS = 32  # that a query chooses
FEATURES = 8  # of the projection
ROWS = 256  # queries at a time, so that memory grows with the length only


def chosen(q, k, v, visible=causal, score=scaled_dot, normalize=softmax, keys=KEYS):
    """Attention of each query to the visible keys, at most `keys` of them, whose score is best.

    A path as in attention.py, but another function where a query sees more. Time is O(Tq·Tk) all
    the same, to score and to rank.
    """
    Tq, Tk = q.shape[2], k.shape[2]
    random = torch.Generator().manual_seed(0)
    projection = torch.randn(q.shape[3], FEATURES, generator=random).to(q)
    few = k @ projection
    i, j = positions(Tq, Tk, q.device)
    parts = []
    for rows in torch.arange(Tq, device=q.device).split(ROWS):
        queries = q[:, :, rows]
        scores = dot(queries @ projection, few)
        mask = mask_of(visible, i[rows], j, len(q))
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
        best, places = scores.topk(min(keys, Tk))  # (B, H, rows, keys)
        places = places[..., None]
        own_k = k[:, :, None].take_along_dim(places, 3)  # (B, H, rows, keys, D)
        own_v = v[:, :, None].take_along_dim(places, 3)
        # Each query alone with its keys, in a batch of B·H·rows.
        one = queries.flatten(0, 2)[:, None, None]
        own_k = own_k.flatten(0, 2)[:, None]
        own_v = own_v.flatten(0, 2)[:, None]
        real = best.flatten(0, 2) > -torch.inf
        y = masked_fill(one, own_k, own_v, present(real), score, normalize)
        y = y.view(*queries.shape[:3], -1)
        parts.append(y)
    return torch.cat(parts, 2)
