"""The difference of two attention maps (Ye et al. 2024, arXiv:2410.05258): `--mixer=differential`.

What both maps look at by mistake cancels out.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from attention import SelfAttention
from engine.errors import UserError


class DifferentialAttention(SelfAttention):
    """Heads h and h + H/2 are a pair: y = (map of h - share · map of h + H/2) @ their values.

    Both have the values of both, which are twice as wide. Each head turns by RoPE by itself. The
    share is learned, and the pair's output has unit RMS, times what share is not at first.
    """

    def __init__(self, n_embd, n_head, n_kv_head=None, *, depth, **settings):
        super().__init__(n_embd, n_head, n_kv_head, **settings)
        if self.feature or self.n_kv_head % 2:
            raise UserError(
                "mixer=differential subtracts the maps of two heads: it needs an even n_kv_head, "
                "and no linear attention"
            )
        self.first_share = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.share = nn.Parameter(0.1 * torch.randn(2, 2, self.head_size))
        self.path = self.attention
        self.attention = self.difference

    def flops(self, T):
        D, Dv = self.head_size, self.value_size
        return super().flops(T) * (D + 2 * Dv) / (D + Dv)

    def difference(self, q, k, v, *how):
        """The path: (B, H, Tq, Dv), of which the pairs' outputs are the halves."""
        v = torch.cat(v.chunk(2, dim=1), dim=-1)  # (B, G/2, Tk, 2 Dv)
        y = self.path(q, k, torch.cat([v, v], dim=1), *how)  # (B, H, Tq, 2 Dv)
        plus, minus = self.share.prod(1).sum(-1).exp()
        one, other = y.chunk(2, dim=1)
        y = one - (plus - minus + self.first_share).to(y.dtype) * other
        y = F.rms_norm(y, y.shape[-1:]).type_as(y)
        return torch.cat(((1 - self.first_share) * y).chunk(2, dim=-1), dim=1)
