"""How attention.linear stays O(T): chunks, and a sum that is handed from one to the next. Skip at a first reading."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def chunked(q, k, v, feature, past, chunk):
    """Causal attention with weights feature(q)·feature(k), y (B, H, Tq, D), and the sum over all keys, see LinearState.

    q (B, H, Tq, D), k, v (B, H, Tk, D). past: that sum for what came before k and v, or None. Within a chunk all pairs
    are compared; between chunks only the running sum is handed on.
    """
    dtype, Tq, earlier, dim = v.dtype, q.shape[2], k.shape[2] - q.shape[2], 0 if len(q) > 1 else 1
    if (
        q.device.type == "cpu" and q.shape[dim] > 1 and v.numel() > 2**20
    ):  # allocating so much takes as long as the products
        halves = zip(
            *(x.chunk(2, dim) for x in (q, k, v)),
            [None] * 2 if past is None else past.chunk(2, dim),
        )
        y, sums = zip(*(chunked(*half, feature, before, chunk) for *half, before in halves))
        return torch.cat(y, dim), torch.cat(sums, dim)
    q, k, v = featured(q, k, v, feature)
    past = (0 if past is None else past) + k[:, :, :earlier].mT @ v[
        :, :, :earlier
    ]  # keys before all queries: only their sum
    chunk = min(chunk, Tq)
    end = -Tq % chunk
    q, k, v = (
        F.pad(x, (0, 0, 0, end)) if end else x for x in (q, k[:, :, earlier:], v[:, :, earlier:])
    )
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q, k, v))  # (B, H, chunks, chunk, ...)
    sums = k.mT @ v  # (B, H, chunks, features, D + 1)
    before = torch.cat([past[:, :, None], sums[:, :, :-1]], dim=2).cumsum(2)
    y = (
        ((q @ k.mT).tril_() @ v).add_(q @ before).flatten(2, 3)[:, :, :Tq]
    )  # without the padding, whose weights are all 0
    return normalized(y).to(dtype), before[:, :, -1] + sums[:, :, -1]


def featured(q, k, v, feature):
    """feature(q), feature(k), and v with a column of ones that sums the weights; in float32 at least."""
    wide = torch.promote_types(v.dtype, torch.float32)
    return feature(q.to(wide)), feature(k.to(wide)), F.pad(v.to(wide), (0, 1), value=1.0)


def normalized(y):
    """Weighted sums divided by the sum of the weights, which is the last column; zeros where all weights are 0."""
    return y[..., :-1] / y[..., -1:].clamp_min(torch.finfo(y.dtype).tiny)


def positive_random_features(D, count, seed=0):
    """Performer (Choromanski et al. 2021, arXiv:2009.14794): products approach exp(q·k / sqrt(D)) as count grows.

    For vectors of unit RMS, as qk_norm makes them: for much longer ones most features vanish.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = [
        torch.randn(D, D, dtype=torch.float64, generator=generator) for _ in range(-(-count // D))
    ]
    Q, R = torch.linalg.qr(torch.stack(blocks))
    Q = (
        Q * R.diagonal(dim1=1, dim2=2).sign()[:, None]
    )  # without the signs, directions would not be uniformly distributed
    lengths = torch.randn(count, D, dtype=torch.float64, generator=generator).norm(
        dim=1, keepdim=True
    )
    return RandomFeatures(
        Q.flatten(0, 1)[:count] * lengths
    )  # orthogonal within a block, which lowers the variance


class RandomFeatures(nn.Module):
    """What positive_random_features gives: (..., D) -> (..., count). The directions follow a model, but are not saved."""

    def __init__(self, directions):
        super().__init__()
        self.register_buffer("directions", directions.float(), persistent=False)

    def forward(self, x):
        count, D = self.directions.shape
        x = x / D**0.25
        exponent = x @ self.directions.T.to(x) - x.square().sum(-1, keepdim=True) / 2
        return exponent.clamp_max(35).exp() / math.sqrt(
            count
        )  # at most exp(35), so that sums stay finite in float32


class LinearState:
    """All that linear attention remembers of the past: one matrix per head, however long it is. The interface of KVCache."""

    def __init__(self, batch_size, max_len):
        self.batch_size, self.max_len = batch_size, max_len
        self.reset()

    def __len__(self):
        return self.length

    @property
    def nbytes(self):
        return 0 if self.sum is None else self.sum.nbytes

    def reset(self, padding=None):
        if padding is not None:
            raise ValueError(
                "linear attention would add padding to its sum: give sequences of one length"
            )
        self.length, self.sum = 0, None  # (B, H, features, D + 1)

    def trim(self, length):
        if length != self.length:
            raise ValueError(
                "linear attention keeps a sum, from which nothing can be removed: use another attention"
            )

    def select(self, rows):
        other = LinearState(len(rows), self.max_len)
        other.length, other.sum = self.length, self.sum[rows]
        return other

    def positions(self, T):
        if self.length + T > self.max_len:
            raise ValueError(
                f"the state is full: {self.length} of {self.max_len} positions used, {T} more wanted"
            )
        return slice(self.length, self.length + T)

    def past(self, q, T):
        """The sum so far, or None; ValueError if queries q (B, H, Tq, D) or T more positions do not fit."""
        heads = q.shape[1] if self.sum is None else self.sum.shape[1]
        if q.shape[:2] != (self.batch_size, heads):
            raise ValueError(
                f"this state is for B={self.batch_size}, H={heads}, not q {tuple(q.shape)}"
            )
        self.positions(T)
        return self.sum

    def update(self, total, T):
        """total: the sum over all positions, after T more of them."""
        self.length, self.sum = self.length + T, total.detach()
