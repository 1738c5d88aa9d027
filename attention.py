"""Causal multi-head attention, by every path.

Attention is a soft look-up: each query asks every key it may see "how alike are we?", turns the answers
into weights that sum to one, and takes that blend of the values (Bahdanau et al. 2014, arXiv:1409.0473;
Vaswani et al. 2017, arXiv:1706.03762). The paths below compute the same function in different ways, so
that the slow, obvious one can prove the fast ones right. Read from top to bottom:

    who may look     predicates over positions: causal, everything, sliding_window, both
    where tokens are rope_table, rotate, sinusoidal
    how alike        scaled_dot
    how to share     softmax
    the paths        naive, masked_fill, fused, in the dict ATTENTION, one signature for all
    memory           KVCache
    the module       CausalSelfAttention: project, call a path, project back

Shapes, everywhere:
    B batch · H query heads · G key/value heads (H % G == 0, each shared by H/G query heads)
    Tq queries · Tk keys · D head size       q (B, H, Tq, D)   k, v (B, G, Tk, D)   y (B, H, Tq, D)

One invariant makes training, prefill, chunked prefill and decoding a single case: the Tq queries are
the last Tq of the Tk positions. Query row a stands at position Tk - Tq + a, so no path is ever told a
position, and a cache needs no code of its own: it only makes Tk larger than Tq.

Attention weights are never dropped out: a random mask would make the paths unequal. Dropout acts on the
residual stream only.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

# --------------------------------------------------------------------------------------------------
# Who may look: a predicate visible(i, j) says whether the query at position i may see the key at
# position j. i and j are integer tensors that broadcast; the answer is a bool tensor. A predicate that
# carries a number `window` promises that i sees nothing outside i-window < j <= i, and the paths use
# that promise to skip work.


def causal(i, j):
    """The present and the past: what a language model may see."""
    return j <= i


def everything(i, j):
    """All positions, for encoders and for looking at another sequence."""
    return (i == i) & (j == j)


def sliding_window(W):
    """The last W positions, the token itself included (Longformer, arXiv:2004.05150; Mistral 7B, arXiv:2310.06825)."""
    if W < 1:
        raise ValueError(f"sliding_window(W={W}): a token always sees itself, so W must be at least 1")

    def visible(i, j):
        return (j <= i) & (j > i - W)

    visible.window = W
    return visible


def both(a, b):
    """What predicate a and predicate b both allow; the narrower of their windows carries over."""

    def visible(i, j):
        return a(i, j) & b(i, j)

    windows = [p.window for p in (a, b) if hasattr(p, "window")]
    if windows:
        visible.window = min(windows)
    return visible


def positions(Tq, Tk, device=None):
    """The invariant in one line: query positions i (Tq, 1) and key positions j (1, Tk)."""
    return torch.arange(Tk - Tq, Tk, device=device)[:, None], torch.arange(Tk, device=device)[None, :]


def mask_of(visible, i, j):
    """visible(i, j) as a (Tq, Tk) bool tensor; ValueError if the predicate returns anything else."""
    mask = visible(i, j)
    shape = torch.broadcast_shapes(i.shape, j.shape)
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != shape:
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise ValueError(f"a predicate must return a bool tensor of shape {tuple(shape)}, not {got}")
    return mask


# --------------------------------------------------------------------------------------------------
# Where tokens are: attention by itself is blind to order, so positions are written into its inputs.


def rope_table(T, D, base=10000.0):
    """Angles of rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Pair p of the D features turns by pos * base^(-2p/D) radians. Returns cos and sin, each (T, D//2), in
    float64; round them to float32 once, after that and not before.
    """
    frequency = base ** (-torch.arange(D // 2, dtype=torch.float64) * 2 / D)
    angle = torch.outer(torch.arange(T, dtype=torch.float64), frequency)  # (T, D//2)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Turn each feature pair of x (..., T, D) by its position's angle; cos, sin are T rows of rope_table.

    Pairs are half-split, (p, p + D/2), as in Llama. Two rotated vectors' dot product depends only on
    how far apart they are. A feature that has no partner (odd D) stays as it is. Keeps the dtype of x.
    """
    half = cos.shape[-1]
    x1, x2, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin, rest], dim=-1).to(x.dtype)


def sinusoidal(T, C):
    """Fixed position vectors (T, C) of Vaswani et al. 2017, section 3.5: sin in even columns, cos in odd; float64."""
    angle = torch.outer(
        torch.arange(T, dtype=torch.float64), 10000.0 ** (-torch.arange(0, C, 2, dtype=torch.float64) / C)
    )
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :C]


# --------------------------------------------------------------------------------------------------
# How alike: score(q, k) -> (B, H, Tq, Tk), for q (B, H, Tq, D) and k (B, H, Tk, D).


def scaled_dot(q, k):
    """q·k / sqrt(D): a sum of D products of unit variance has variance D, and softmax wants about 1."""
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


# How to share: normalize(scores) -> weights, along the last dimension.


def softmax(scores):
    """exp(score), divided by the sum over the keys."""
    return scores.softmax(dim=-1)


# --------------------------------------------------------------------------------------------------
# The paths: path(q, k, v, visible=causal, score=scaled_dot, normalize=softmax) -> (B, H, Tq, D).
# A query that may see nothing gets zeros.


def naive(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """The specification: one query at a time, gathering only the keys that it may see. No mask, no -inf."""
    Tq, Tk = check_shapes(q, k, v)
    k, v = share_heads(q, k), share_heads(q, v)  # (B, H, Tk, D)
    i, j = positions(Tq, Tk, q.device)
    rows = []
    for a in range(Tq):
        seen = mask_of(visible, i[a], j[0])  # (Tk,)
        weights = normalize(score(q[:, :, a : a + 1], k[:, :, seen]))  # (B, H, 1, how many it sees)
        rows.append(weights @ v[:, :, seen])
    return torch.cat(rows, dim=2)


def attention_weights(q, k, visible=causal, score=scaled_dot, normalize=softmax):
    """Who looks at whom: (B, H, Tq, Tk), rows summing to one, exact zeros where a query may not look."""
    i, j = positions(q.shape[2], k.shape[2], q.device)
    hidden = ~mask_of(visible, i, j)  # (Tq, Tk)
    scores = score(q, share_heads(q, k)).masked_fill(hidden, float("-inf"))
    # A row of nothing but -inf comes out of softmax as NaN; the second fill makes it the zeros it should be.
    return normalize(scores).masked_fill(hidden, 0.0)


def masked_fill(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """The textbook: all scores at once, -inf where a query may not look, softmax, weighted sum. O(Tq·Tk) memory."""
    check_shapes(q, k, v)
    return attention_weights(q, k, visible, score, normalize) @ share_heads(q, v)


def fused(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """One kernel, F.scaled_dot_product_attention: FlashAttention where the device has it (arXiv:2205.14135).

    A predicate with a window W costs O(T·W) time and memory. Scores and normalizers other than the
    defaults are refused: the kernel cannot do them.
    """
    Tq, Tk = check_shapes(q, k, v)
    if score is not scaled_dot or normalize is not softmax:
        raise ValueError('attention="fused" does softmax of the scaled dot product only; use "masked_fill" for others')
    window = getattr(visible, "window", Tk)
    reach = min(Tk, Tq + window - 1)  # no query sees further back than this many keys from the end
    k, v = k[:, :, Tk - reach :], v[:, :, Tk - reach :]
    if reach > 4 * window:
        return fused_blocks(q, k, v, visible, window, start=Tk - reach)
    # The kernel's own is_causal flag counts from the top left, which is our invariant only when Tq == Tk.
    if visible is causal and Tq == Tk:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mask = None
    if visible is not everything and not (visible is causal and Tq == 1):
        i, j = positions(Tq, Tk, q.device)
        mask = mask_of(visible, i, j[:, Tk - reach :])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def fused_blocks(q, k, v, visible, window, start):
    """fused for a window much shorter than the sequence: N blocks of S queries, each beside its own 2·S keys.

    S is at least the window, so a block's queries see only its own keys and those of the block before:
    the scores are N·S·2S numbers and not (N·S)². k and v begin at position `start` of the sequence.
    """
    B, H, Tq, D = q.shape
    Tk, S = k.shape[2], max(window, 64)  # below 64 the blocks are too small to keep the kernel busy
    N = -(-Tk // S)
    front = N * S - Tk  # pad at the front, so that the end of the queries stays the end of the keys

    def blocks(x):  # (B, heads, T, D) -> (B, N, heads, S, D)
        return F.pad(x, (0, 0, N * S - x.shape[2], 0)).unflatten(2, (N, S)).transpose(1, 2)

    def with_previous(x):  # (B, N, heads, S, D) -> (B, N, heads, 2S, D); the first block's previous is padding
        return torch.cat([F.pad(x[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)), x], dim=3)

    j = torch.arange(N * S, device=q.device).view(N, 1, S) + start - front  # (N, 1, S), negative in the padding
    i, j = j.transpose(1, 2), torch.cat([j - S, j], dim=2)  # (N, S, 1), (N, 1, 2S)
    mask = mask_of(visible, i, j) & (j >= start)
    q, k, v = blocks(q).flatten(0, 1), with_previous(blocks(k)).flatten(0, 1), with_previous(blocks(v)).flatten(0, 1)
    mask = mask.repeat(B, 1, 1)[:, None]  # (B·N, 1, S, 2S)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)  # (B·N, H, S, D)
    return y.unflatten(0, (B, N)).transpose(1, 2).flatten(2, 3)[:, :, -Tq:]


ATTENTION = {"naive": naive, "masked_fill": masked_fill, "fused": fused}


def share_heads(q, x):
    """Repeat each of the G key/value heads for the H/G query heads that share it (GQA, arXiv:2305.13245)."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def check_shapes(q, k, v):
    """Tq and Tk, or a ValueError that names what does not fit."""
    named = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"attention needs q (B, H, Tq, D) and k, v (B, G, Tk, D), not {named}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly: {named}")
    if q.shape[2] > k.shape[2]:
        raise ValueError(f"the queries are the last of the keys' positions, so Tq must not exceed Tk: {named}")
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        raise ValueError(f"q, k, v differ in dtype or device: {[(str(x.dtype), str(x.device)) for x in (q, k, v)]}")
    return q.shape[2], k.shape[2]


# --------------------------------------------------------------------------------------------------
# Memory: keys and values of the past, so that a new token costs one row of attention and not all rows.


class KVCache:
    """Keys and values of one layer for up to max_len positions, in memory that is allocated once.

    append(k, v) with k, v (B, G, T, D) writes them behind what is there and returns views of all of it,
    (B, G, len, D): exactly the k and v that a path wants beside the T new queries. It never grows; past
    max_len it refuses. Rotate before caching. It holds values, not gradients: it is for inference.
    """

    def __init__(self, batch_size, n_kv_head, max_len, head_size, dtype=None, device=None):
        self.k = torch.zeros(batch_size, n_kv_head, max_len, head_size, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        self.length = 0

    def __len__(self):
        return self.length

    def append(self, k, v):
        B, G, max_len, D = self.k.shape
        T = k.shape[2]
        if k.shape != v.shape or k.shape != (B, G, T, D):
            raise ValueError(f"this cache holds (B={B}, G={G}, T, D={D}), not k {tuple(k.shape)}, v {tuple(v.shape)}")
        if self.length + T > max_len:
            raise ValueError(f"the cache is full: {self.length} of {max_len} positions used, {T} more wanted")
        new = slice(self.length, self.length + T)
        self.k[:, :, new], self.v[:, :, new] = k.detach(), v.detach()
        self.length += T
        return self.k[:, :, : self.length], self.v[:, :, : self.length]

    def reset(self):
        self.length = 0


# --------------------------------------------------------------------------------------------------
# The module only projects; the maths is above.


class CausalSelfAttention(nn.Module):
    """(B, T, n_embd) -> (B, T, n_embd): n_head query heads over n_kv_head key/value heads (default: as many).

    attention names a path in ATTENTION; all give the same numbers from the same weights. window, if any,
    limits each token to the last `window` positions. qk_norm gives queries and keys unit RMS, which keeps
    the scores in range at high learning rates (Henry et al. 2020, arXiv:2010.04245). dropout acts on the output.
    """

    def __init__(
        self, n_embd, n_head, n_kv_head=None, *, bias=False, dropout=0.0, qk_norm=False, window=None, attention="fused"
    ):
        super().__init__()
        n_kv_head = n_kv_head or n_head
        if n_embd % n_head:
            raise ValueError(f"n_embd={n_embd} is not divisible by n_head={n_head}")
        if n_head % n_kv_head:
            raise ValueError(f"n_head={n_head} is not divisible by n_kv_head={n_kv_head}")
        self.n_head, self.n_kv_head, self.head_size = n_head, n_kv_head, n_embd // n_head
        self.c_attn = nn.Linear(n_embd, (n_head + 2 * n_kv_head) * self.head_size, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.qk_norm = qk_norm
        self.visible = sliding_window(window) if window else causal
        self.attention = ATTENTION[attention]

    def forward(self, x, rope=None, cache=None):
        """rope: (cos, sin) rows for these T positions, or None. cache: this layer's KVCache, or None."""
        H, G, D = self.n_head, self.n_kv_head, self.head_size
        q, k, v = self.c_attn(x).unflatten(2, (H + 2 * G, D)).transpose(1, 2).split([H, G, G], dim=1)  # (B, heads, T, D)
        if self.qk_norm:
            q, k = F.rms_norm(q, (D,)).type_as(v), F.rms_norm(k, (D,)).type_as(v)  # autocast may have widened
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        if cache is not None:
            k, v = cache.append(k, v)
        y = self.attention(q, k, v, self.visible)  # (B, H, T, D)
        return self.dropout(self.c_proj(y.transpose(1, 2).flatten(2)))  # (B, T, n_embd)

    def new_cache(self, batch_size, max_len):
        """An empty KVCache that fits this layer's weights, in their dtype and on their device."""
        weight = self.c_attn.weight
        return KVCache(batch_size, self.n_kv_head, max_len, self.head_size, weight.dtype, weight.device)
