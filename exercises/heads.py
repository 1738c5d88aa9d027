"""Heads: split, attend, merge.

Write self_attention(x, W_qkv, W_out, H, G): causal attention by H heads, of one text or several.

    x (B, T, C)                       D = C / H features for each head
    W_qkv ((H + 2G)·D, C)             as in nn.Linear: x @ W_qkv.T is (B, T, (H + 2G)·D)
    W_out (C, C)                      of the merged heads

    of each token:   q of head 0 | q of head 1 | ... | k of head 0 | ... | v of head 0 | ...
                     D features    D features          G heads of keys      G heads of values

There are H heads of queries and G of keys and values; each of these is shared by the H/G query
heads that follow one another: with H = 4 and G = 2, heads 0 and 1 use keys 0, heads 2 and 3 keys 1.
The heads' outputs stand side by side again, (B, T, C), before W_out.

Attention itself, also causal, may come from torch.nn.functional.

Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; Ainslie et al. 2023, arXiv:2305.13245.
"""

import torch
import torch.nn.functional as F

LEARN = ("self_attention",)
HINTS = (
    "split([H * D, G * D, G * D], dim=-1) cuts q, k and v out of each token's features.",
    "unflatten(2, (H, D)) makes (B, T, H, D), transpose(1, 2) makes (B, H, T, D) of it.",
    "Shared heads: k.repeat_interleave(H // G, dim=1). To merge: y.transpose(1, 2).flatten(2).",
)
READ_ON = "attention.py: SelfAttention and share_heads"


def self_attention(x, W_qkv, W_out, H, G):
    """x (B, T, C), W_qkv ((H + 2G)·D, C), W_out (C, C) -> (B, T, C)."""
    D = x.shape[-1] // H
    q, k, v = (x @ W_qkv.T).split([H * D, G * D, G * D], dim=-1)
    q, k, v = (part.unflatten(2, (-1, D)).transpose(1, 2) for part in (q, k, v))
    k, v = (part.repeat_interleave(H // G, dim=1) for part in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2) @ W_out.T


def flawed(x, W_qkv, W_out, H, G, **wrong):
    B, T, C = x.shape
    D = C // H
    widths = [H * D, G * D, G * D]
    parts = (x @ W_qkv.T).split(widths, dim=-1)
    q, k, v = (split_heads(part, D, wrong.get("split")) for part in parts)
    if "swap" in wrong:
        k, v = v, k
    if "repeat" in wrong:
        k, v = (part.repeat(1, H // G, 1, 1) for part in (k, v))
    else:
        k, v = (part.repeat_interleave(H // G, dim=1) for part in (k, v))
    scale = C**-0.5 if "wide" in wrong else D**-0.5
    y = F.scaled_dot_product_attention(q, k, v, is_causal="open" not in wrong, scale=scale)
    y = y.reshape(B, T, C) if "merge" in wrong else y.transpose(1, 2).flatten(2)
    return y @ (W_out if "turned" in wrong else W_out.T)


def split_heads(x, D, how=None):
    """(B, T, heads·D) -> (B, heads, T, D)."""
    B, T, width = x.shape
    if how == "view":
        return x.reshape(B, width // D, T, D)
    if how == "features":
        return x.unflatten(2, (D, width // D)).permute(0, 3, 1, 2)
    return x.unflatten(2, (width // D, D)).transpose(1, 2)


MISTAKES = {
    "heads are split without a transpose: view mixes tokens": {"split": "view"},
    "a head takes every H-th feature, and not D that stand together": {"split": "features"},
    "heads are merged without a transpose": {"merge": True},
    "key heads are repeated 0 1 0 1 and not 0 0 1 1": {"repeat": True},
    "keys and values are swapped": {"swap": True},
    "the scores are divided by √C, not by √D": {"wide": True},
    "the future is visible": {"open": True},
    "W_out is not transposed": {"turned": True},
}


def cases():
    random = torch.Generator().manual_seed(0)
    shapes = (1, 2, 2, 1, 1), (1, 3, 4, 2, 2), (1, 3, 4, 4, 2), (2, 5, 12, 4, 2), (2, 3, 12, 6, 3)
    for B, T, C, H, G in shapes:
        sizes = (B, T, C), (C + 2 * G * C // H, C), (C, C)
        x, W_qkv, W_out = (torch.randn(n, dtype=torch.float64, generator=random) for n in sizes)
        yield f"B={B}, T={T}, C={C}, H={H}, G={G}", "self_attention", x, W_qkv, W_out, H, G
