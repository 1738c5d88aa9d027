"""Heads: split, attend, merge.

Write self_attention(x, W_qkv, W_out, H, G): causal attention by H heads, of one text or several:
    x (B, T, C)                       D = C / H features for each head
    W_qkv ((H + 2G)·D, C)             as in nn.Linear: x @ W_qkv.T is (B, T, (H + 2G)·D)
    W_out (C, C)                      of the merged heads, as in nn.Linear: heads @ W_out.T
    of each token:   q of head 0 | q of head 1 | ... | k of head 0 | ... | v of head 0 | ...
                     D features    D features          G heads of keys      G heads of values
There are H heads of queries and G of keys and values; each of these is shared by the H/G query
heads that follow one another: with H = 4 and G = 2, heads 0 and 1 use keys 0, heads 2 and 3 keys 1.
Heads' outputs are side by side again, (B, T, C), before W_out. PyTorch's attention (/ √D) will do.
Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; Ainslie et al. 2023, arXiv:2305.13245.
"""

import torch

from exercises.shared.cases import random


def self_attention(x, W_qkv, W_out, H, G):
    B, T, C = x.shape
    D = C // H
    # split([8, 4, 4], dim=-1) cuts 16 features of a token into 8, 4 and 4.
    q, k, v = (x @ W_qkv.T).split([H * D, G * D, G * D], dim=-1)
    # unflatten: (B, T, heads, D), transpose: (B, heads, T, D), repeat_interleave: heads 0 0 1 1.
    q, k, v = (part.unflatten(2, (-1, D)).transpose(1, 2) for part in (q, k, v))
    k, v = (part.repeat_interleave(H // G, dim=1) for part in (k, v))
    future = torch.ones(T, T).triu(1).bool()
    weights = (q @ k.mT / D**0.5).masked_fill(future, -torch.inf).softmax(dim=-1)
    y = (weights @ v).transpose(1, 2).flatten(2)
    return y @ W_out.T


# Read on: attention.py: SelfAttention and share_heads
def cases():
    for H, G, sizes in (2, 2, "B=1, T=2, C=4, R=12"), (6, 2, "B=7, T=5, C=24, R=40"):
        inputs = random(sizes, "B T C", "R C", "C C")
        yield f"{sizes} rows of W_qkv, H={H}, G={G}", "self_attention", *inputs, H, G
