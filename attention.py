"""Causal multi-head attention, by every path.

Attention is a soft look-up: each query asks every key it may see "how alike are we?", turns the answers
into weights that sum to one, and takes that blend of the values (Bahdanau et al. 2014, arXiv:1409.0473;
Vaswani et al. 2017, arXiv:1706.03762). The paths below compute the same function in different ways, so
that the slow, obvious one can prove the fast ones right. Read from top to bottom:

    who may look       causal, everything, present, since, sliding_window, local_global, strided, same_document, both
    where tokens are   rope_table, rotate, sinusoidal
    how alike          scaled_dot, dot, General, Additive
    how to share       softmax, sparsemax
    the paths          naive, masked_fill (attention_weights are its weights), tiled, fused; one signature for all
    another function   linear, linear_step, with the features elu1 and positive_random_features: no softmax, O(T)
    memory             KVCache, LinearState
    the modules        CausalSelfAttention, CrossAttention: project, call a path, project back

`python attention.py` draws the masks, works an example by hand and compares the paths.

Shapes, everywhere:
    B batch · H query heads · G key/value heads (H % G == 0, each shared by H/G query heads)
    Tq queries · Tk keys · D head size       q (B, H, Tq, D)   k, v (B, G, Tk, D)   y (B, H, Tq, D)

One invariant makes training, prefill, chunked prefill and decoding a single case: the Tq queries are
the last Tq of the Tk positions. Query row a stands at position Tk - Tq + a, so no path is ever told a
position, and a cache needs no code of its own: it only makes Tk larger than Tq.

Attention weights are never dropped out: a random mask would make the paths unequal. Dropout acts on the
residual stream only.
"""

import contextlib
import itertools
import math
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import windowed
from byhand import once_differentiable, rms_norm

# --------------------------------------------------------------------------------------------------
# Who may look: a predicate visible(i, j) says whether the query at position i may see the key at position j. i and j
# are integer tensors that broadcast; the answer is a bool tensor, with a batch dimension in front if rows differ. A
# predicate that carries `window` (and `first`) promises that i sees nothing but i-window < j <= i (and j < first); the
# paths use that promise to skip work.


def causal(i, j):
    """The present and the past: what a language model may see."""
    return j <= i


def everything(i, j):
    """All positions, for encoders and for looking at another sequence."""
    return (i == i) & (j == j)


def present(real):
    """Keys that are there: real, bool (Tk,) or (B, Tk), is False where a batch is padded. The query's position is no matter."""

    def visible(i, j):
        return real[..., j] & (i == i)

    visible.across = True
    return visible


def since(first):
    """Keys from position first on, (B,) one for each sequence: what stands before pads a batch on the left.

    Padding sees itself, so that no row is left without a key, which not every kernel answers with zeros.
    """

    def visible(i, j):
        return (j >= first.view(-1, *[1] * j.dim())) | (i == j)

    return visible


everything.across = True  # promises to ask nothing about i: queries of another sequence may be more than the keys


def sliding_window(W):
    """The last W positions, the token itself included (Longformer, arXiv:2004.05150; Mistral 7B, arXiv:2310.06825)."""
    if W < 1 or W != int(W):
        raise ValueError(f"sliding_window(W={W}): a token always sees itself, so W must be at least 1, and a whole number")

    def visible(i, j):
        return (j <= i) & (j > i - W)

    visible.window = W
    return visible


def local_global(W, G):
    """The last W positions and the first G: Longformer's pattern, and attention sinks (arXiv:2309.17453)."""
    if G < 0:
        raise ValueError(f"local_global(G={G}): the number of global positions must be 0 or more")
    local = sliding_window(W)

    def visible(i, j):
        return local(i, j) | ((j <= i) & (j < G))

    visible.window, visible.first = W, G
    return visible


def strided(S):
    """The last S positions, and every S-th before them: O(T·sqrt(T)) pairs at S = sqrt(T) (arXiv:1904.10509)."""
    if S < 1:
        raise ValueError(f"strided(S={S}): the stride must be at least 1")

    def visible(i, j):
        return (j <= i) & ((i - j < S) | ((i - j) % S == 0))

    return visible


def same_document(ids):
    """Positions of one document, for several packed into a sequence: ids (T,) or (B, T). Combine with both(causal, ...)."""

    def visible(i, j):
        return ids[..., i] == ids[..., j]

    return visible


def both(a, b):
    """What predicate a and predicate b both allow; the promise of the narrower one carries over."""

    def visible(i, j):
        return a(i, j) & b(i, j)

    promises = [(p.window, getattr(p, "first", 0)) for p in (a, b) if hasattr(p, "window")]
    if promises:
        visible.window, visible.first = min(promises, key=sum)
    visible.across = getattr(a, "across", False) and getattr(b, "across", False)
    return visible


def positions(Tq, Tk, device=None):
    """The invariant in one line: query positions i (Tq, 1) and key positions j (1, Tk)."""
    return torch.arange(Tk - Tq, Tk, device=device)[:, None], torch.arange(Tk, device=device)[None, :]


def mask_of(visible, i, j, B=1):
    """visible(i, j) as a bool tensor (1 or B, *shape of i and j together); ValueError if it is anything else."""
    try:
        mask = visible(i, j)
    except IndexError as error:
        raise ValueError(f"the predicate does not know all {int(j.max()) + 1} positions: {error}") from None
    shape = torch.broadcast_tensors(i, j)[0].shape  # (torch.broadcast_shapes would import half a second's worth)
    tensor = isinstance(mask, torch.Tensor)
    if not tensor or mask.dtype != torch.bool or mask.shape not in (shape, (1, *shape), (B, *shape)):
        got = f"{mask.dtype} {tuple(mask.shape)}" if tensor else type(mask).__name__
        raise ValueError(f"a predicate must return a bool tensor of shape {tuple(shape)}, or with B={B} in front, not {got}")
    return mask.expand(1, *shape) if mask.dim() == len(shape) else mask


# --------------------------------------------------------------------------------------------------
# Where tokens are: attention by itself is blind to order, so positions are written into its inputs.


def rope_table(T, D, base=10000.0, stretch=1.0, trained=8192):
    """Angles of rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Pair p of the D features turns by pos * base^(-2p/D) radians. stretch > 1 reads texts that much longer than the
    `trained` positions, as Llama 3.1 does (arXiv:2407.21783): pairs that turn fewer than once in them turn slower by that
    factor, pairs that turn more than four times stay, those between are blended. Returns cos and sin, each (T, D//2), in
    float64; round them to float32 once, after that and not before.
    """
    frequency = base ** (-torch.arange(D // 2, dtype=torch.float64) * 2 / D)
    turns = trained * frequency / (2 * math.pi)
    keep = ((turns - 1) / (4 - 1)).clamp(0, 1)
    frequency = frequency * (keep + (1 - keep) / stretch)
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


def dot(q, k):
    """q·k (Luong et al. 2015, arXiv:1508.04025): for unit variance, a number of variance D."""
    if q.dtype == torch.float16:
        with torch.autocast(q.device.type, enabled=False):
            q, k = roomy(q, k)
            return q @ k.mT
    return q @ k.mT


def roomy(*tensors):
    """float16 as float32: scores may be larger than its largest number, 65504."""
    return [x.float() if x.dtype == torch.float16 else x for x in tensors]


def scaled_dot(q, k):
    """q·k / sqrt(D): back to variance 1, so that softmax is neither flat nor one-hot (Vaswani et al. 2017)."""
    return dot(q, k) / math.sqrt(q.shape[-1])


class General(nn.Module):
    """q^T W k, one learned W (D, D) for all heads (Luong et al. 2015)."""

    def __init__(self, D):
        super().__init__()
        self.W = nn.Parameter(torch.randn(D, D) / D)

    def forward(self, q, k):
        q, k, W = roomy(q, k, self.W)
        return dot(q @ W, k)


class Additive(nn.Module):
    """v^T tanh(W1 q + W2 k), a small network that judges each pair (Bahdanau et al. 2014). Memory O(Tq·Tk·hidden)."""

    def __init__(self, D, hidden):
        super().__init__()
        self.W1 = nn.Parameter(torch.randn(D, hidden) / math.sqrt(D))
        self.W2 = nn.Parameter(torch.randn(D, hidden) / math.sqrt(D))
        self.v = nn.Parameter(torch.randn(hidden) / math.sqrt(hidden))

    def forward(self, q, k):
        q, k, W1, W2, v = roomy(q, k, self.W1, self.W2, self.v)
        return torch.tanh((q @ W1).unsqueeze(-2) + (k @ W2).unsqueeze(-3)) @ v


SCORE = {
    "scaled_dot": lambda D: scaled_dot, "dot": lambda D: dot, "general": General, "additive": lambda D: Additive(D, D),
}  # name -> a score for heads of size D

# How to share: normalize(scores) -> weights, along the last dimension. A score of -inf gets weight 0.


def softmax(scores):
    """exp(score), divided by the sum over the keys: every key gets something."""
    return scores.softmax(dim=-1)


def sparsemax(scores):
    """The point of the simplex nearest to the scores: most keys get exactly nothing (arXiv:1602.02068).

    weight = max(score - tau, 0), with the one tau that makes them sum to 1. Written so that autograd finds the exact
    gradient: tau is the mean over the support, and the support, a matter of sorting, has none.
    """
    if not scores.shape[-1]:
        return scores
    dtype, scores = scores.dtype, scores.to(torch.promote_types(scores.dtype, torch.float32))  # a long sum of halves drifts
    scores = scores - scores.amax(-1, keepdim=True).detach()  # changes nothing, but that 1 is not lost beside large scores
    near = scores.detach().clamp_min(-2)  # 1 below the best is already out of the support
    ranked = near.sort(dim=-1, descending=True).values
    rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    size = (1 + rank * ranked > ranked.cumsum(-1)).sum(-1, keepdim=True).clamp_min(1)  # true up to the support's last rank
    chosen = near >= ranked.gather(-1, size - 1)
    count = chosen.sum(-1, keepdim=True).clamp_min(1)
    tau = (scores.masked_fill(~chosen, 0).sum(-1, keepdim=True) - 1) / count
    return (scores - tau).clamp_min(0).to(dtype)


NORMALIZE = {"softmax": softmax, "sparsemax": sparsemax}

# --------------------------------------------------------------------------------------------------
# The paths: path(q, k, v, visible=causal, score=scaled_dot, normalize=softmax) -> (B, H, Tq, D).
# A query that may see nothing gets zeros.


def naive(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """The specification: one query at a time, gathering only the keys that it may see. No mask, no -inf."""
    Tq, Tk = check_shapes(q, k, v, visible)
    k, v = share_heads(q, k), share_heads(q, v)  # (B, H, Tk, D)
    i, j = positions(Tq, Tk, q.device)
    y = []
    for b in range(len(q)):
        rows = []
        for a in range(Tq):
            seen = mask_of(visible, i[a], j[0], len(q)).expand(len(q), Tk)[b]  # (Tk,)
            weights = normalize(score(q[b : b + 1, :, a : a + 1], k[b : b + 1, :, seen]))  # (1, H, 1, how many it sees)
            rows.append(weights.to(v.dtype) @ v[b : b + 1, :, seen])
        y.append(torch.cat(rows, dim=2))
    return torch.cat(y)


def attention_weights(q, k, visible=causal, score=scaled_dot, normalize=softmax):
    """Who looks at whom: (B, H, Tq, Tk), rows summing to one, exact zeros where a query may not look."""
    mask = mask_of(visible, *positions(*check_shapes(q, k, k, visible), q.device), len(q))[:, None]  # (1 or B, 1, Tq, Tk)
    scores = score(q, share_heads(q, k)).masked_fill(~mask, float("-inf"))
    # A row of nothing but -inf comes out of softmax as NaN; the second fill makes it the zeros it should be.
    return normalize(scores).masked_fill(~mask, 0.0)


def masked_fill(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """The textbook: all scores at once, -inf where a query may not look, softmax, weighted sum. O(Tq·Tk) memory."""
    check_shapes(q, k, v, visible)
    return attention_weights(q, k, visible, score, normalize).to(v.dtype) @ share_heads(q, v)


def tiled(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """FlashAttention (Dao et al. 2022, arXiv:2205.14135) in plain PyTorch: O(T) memory, forward and backward."""
    check_shapes(q, k, v, visible)
    check_standard("tiled", score, normalize)
    with torch.autocast(q.device.type, enabled=False):  # its sums are float32 on purpose
        return Tiled.apply(q, k, v, visible)


class Tiled(torch.autograd.Function):
    """Softmax one tile of TILE x TILE scores at a time, never all of them.

    Each query keeps the largest score so far and the sum of the exponentials below it, and rescales both when a larger
    score turns up. The backward pass makes each tile's weights again from the logarithm of that sum. Tiles that nobody
    may see are skipped.
    """

    TILE = 256

    @staticmethod
    def tiles(q, k, visible):
        """(slice of queries, slice of keys, mask) of each tile that somebody may see."""
        i, j = positions(q.shape[-2], k.shape[-2], q.device)
        for a in range(0, q.shape[-2], Tiled.TILE):
            rows = slice(a, a + Tiled.TILE)
            for b in range(0, k.shape[-2], Tiled.TILE):
                columns = slice(b, b + Tiled.TILE)
                mask = mask_of(visible, i[rows], j[:, columns], len(q))
                if mask.any():
                    yield rows, columns, mask[:, None, None]  # (1 or B, 1, 1, rows, columns)

    @staticmethod
    def forward(ctx, q, k, v, visible):
        B, H, Tq, D = q.shape
        q, k, v = q.unflatten(1, (k.shape[1], -1)), k[:, :, None], v[:, :, None]  # (B, G, H/G, Tq, D), (B, G, 1, Tk, D)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32  # what sums and scores are kept in
        y = torch.zeros_like(q, dtype=wide)
        largest = torch.full(q.shape[:-1], float("-inf"), dtype=wide, device=q.device)[..., None]
        total = torch.zeros_like(largest)
        for rows, columns, mask in Tiled.tiles(q, k, visible):
            scores = scaled_dot(q[..., rows, :].to(wide), k[..., columns, :].to(wide)).masked_fill(~mask, float("-inf"))
            new = torch.maximum(largest[..., rows, :], scores.amax(-1, keepdim=True))
            weights = (scores - new).exp().masked_fill(~mask, 0.0)
            shrink = (largest[..., rows, :] - new).exp().nan_to_num(1.0)  # NaN: still nothing seen, -inf - -inf
            total[..., rows, :] = total[..., rows, :] * shrink + weights.sum(-1, keepdim=True)
            y[..., rows, :] = y[..., rows, :] * shrink + weights @ v[..., columns, :].to(wide)
            largest[..., rows, :] = new
        y = (y / total.masked_fill(total == 0, 1.0)).to(q.dtype)
        ctx.save_for_backward(q, k, v, y, largest + total.log())
        ctx.visible, ctx.wide = visible, wide
        return y.view(B, H, Tq, D)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        with torch.autocast(dy.device.type, enabled=False):
            return Tiled.gradients(ctx, dy)

    @staticmethod
    def gradients(ctx, dy):
        q, k, v, y, log_total = ctx.saved_tensors
        dy = dy.reshape(y.shape).to(ctx.wide)
        dq, dk, dv = (torch.zeros_like(x, dtype=ctx.wide) for x in (q, k, v))
        mean = (dy * y).sum(-1, keepdim=True)  # what softmax subtracts from each weight's gradient
        scale = 1 / math.sqrt(q.shape[-1])
        for rows, columns, mask in Tiled.tiles(q, k, ctx.visible):
            q_tile, k_tile, v_tile = (x.to(ctx.wide) for x in (q[..., rows, :], k[..., columns, :], v[..., columns, :]))
            weights = (scaled_dot(q_tile, k_tile) - log_total[..., rows, :]).exp().masked_fill(~mask, 0.0)
            dscores = weights * (dy[..., rows, :] @ v_tile.mT - mean[..., rows, :]) * scale
            dq[..., rows, :] += dscores @ k_tile
            dk[..., columns, :] += (dscores.mT @ q_tile).sum(2, keepdim=True)  # over the heads that share it
            dv[..., columns, :] += (weights.mT @ dy[..., rows, :]).sum(2, keepdim=True)
        return dq.flatten(1, 2).to(q.dtype), dk[:, :, 0].to(k.dtype), dv[:, :, 0].to(v.dtype), None


def fused(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """One kernel, F.scaled_dot_product_attention: FlashAttention where the device has it.

    A predicate with a window W (and G first positions) costs O(T·(W + G)) time and memory.
    """
    Tq, Tk = check_shapes(q, k, v, visible)
    check_standard("fused", score, normalize)
    window, first = getattr(visible, "window", Tk), getattr(visible, "first", 0)
    start = max(0, Tk - Tq + 1 - window)  # the first key that the first query's window reaches
    if Tk - start > max(2 * window, 4 * windowed.BLOCK):  # below that a full mask is faster, measured on a CPU
        return windowed.attend(q, k, v, lambda i, j: mask_of(visible, i, j, len(q)), window, min(first, Tk))
    # The kernel's own is_causal flag counts from the top left, which is our invariant only when Tq == Tk.
    if visible is causal and Tq == Tk:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mask = None
    if visible is not everything and not (visible is causal and Tq == 1):
        i, j = positions(Tq, Tk, q.device)
        if first < start:  # few queries, many keys: only the first and the last of these are in reach
            def reached(x):
                return torch.cat([x[..., :first, :], x[..., start:, :]], dim=-2) if first else x[..., start:, :]

            k, v, j = reached(k), reached(v), reached(j.mT).mT
        mask = mask_of(visible, i, j, len(q))[:, None]  # (1 or B, 1, Tq, Tk)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


ATTENTION = {"naive": naive, "masked_fill": masked_fill, "tiled": tiled, "fused": fused}


def share_heads(q, x):
    """Repeat each of the G key/value heads for the H/G query heads that share it (GQA, arXiv:2305.13245)."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def check_standard(path, score, normalize):
    """ValueError for a score or normalizer that only the paths with all scores at hand can do."""
    if score is not scaled_dot or normalize is not softmax:
        raise ValueError(f'attention="{path}" does softmax of the scaled dot product only; use "masked_fill" for others')


def check_shapes(q, k, v, visible=causal):
    """Tq and Tk, or a ValueError that names what does not fit."""
    named = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"attention needs q (B, H, Tq, D) and k, v (B, G, Tk, D), not {named}")
    if not (q.numel() and k.numel()):
        raise ValueError(f"attention needs at least one sequence, head, query and key, not {named}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly: {named}")
    if q.shape[2] > k.shape[2] and not getattr(visible, "across", False):
        raise ValueError(f"the queries are the last of the keys' positions, so Tq must not exceed Tk: {named}")
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        raise ValueError(f"q, k, v differ in dtype or device: {[(str(x.dtype), str(x.device)) for x in (q, k, v)]}")
    return q.shape[2], k.shape[2]


# --------------------------------------------------------------------------------------------------
# Another function: linear attention. Replace exp(q·k) by feature(q)·feature(k), and the sum over the past
# becomes a matrix of constant size that each token adds to (Katharopoulos et al. 2020, arXiv:2006.16236).


def elu1(x):
    """elu(x) + 1: positive, and cheap."""
    return F.elu(x).add_(1)


def positive_random_features(D, count, seed=0):
    """Performer (Choromanski et al. 2021, arXiv:2009.14794): products approach exp(q·k / sqrt(D)) as count grows.

    For vectors of unit RMS, as qk_norm makes them: of much longer ones most features vanish.
    """

    def rotation():
        Q, R = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64, generator=generator))
        return Q * R.diagonal().sign()  # without the signs, not every direction would be as likely

    generator = torch.Generator().manual_seed(seed)
    blocks = [rotation() for _ in range(-(-count // D))]
    lengths = torch.randn(count, D, dtype=torch.float64, generator=generator).norm(dim=1, keepdim=True)
    directions = torch.cat(blocks)[:count] * lengths  # orthogonal within a block: less chance, nearer to exp

    def feature(x):
        x = x / D**0.25
        exponent = x @ directions.T.to(x) - x.square().sum(-1, keepdim=True) / 2
        return exponent.clamp_max(35).exp() / math.sqrt(count)  # at most exp(35): sums of products stay finite in float32

    return feature


def linear(q, k, v, feature=elu1, memory=None, chunk=128):
    """Causal attention with weights feature(q)·feature(k), normalized: (B, H, Tq, D) in O(T) time and memory.

    Within a chunk all pairs are compared, between chunks a running sum is handed on. memory: a LinearState, which stands
    for a past before k and v, and takes them in.
    """
    Tq, Tk = check_shapes(q, k, v)
    if memory is not None:
        memory.check(q, Tk)
    # A CPU takes a few heads at a time: new memory for all of them at once would cost as much as the products.
    heads = max(1, 2**20 // v[0, 0].numel()) if q.device.type == "cpu" else q[:, :, 0, 0].numel()
    parts = zip(*(x.flatten(0, 1).split(heads) for x in (q, share_heads(q, k), share_heads(q, v))))
    pasts = itertools.repeat(None) if memory is None or memory.sum is None else memory.sum.split(heads)
    with torch.autocast(q.device.type, enabled=False):  # sums want float32
        y, sums = zip(*(linear_heads(*part, feature, past, chunk) for part, past in zip(parts, pasts)))
    if memory is not None:
        memory.length, memory.sum = memory.length + Tk, torch.cat(sums).detach()
    return torch.cat(y).view(q.shape)


def linear_heads(q, k, v, feature, past, chunk):
    """linear of some heads, q, k, v (heads, T, D) after the sum `past` or None: y, and the sum (heads, features, D + 1)."""
    dtype, Tq, before_q = v.dtype, q.shape[1], k.shape[1] - q.shape[1]
    q, k, v = featured(q, k, v, feature)
    past = (0 if past is None else past) + k[:, :before_q].mT @ v[:, :before_q]  # of these keys only the sum matters
    chunk = min(chunk, Tq)
    end = -Tq % chunk
    q, k, v = (F.pad(x, (0, 0, 0, end)) if end else x for x in (q, k[:, before_q:], v[:, before_q:]))
    q, k, v = (x.unflatten(1, (-1, chunk)) for x in (q, k, v))  # (heads, chunks, chunk, ...)
    sums = k.mT @ v  # (heads, chunks, features, D + 1)
    before = torch.cat([past[:, None], sums[:, :-1]], dim=1).cumsum(1)
    y = ((q @ k.mT).tril_() @ v).add_(q @ before).flatten(1, 2)[:, :Tq]  # the padding has no weights to divide by
    return normalized(y).to(dtype), before[:, -1] + sums[:, -1]


def linear_step(q, k, v, state, feature=elu1):
    """One token of linear, q, k, v (B, H or G, 1, D): its output and the next state. state None: nothing before."""
    Tq, Tk = check_shapes(q, k, v)
    if Tk != 1:
        raise ValueError(f"linear_step takes one token, not {Tk}: use linear")
    dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = featured(q, share_heads(q, k), share_heads(q, v), feature)
        new = k.mT @ v  # (B, H, features, D + 1)
        if state is not None and state.shape != new.shape:
            raise ValueError(f"a state {tuple(state.shape)} does not fit q, k, v, whose own is {tuple(new.shape)}")
        state = new if state is None else state + new
        return normalized(q @ state).to(dtype), state


def featured(q, k, v, feature):
    """feature(q), feature(k), and v with a column of ones that counts the weights; sums want float32 at least."""
    wide = torch.promote_types(v.dtype, torch.float32)
    return feature(q.to(wide)), feature(k.to(wide)), F.pad(v.to(wide), (0, 1), value=1.0)


def normalized(y):
    """Weighted sums over the sum of the weights, which stands in the last column; zeros where all weights are 0."""
    return y[..., :-1] / y[..., -1:].clamp_min(torch.finfo(y.dtype).tiny)


FEATURE = {"linear": lambda D: elu1, "performer": lambda D: positive_random_features(D, 4 * D)}


# --------------------------------------------------------------------------------------------------
# Memory: keys and values of the past, so that a new token costs one row of attention and not all rows.


UNDO = 32  # how many positions a memory that has let go of others can take back


class Earlier:
    """Inputs of what looks one position back: append(x), x (B, T, C), returns what stood before each, zeros before the first.

    The last UNDO + 1 positions are kept, in memory that stays where it is. at: as KVCache's.
    """

    def __init__(self):
        self.kept, self.length, self.known = None, 0, UNDO + 1  # the zeros before the first position are known too

    @torch.inference_mode()  # in which it has been filled, perhaps
    def cut(self, count):
        """Forget the last count positions: guesses that were wrong."""
        if count >= self.known:
            raise ValueError(f"cannot go back by {count} positions: the last {self.known} are kept")
        self.kept.copy_(torch.cat([torch.zeros_like(self.kept[:, :count]), self.kept[:, : UNDO + 1 - count]], dim=1))
        self.length, self.known = self.length - count, self.known - count

    def select(self, rows):
        """As KVCache's."""
        other = Earlier()
        other.kept, other.length, other.known = self.kept[rows], self.length, self.known
        return other

    def append(self, x, at=None):
        T = x.shape[1]
        if self.kept is None:
            self.kept = x.new_zeros(len(x), UNDO + 1, x.shape[2])
        seen = torch.cat([self.kept, x.detach()], dim=1)
        self.kept.copy_(seen[:, T:])
        if at is None:
            self.count(T)
        return seen[:, UNDO:-1]

    def count(self, T):
        """T positions have been appended."""
        self.length, self.known = self.length + T, min(UNDO + 1, self.known + T)


class KVCache:
    """Keys and values of one layer for up to max_len positions, in memory that is allocated once.

    append(k, v) with k, v (B, G, T, D) writes them behind what is there and returns all of it, as views,
    (B, G, len, D): exactly the k and v that a path wants beside the T new queries. It never grows; past
    max_len it refuses. Rotate before caching. It holds values, not gradients: it is for inference.

    With a window it keeps room for window + max(window, 64) positions only, and returns at least the window - 1 before the
    new ones: a sliding_window sees no others, and knows positions only by their distance. Of a chunk longer than its room it
    returns copies. After each append the last UNDO positions can be cut off again.

    While `at` is a tensor, the position (1,) of the one token that comes next, append writes there and returns all of its
    memory, so that shapes never change and torch.compile makes one CUDA graph of a step (as in gpt-fast): who appends must
    then look no further than `at`, and call stepped. That needs a cache made without a window.
    """

    def __init__(self, batch_size, n_kv_head, max_len, head_size, window=None):
        self.room = min(max_len, window + max(window, 2 * UNDO)) if window else max_len
        self.shape = (batch_size, n_kv_head, self.room, head_size)
        self.max_len, self.window = max_len, window
        self.k = self.v = None  # allocated by the first append, which knows the dtype and the device
        self.reset()

    def __len__(self):
        return self.length

    def reset(self):
        self.length = self.held = 0  # positions seen, and how many of the last of them are kept
        self.at, self.earlier = None, {}  # by name, what else the layer's block remembers: an Earlier each

    def cut(self, length):
        """Forget the positions from length on: guesses that were wrong."""
        held = self.held - (self.length - length)
        if not (0 <= length <= self.length and held >= min(length, self.window - 1 if self.window else length)):
            raise ValueError(f"cannot go back to {length} of {self.length} positions: the last {self.held} are kept")
        for inputs in self.earlier.values():
            inputs.cut(self.length - length)
        self.length, self.held = length, held

    def stepped(self):
        """Count the one token that was written while `at` was a tensor; it is none from here on."""
        self.at, self.length, self.held = None, self.length + 1, self.held + 1
        for inputs in self.earlier.values():
            inputs.count(1)

    def select(self, rows):
        """A cache with these rows of the batch, (N,) indices: one prompt that is read once goes on in many ways."""
        other = KVCache(len(rows), *self.shape[1:2], self.max_len, self.shape[3], self.window)
        other.length, other.held = self.length, self.held
        other.earlier = {name: inputs.select(rows) for name, inputs in self.earlier.items()}
        if self.k is not None:
            other.k, other.v = self.k[rows], self.v[rows]
        return other

    def append(self, k, v):
        if self.at is not None:
            return self.k.index_copy_(2, self.at, k), self.v.index_copy_(2, self.at, v)
        B, G, room, D = self.shape
        T = k.shape[2]
        if k.shape != v.shape or k.shape != (B, G, T, D):
            raise ValueError(f"this cache holds (B={B}, G={G}, T, D={D}), not k {tuple(k.shape)}, v {tuple(v.shape)}")
        if self.length + T > self.max_len:
            raise ValueError(f"the cache is full: {self.length} of {self.max_len} positions used, {T} more wanted")
        k, v = k.detach(), v.detach()
        if self.k is None:
            self.k, self.v = k.new_zeros(self.shape), v.new_zeros(self.shape)
        if self.k.dtype != k.dtype or self.v.dtype != v.dtype or self.k.device != k.device:
            raise ValueError(f"this cache holds {self.k.dtype} on {self.k.device}, not {k.dtype}, {v.dtype} on {k.device}")
        self.length += T
        if self.held + T > room:  # only with a window: what is still in it moves to the front
            kept = slice(max(0, self.held - self.window + 1 - UNDO), self.held)
            k, v = torch.cat([self.k[:, :, kept], k], dim=2), torch.cat([self.v[:, :, kept], v], dim=2)
            self.held, T = 0, k.shape[2]
            if T > room:  # a long chunk: it sees all of itself, the next one only its end
                self.k[:], self.v[:] = k[:, :, -room:], v[:, :, -room:]
                self.held = room
                return k, v
        new = slice(self.held, self.held + T)
        self.k[:, :, new], self.v[:, :, new] = k, v
        self.held += T
        return self.k[:, :, : self.held], self.v[:, :, : self.held]


class LinearState:
    """All that linear attention remembers: one (features, D + 1) matrix per head, however long the past."""

    at = None  # as KVCache's, but never set

    def __init__(self, batch_size, max_len):
        self.batch_size, self.max_len = batch_size, max_len
        self.reset()

    def __len__(self):
        return self.length

    def reset(self):
        self.length, self.sum, self.earlier = 0, None, {}

    def cut(self, length):
        if length != self.length:
            raise ValueError("linear attention keeps a sum, from which nothing can be taken back: use another attention")

    def select(self, rows):
        """As KVCache's."""
        other = LinearState(len(rows), self.max_len)
        other.length, other.sum = self.length, self.sum.unflatten(0, (self.batch_size, -1))[rows].flatten(0, 1)
        other.earlier = {name: inputs.select(rows) for name, inputs in self.earlier.items()}
        return other

    def check(self, q, T):
        """ValueError for queries of another batch size or number of heads, or T positions more than there is room for."""
        if len(q) != self.batch_size or self.sum is not None and len(self.sum) != len(q) * q.shape[1]:
            heads = "" if self.sum is None else f", H={len(self.sum) // self.batch_size}"
            raise ValueError(f"this state is for B={self.batch_size}{heads}, not q {tuple(q.shape)}")
        if self.length + T > self.max_len:
            raise ValueError(f"the state is full: {self.length} of {self.max_len} positions used, {T} more wanted")


# --------------------------------------------------------------------------------------------------
# The modules only project; the maths is above.


def choose(name, value, known):
    """known[value], or a ValueError that names what there is."""
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown; choose from {', '.join(known)}")
    return known[value]


def check_mechanism(attention, score="scaled_dot", normalize="softmax", window=None):
    """ValueError for a mechanism that does not exist, or that this path cannot do."""
    for name, value, known in (
        ("attention", attention, ATTENTION | FEATURE), ("score", score, SCORE), ("normalize", normalize, NORMALIZE)
    ):
        choose(name, value, known)
    if attention not in ("naive", "masked_fill") and (score != "scaled_dot" or normalize != "softmax"):
        raise ValueError(
            f"attention={attention!r} cannot do score={score!r} with normalize={normalize!r}: "
            "choose attention=masked_fill (or naive)"
        )
    if attention in FEATURE and window:
        raise ValueError(f"attention={attention!r} has no window: choose window=0, or one of {', '.join(ATTENTION)}")


class CausalSelfAttention(nn.Module):
    """(B, T, n_embd) -> (B, T, n_embd): n_head query heads over n_kv_head key/value heads (default: as many).

    attention names a path in ATTENTION, which all give the same numbers from the same weights, or linear attention with
    one of the features in FEATURE. window, if any, limits each token to the last `window` positions. qk_norm gives queries
    and keys unit RMS, which keeps the scores in range at high learning rates (Henry et al. 2020, arXiv:2010.04245).
    dropout acts on the output.
    """

    def __init__(
        self, n_embd, n_head, n_kv_head=None, *, bias=False, dropout=0.0, qk_norm=False, window=None, attention="fused",
        score="scaled_dot", normalize="softmax",
    ):
        super().__init__()
        n_kv_head = n_kv_head or n_head
        if n_head < 1 or n_embd % n_head:
            raise ValueError(f"n_embd={n_embd} is not divisible by n_head={n_head}")
        if n_head % n_kv_head:
            raise ValueError(f"n_head={n_head} is not divisible by n_kv_head={n_kv_head}")
        check_mechanism(attention, score, normalize, window)
        self.n_head, self.n_kv_head, self.head_size = n_head, n_kv_head, n_embd // n_head
        self.c_attn = nn.Linear(n_embd, (n_head + 2 * n_kv_head) * self.head_size, bias=bias)
        self.c_attn.weight.parts = [heads * self.head_size for heads in (n_head, n_kv_head, n_kv_head)]  # see muon.py
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.qk_norm, self.window = qk_norm, window
        self.visible = sliding_window(window) if window else causal
        self.attention = ATTENTION.get(attention)
        self.feature = None if self.attention else FEATURE[attention](self.head_size)
        self.score, self.normalize = SCORE[score](self.head_size), NORMALIZE[normalize]

    def forward(self, x, rope=None, cache=None, padding=None):
        """rope: (cos, sin) rows for these T positions, or None. cache: from new_cache, or None.

        padding: how many positions at the beginning of each sequence hold nothing, (B,), or None.
        """
        H, G, D = self.n_head, self.n_kv_head, self.head_size
        qk, v = self.c_attn(x).unflatten(2, (H + 2 * G, D)).split([H + G, G], dim=2)  # (B, T, heads, D)
        if self.qk_norm:
            qk = rms_norm(qk)
        if rope is not None:
            qk = rotate(qk, *(table[..., None, :] for table in rope))
        q, k = qk.split([H, G], dim=2)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, heads, T, D)
        if self.feature:
            if padding is not None:
                raise ValueError("linear attention would add padding to its sum: give sequences of one length")
            y = linear(q, k, v, self.feature, cache)
        else:
            if cache is not None:
                k, v = cache.append(k, v)
            visible, held_from = self.visible, 0
            if cache is not None and cache.at is not None:
                def visible(i, j):
                    return self.visible(cache.at[:, None], j) & (i == i)
            elif cache is not None:
                held_from = len(cache) - k.shape[2]  # a cache with a window has let go of some positions
            if padding is not None:
                visible = both(visible, since(padding - held_from))
            y = self.attention(q, k, v, visible, self.score, self.normalize)  # (B, H, T, D)
        return self.dropout(self.c_proj(y.transpose(1, 2).flatten(2)))  # (B, T, n_embd)

    def new_cache(self, batch_size, max_len, whole=False):
        """What this layer remembers between calls, empty: a KVCache, whole (all positions, window or not), or a LinearState."""
        if self.feature:
            return LinearState(batch_size, max_len)
        return KVCache(batch_size, self.n_kv_head, max_len, self.head_size, None if whole else self.window)


class CrossAttention(nn.Module):
    """Queries from x (B, T, n_embd), keys and values from memory (B, S, n_embd): a decoder that looks at an encoder.

    visible(i, j) says which position of the memory each query may see: everything, or present(real) in a padded batch.
    Keys and values of a memory that does not change are made once, by project(memory), and given instead of it.
    """

    def __init__(self, n_embd, n_head, *, bias=False, dropout=0.0, attention="fused", score="scaled_dot"):
        super().__init__()
        if n_head < 1 or n_embd % n_head:
            raise ValueError(f"n_embd={n_embd} is not divisible by n_head={n_head}")
        self.n_head = n_head
        self.c_q = nn.Linear(n_embd, n_embd, bias=bias)
        self.c_kv = nn.Linear(n_embd, 2 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)
        choose("attention", attention, ATTENTION)
        check_mechanism(attention, score)
        self.attention, self.score = ATTENTION[attention], SCORE[score](n_embd // n_head)

    def project(self, memory):
        """Keys and values (B, H, S, D) of a memory (B, S, n_embd)."""
        return self.c_kv(memory).unflatten(2, (2 * self.n_head, -1)).transpose(1, 2).chunk(2, dim=1)

    def forward(self, x, memory, visible=everything):
        k, v = memory if isinstance(memory, tuple) else self.project(memory)
        q = self.c_q(x).unflatten(2, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
        return self.dropout(self.c_proj(self.attention(q, k, v, visible, self.score).transpose(1, 2).flatten(2)))


# --------------------------------------------------------------------------------------------------
# The self-portrait: python attention.py


def picture(visible, T=10):
    """A predicate as lines of text: row i looks at the columns j that are filled."""
    mask = mask_of(visible, *positions(T, T))[0]
    return ["".join("■ " if seen else "· " for seen in row) for row in mask.tolist()]


def largest_difference(path, visible):
    """Of path from naive in float64, in value and in gradient, for grouped heads and fewer queries than keys."""
    torch.manual_seed(0)
    shapes = (1, 4, 90, 8), (1, 2, 120, 8), (1, 2, 120, 8)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    results = []
    for function in (path, naive):
        y = function(*inputs, visible)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    value, *gradients = ((a - b).abs().max().item() for a, b in zip(*results))
    return value, max(gradients)


@contextlib.contextmanager
def chatter_hidden():
    """The profiler announces its start and stop on stderr, below Python: not in the middle of a table."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def cost(function):
    """Seconds, and bytes at the peak of what a call allocates on the CPU."""
    start = time.perf_counter()
    function()
    seconds = time.perf_counter() - start
    with chatter_hidden(), torch.profiler.profile(profile_memory=True) as profiler:
        function()
    sizes = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return seconds, max(itertools.accumulate(sizes, initial=0))


def self_portrait(lengths=(256, 1024, 4096)):
    """Draw the masks, work an example by hand, compare the paths; returns whether all agree."""
    predicates = {
        "causal": causal, "sliding_window(3)": sliding_window(3), "local_global(3, 2)": local_global(3, 2),
        "strided(3)": strided(3), "causal, 2 documents": both(causal, same_document(torch.arange(120) // 5)),
        "everything": everything,
    }
    print("Who may look: row i asks, column j answers.\n")
    for names in list(predicates)[:3], list(predicates)[3:]:
        for line in [names, *zip(*(picture(predicates[name]) for name in names))]:
            print("".join(f"{part:24}" for part in line))
        print()

    q = torch.tensor([[[[0.0, 0.0], [1.0, 0.0]]]])
    k, v = torch.tensor([[[[1.0, 0.0], [2.0, 0.0]]]]), torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    one, two = dot(q, k)[0, 0, 1].tolist()
    (scaled_one, scaled_two), weights = scaled_dot(q, k)[0, 0, 1].tolist(), attention_weights(q, k)[0, 0, 1].tolist()
    print("By hand, two tokens and D = 2: the second token looks at both.")
    print(f"  scores q·k            {one:.2f}  {two:.2f}")
    print(f"  divided by sqrt(2)    {scaled_one:.2f}  {scaled_two:.2f}")
    print(f"  softmax               {weights[0]:.2f}  {weights[1]:.2f}")
    print(f"  blend of the values   {weights[0]:.2f} · [10, 0] + {weights[1]:.2f} · [0, 10] = "
          f"[{', '.join(f'{x:.1f}' for x in masked_fill(q, k, v)[0, 0, 1].tolist())}]\n")

    print(f"{'path':12}  largest difference from naive       forward: seconds and MB at T = {', '.join(map(str, lengths))}")
    agree = True
    for name, path in ATTENTION.items():
        differences = [largest_difference(path, visible) for visible in predicates.values()]
        value, gradient = (max(column) for column in zip(*differences))
        agree = agree and max(value, gradient) < 1e-12
        costs = []
        for T in lengths:
            x = torch.randn(1, 4, T, 32)
            seconds, size = cost(lambda: path(x, x, x))
            costs.append(f"{seconds:8.4f} s {size / 1e6:7.1f} MB")
        print(f"{name:12}  value {value:.0e}, gradient {gradient:.0e}  {' '.join(costs)}")
    print("\nall agree" if agree else "\nTHEY DO NOT AGREE")
    return agree


if __name__ == "__main__":
    sys.exit(0 if self_portrait() else 1)
