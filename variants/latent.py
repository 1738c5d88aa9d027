"""Latent attention, MLA (DeepSeek-V2, arXiv:2405.04434): `--mixer=latent --latent_size=32`.

Its cache holds one vector for each position, of which keys and values of all heads are made, and
one key that says where it stands. They are made again in each step, which a kernel would save.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from attention import KVCache, SelfAttention, rotate
from engine.errors import UserError


@dataclass(kw_only=True)
class LatentSettings:
    # mixer=latent
    latent_size: int = 32
    """Numbers that the cache keeps of each position, beside a key of half a head."""


class LatentAttention(SelfAttention):
    """Half of a head's queries and keys is about content, the other half about position."""

    def __init__(self, n_embd, n_head, n_kv_head=None, *, latent_size, **settings):
        super().__init__(n_embd, n_head, n_kv_head, **settings)
        if self.feature or self.qk_norm and [*self.qk_norm.parameters()]:
            raise UserError("mixer=latent is for attention=fused, and for qk_norm=True or False")
        D, G = self.head_size, self.n_kv_head
        self.halves = [D - D // 2, D // 2]
        self.widths = [n_head * D, latent_size, D // 2]
        self.c_attn = nn.Linear(n_embd, sum(self.widths), bias=self.c_attn.bias is not None)
        self.c_attn.parts = self.widths
        self.up_widths = [G * self.halves[0], G * self.value_size]
        self.c_up = nn.Linear(latent_size, sum(self.up_widths), bias=False)
        self.c_up.parts = self.up_widths

    def attend(self, x, rope, cache):
        q, latent, key = self.c_attn(x).split(self.widths, dim=2)
        q = q.unflatten(2, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
        latent = F.rms_norm(latent, latent.shape[-1:]).type_as(latent)
        latent, key = latent[:, None], key[:, None]  # (B, 1, T, ...)
        if rope is not None:
            angles = [table[..., None, :, ::2][..., : self.halves[1] // 2] for table in rope]
            content, place = q.split(self.halves, dim=-1)
            q = torch.cat([content, rotate(place, *angles)], dim=-1)
            key = rotate(key, *angles)
        visible = self.visible
        if cache is not None:
            visible = cache.visible(visible)
            latent, key = cache.append(latent, key)
        k, v = self.c_up(latent[:, 0]).split(self.up_widths, dim=2)
        k, v = (y.unflatten(2, (self.n_kv_head, -1)).transpose(1, 2) for y in (k, v))
        k = torch.cat([k, key.expand(-1, self.n_kv_head, -1, -1)], dim=-1)  # (B, G, Tk, D)
        if self.qk_norm:
            q, k = self.qk_norm(q), self.qk_norm(k)
        y = self.attention(q, k, v, visible, self.score, self.normalize)
        return y.transpose(1, 2).flatten(2)

    def new_cache(self, batch_size, max_len):
        return KVCache(batch_size, 1, max_len, self.widths[1], self.halves[1])
