"""The kernel of attention.linear, which stays O(T). Skip this file at a first reading.

The sequence is cut into chunks, and a sum is handed from one to the next.
"""

import torch
import torch.nn.functional as F

CHUNK = 128  # tokens


def chunked(q, k, v, feature, past):
    """Causal attention with weights feature(q)·feature(k), and the sum over all keys.

    q (B, H, Tq, D), k (B, H, Tk, D), v (B, H, Tk, Dv); the result is (B, H, Tq, Dv). past: the sum
    for all that came before k and v, or None. Within a chunk all pairs are compared; between chunks
    only the running sum is handed on.
    """
    dtype = v.dtype
    Tq = q.shape[2]
    q, k, v = featured(q, k, v, feature)
    # Of the keys before all queries only the sum matters.
    earlier = k.shape[2] - Tq
    past = (0 if past is None else past) + k[:, :, :earlier].mT @ v[:, :, :earlier]
    k, v = k[:, :, earlier:], v[:, :, earlier:]
    # (B, H, chunks, chunk, features or Dv + 1)
    q, k, v = (in_chunks(x, min(CHUNK, Tq)) for x in (q, k, v))
    sums = k.mT @ v  # (B, H, chunks, features, Dv + 1)
    before = torch.cat([past[:, :, None], sums[:, :, :-1]], dim=2).cumsum(2)
    weights = (q @ k.mT).tril_()  # within a chunk
    y = (weights @ v).add_(q @ before)
    y = y.flatten(2, 3)[:, :, :Tq]  # without the padding, whose weights are all 0
    total = before[:, :, -1] + sums[:, :, -1]
    return normalized(y).to(dtype), total


def in_chunks(x, size):
    """x (B, H, T, D) as (B, H, chunks, size, D), with zeros at the end of the last chunk."""
    missing = -x.shape[2] % size
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return x.unflatten(2, (-1, size))


def featured(q, k, v, feature):
    """feature(q), feature(k), and v with a column of ones that sums the weights.

    In float32 at least.
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    return feature(q.to(wide)), feature(k.to(wide)), F.pad(v.to(wide), (0, 1), value=1.0)


def normalized(y):
    """Weighted sums, divided by the sum of the weights, their last column; zeros if that is 0."""
    total = y[..., -1:]
    return y[..., :-1] / total.clamp_min(torch.finfo(y.dtype).tiny)
