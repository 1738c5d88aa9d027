"""Attention among tokens that are put together by what is in them, without scoring all pairs.

Tokens are sorted by their bucket and cut into chunks; each looks at what stands before it in its
own chunk and in the one before. Reformer (Kitaev et al. 2020, arXiv:2001.04451) finds buckets by
hashes, routing attention (Roy et al. 2020, arXiv:2003.05997) by clusters. In both, queries serve as
keys. Which of the earlier tokens one sees depends on later ones, too, since all are sorted.
"""

import torch
import torch.nn.functional as F

from attention import masked_fill

SIZE = 32  # tokens of a chunk
ROUNDS = 2  # of k-means


def within_chunks(q, v, buckets, size):
    """Return attention (B, H, T, Dv) of tokens in buckets (B, H, T). T is a multiple of size."""
    T = q.shape[2]
    order = (T * buckets + torch.arange(T)).argsort(-1)[..., None]
    parts = [x.take_along_dim(order, 2).unflatten(2, (-1, size)) for x in (q, v)]
    parts.append(order.unflatten(2, (-1, size)))  # the places of tokens
    both = [torch.cat([x.roll(1, 2), x], 3) for x in parts]  # (B, H, chunks, 2·size, ...)
    queries, _, own = (x.flatten(0, 2) for x in parts)
    keys, values, others = (x.flatten(0, 2) for x in both)
    earlier = others.mT < own  # (B·H·chunks, size, 2·size)
    y = masked_fill(queries[:, None], keys[:, None], values[:, None], lambda i, j: earlier)
    return torch.empty_like(v).scatter(2, order.expand_as(v), y.reshape(v.shape))


def hashed(q, k, v, *how):
    """A path as in attention.py, in O(T log T): tokens on one side of random planes share a bucket.

    There are about as many buckets as chunks.
    """
    bits = max(1, q.shape[2] // SIZE).bit_length()
    random = torch.Generator().manual_seed(0)
    planes = torch.randn(q.shape[3], bits, generator=random).to(q)
    sides = q @ planes > 0
    buckets = (sides * 2 ** torch.arange(bits)).sum(-1)
    return within_chunks(q, v, buckets, SIZE)


def clustered(q, k, v, *how):
    """The same in O(T·sqrt(T)): tokens that share the nearest of sqrt(T) centres, by k-means."""
    x = F.normalize(q.detach(), dim=-1)
    size = 2 ** (q.shape[2].bit_length() // 2)  # about sqrt(T), and a divisor
    centres = x[:, :, ::size]
    for _ in range(ROUNDS):
        nearest = (x @ centres.mT).argmax(-1)
        own = F.one_hot(nearest, centres.shape[2]).to(x)
        centres = F.normalize(own.mT @ x, dim=-1)
    return within_chunks(q, v, nearest, size)
