"""Chapter two: causal multi-head attention, by every path.

Attention is a soft look-up: each query compares itself with every key that it may see, turns the
scores into weights that sum to one, and returns that weighted average of the values (Bahdanau et
al. 2014, arXiv:1409.0473; Vaswani et al. 2017, arXiv:1706.03762). The paths below compute the same
function in different ways, so that the slow, obvious one proves the fast ones right. Read from top
to bottom:

    who may look (masks.py) · where tokens are · how alike · how to share ·
    the paths: naive, masked_fill, tiled, fused · another function: linear attention ·
    memory: the KV cache · the modules, which project, call a path, project back

`python attention.py` draws the masks, works examples by hand and compares the paths, and the page
of `python -m tools.visualize` shows step by step which scores each path makes.

Shapes, everywhere:
    B batch · H query heads · G key/value heads (H % G == 0, each shared by H/G query heads)
    Tq queries · Tk keys · D size of queries and keys · Dv size of values, D in most models
    q (B, H, Tq, D)   k (B, G, Tk, D)   v (B, G, Tk, Dv)   y (B, H, Tq, Dv)

One invariant makes training, prefill, chunked prefill and decoding a single case: the Tq queries
are the last Tq of the Tk positions. Query row a is at position Tk - Tq + a, so no path ever
receives a position, and no path needs code for the cache, which only makes Tk larger than Tq.

Attention weights have no dropout, because it would make the paths unequal: dropout acts on the
residual stream only.
"""

import copy
import functools
import math
import runpy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from engine import sdpa
from engine.errors import UserError, at_least, choose  # noqa: F401  (model.py checks with them)
from engine.linear_attention import chunked, featured, normalized
from masks import (  # noqa: F401  (so that these can be imported from here too)
    VISIBLE,
    after_padding,
    alibi,
    at_position,
    bias_of,
    both,
    causal,
    chunks,
    everything,
    full,
    local_global,
    mask_of,
    mean_keys,
    positions,
    predicate,
    present,
    same_document,
    sees_ahead,
    sliding_window,
    strided,
    two_sided,
)
from variants.performer import positive_random_features

# --------------------------------------------------------------------------------------------------
# Where tokens are: attention by itself ignores order, so positions are written into its inputs.


def rope_table(T, D, base=10000.0, stretch=1.0, trained=8192):
    """Angles of rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Pair p of the D features turns by pos * base^(-2p/D) radians. With stretch > 1 a model reads
    sequences that many times longer than the `trained` positions (Llama 3.1, arXiv:2407.21783):
    pairs that turn less than once within `trained` turn slower by that factor, pairs that turn four
    times or more don't change, and the pairs between them get a blend of both. Returns cos and sin,
    each (T, D//2), in float64; round them to float32 once, after that and not before.
    """
    frequency = base ** (-torch.arange(D // 2, dtype=torch.float64) * 2 / D)
    turns = trained * frequency / (2 * math.pi)
    keep = ((turns - 1) / 3).clamp(0, 1)
    frequency = frequency * (keep + (1 - keep) / stretch)
    angle = torch.outer(torch.arange(T, dtype=torch.float64), frequency)  # (T, D//2)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotate each feature pair of x (..., T, D) by its position's angle.

    cos and sin are T rows of rope_table. Pairs are half-split, (p, p + D/2), as in Llama. The dot
    product of two rotated vectors depends on their distance alone. The unpaired feature of an odd D
    is unchanged. Keeps the dtype of x.
    """
    half = cos.shape[-1]
    x1, x2, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin, rest], dim=-1).to(x.dtype)


def sinusoidal(T, C):
    """Fixed position vectors (T, C) of Vaswani et al. 2017, section 3.5, in float64.

    sin in even columns, cos in odd ones.
    """
    frequency = 10000.0 ** (-torch.arange(0, C, 2, dtype=torch.float64) / C)
    angle = torch.outer(torch.arange(T, dtype=torch.float64), frequency)  # (T, ceil(C/2))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :C]


# --------------------------------------------------------------------------------------------------
# How alike: score(q, k) -> (B, H, Tq, Tk), for q (B, H, Tq, D) and k (B, H, Tk, D).


def dot(q, k):
    """q·k (Luong et al. 2015, arXiv:1508.04025): for unit variance, a number of variance D."""
    with torch.autocast(q.device.type, enabled=False):  # it would undo upcast
        q, k = upcast(q, k)
        return q @ k.mT


def upcast(*tensors):
    """float16 to float32: scores may exceed 65504, the largest number of float16."""
    return [x.float() if x.dtype == torch.float16 else x for x in tensors]


def scaled_dot(q, k):
    """q·k / sqrt(D): back to variance 1, so that softmax is neither flat nor one-hot.

    Vaswani et al. 2017, section 3.2.1.
    """
    return dot(q, k) / math.sqrt(q.shape[-1])


class General(nn.Module):
    """q^T W k, one learned W (D, D) for all heads (Luong et al. 2015)."""

    def __init__(self, D):
        super().__init__()
        self.W = nn.Parameter(torch.randn(D, D) / D)

    def forward(self, q, k):
        return dot((q @ self.W.to(q.dtype)).to(k.dtype), k)  # autocast makes the product narrower


class Additive(nn.Module):
    """v^T tanh(W1 q + W2 k), a small network that scores each pair (Bahdanau et al. 2014).

    Memory O(Tq·Tk·hidden).
    """

    def __init__(self, D, hidden):
        super().__init__()
        self.W1 = nn.Parameter(torch.randn(D, hidden) / math.sqrt(D))
        self.W2 = nn.Parameter(torch.randn(D, hidden) / math.sqrt(D))
        self.v = nn.Parameter(torch.randn(hidden) / math.sqrt(hidden))

    def forward(self, q, k):
        q, k, W1, W2, v = upcast(q, k, self.W1, self.W2, self.v)
        return self.activate((q @ W1).unsqueeze(-2) + (k @ W2).unsqueeze(-3)) @ v

    def activate(self, x):
        return torch.tanh(x)


class Perceptron(Additive):
    """v^T relu(W [q; k] + b): the network of one hidden layer that others use for Additive's."""

    def __init__(self, D, hidden):
        super().__init__(D, hidden)
        self.b = nn.Parameter(torch.zeros(hidden))

    def activate(self, x):
        return F.relu(x + self.b.to(x.dtype))


SCORE = {  # name -> the score for heads of size D
    "scaled_dot": lambda D: scaled_dot,
    "dot": lambda D: dot,
    "general": General,
    "additive": lambda D: Additive(D, D),
    "mlp": lambda D: Perceptron(D, D),
}

# --------------------------------------------------------------------------------------------------
# How to share: normalize(scores) -> weights that sum to 1 along the last dimension, which may be
# empty. A score of -inf gets weight 0.


def softmax(scores):
    """exp(score), divided by the sum over the keys: every key gets some weight."""
    return scores.softmax(dim=-1)


def sparsemax(scores):
    """The point of the simplex nearest to the scores: most keys get weight 0.

    weight = max(score - tau, 0), with the one tau for which they sum to 1, a mean over the support
    found by sorting (Martins & Astudillo 2016, arXiv:1602.02068).
    """
    if not scores.shape[-1]:
        return scores
    dtype = scores.dtype
    scores = scores.to(torch.promote_types(dtype, torch.float32))  # long sums need float32
    # The weights stay the same, and large scores do not absorb the 1 below.
    scores = scores - scores.amax(-1, keepdim=True).detach()
    # A score 1 below the largest is already outside the support.
    ranked = scores.clamp_min(-2).sort(dim=-1, descending=True).values
    sums = ranked.cumsum(-1)
    rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    size = (1 + rank * ranked > sums).sum(-1, keepdim=True).clamp_min(1)
    tau = (sums.gather(-1, size - 1) - 1) / size
    return (scores - tau).clamp_min(0).to(dtype)


NORMALIZE = {"softmax": softmax, "sparsemax": sparsemax}

# --------------------------------------------------------------------------------------------------
# The paths: path(q, k, v, visible=causal, score=scaled_dot, normalize=softmax) -> (B, H, Tq, Dv).
# A query that may see nothing gets zeros.


def check_shapes(q, k, v, visible):
    """Return Tq and Tk. ValueError for shapes that don't fit together."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    same_rank = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    # Of q and k, every third size is B and D.
    if not same_rank or q.shape[::3] != k.shape[::3] or q.shape[1] % k.shape[1]:
        form = "q (B, H, Tq, D), k (B, G, Tk, D) and v (B, G, Tk, Dv), where G divides H"
        raise ValueError(f"attention needs {form}, not {shapes}")
    Tq, Tk = q.shape[2], k.shape[2]
    if Tq > Tk and not getattr(visible, "across", False):
        raise ValueError(f"queries are the last of the keys, so Tq must not exceed Tk: {shapes}")
    return Tq, Tk


def check_standard(path, standard):
    """UserError for a score or normalizer that a path cannot compute."""
    if not standard:
        raise UserError(
            f"attention={path} has no other score or normalizer than its own: "
            "choose attention=masked_fill"
        )


def share_heads(q, x):
    """Repeat each of the G key/value heads for the H/G query heads that share it.

    Grouped-query attention (GQA, arXiv:2305.13245).
    """
    if x.shape[1] == q.shape[1]:
        return x
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def naive(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """The specification: one query at a time, gathering only the keys that it may see.

    No mask, no -inf.
    """
    Tq, Tk = check_shapes(q, k, v, visible)
    B = len(q)
    k, v = share_heads(q, k), share_heads(q, v)  # (B, H, Tk, D or Dv)
    i, j = positions(Tq, Tk, q.device)
    y = []
    for b in range(B):
        rows = []
        for a in range(Tq):
            seen = mask_of(visible, i[a], j[0], B).expand(B, Tk)[b]  # (Tk,)
            query = q[b : b + 1, :, a : a + 1]  # (1, H, 1, D)
            keys = k[b : b + 1, :, seen]  # (1, H, number of keys seen, D)
            values = v[b : b + 1, :, seen]
            scores = score(query, keys)
            bias = bias_of(visible, i[a : a + 1], j[:, seen], q)
            weights = normalize(scores if bias is None else scores + bias)
            rows.append(weights.to(v.dtype) @ values)
        y.append(torch.cat(rows, dim=2))
    return torch.cat(y)


def attention_weights(q, k, visible=causal, score=scaled_dot, normalize=softmax):
    """The map of who attends to whom, (B, H, Tq, Tk).

    Rows sum to one, with exact zeros where a query may not look.
    """
    i, j = positions(*check_shapes(q, k, k, visible), q.device)
    mask = mask_of(visible, i, j, len(q))[:, None]  # (1 or B, 1, Tq, Tk)
    scores = score(q, share_heads(q, k))
    bias = bias_of(visible, i, j, q)  # (H, Tq, Tk)
    if bias is not None:
        scores = scores + bias
    weights = normalize(scores.masked_fill(~mask, float("-inf")))
    # Softmax of a row of nothing but -inf is NaN: here it becomes zeros.
    return weights.masked_fill(~mask, 0.0)


def masked_fill(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """The textbook: all scores at once, -inf where a query may not look, softmax, weighted sum.

    O(Tq·Tk) memory.
    """
    check_shapes(q, k, v, visible)
    return attention_weights(q, k, visible, score, normalize).to(v.dtype) @ share_heads(q, v)


TILE = 256  # queries, and keys, in a tile


def tiled(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """FlashAttention (Dao et al. 2022, arXiv:2205.14135) in plain PyTorch.

    Scores exist for one TILE x TILE block at a time. The backward pass computes a row of tiles
    again, so that memory is O(T) there too.
    """
    Tq, Tk = check_shapes(q, k, v, visible)
    check_standard("tiled", score is scaled_dot and normalize is softmax)
    i, j = positions(Tq, Tk, q.device)
    q = q.unflatten(1, (k.shape[1], -1))  # (B, G, H/G, Tq, D)
    k, v = k[:, :, None], v[:, :, None]  # (B, G, 1, Tk, D or Dv)
    y = []
    for a in range(0, Tq, TILE):
        rows = slice(a, a + TILE)
        inputs = q[..., rows, :], k, v, visible, i[rows], j
        y.append(checkpoint(row_of_tiles, *inputs, use_reentrant=False))
    return torch.cat(y, dim=-2).flatten(1, 2)


def row_of_tiles(q, k, v, visible, i, j):
    """Return the attention of queries at positions i (rows, 1) to keys at positions j (1, Tk).

    It visits one tile of keys after another, and skips those in which no query sees a key.

    Each query keeps its largest score so far and the sum of the exponentials relative to it, and
    rescales both when a larger score appears.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):  # scores and sums must stay in it
        q = q.to(dtype)
        # Sums over nothing: zeros that have a gradient, also where nobody sees anything.
        total = q[..., :0] @ k[..., :1, :0].mT.to(dtype)  # (B, G, H/G, rows, 1)
        y = total[..., :0] @ v[..., :0, :].to(dtype)  # (B, G, H/G, rows, Dv)
        # Finite, since -inf - -inf would be NaN.
        largest = torch.full_like(total, torch.finfo(dtype).min)
        for b in range(0, j.shape[1], TILE):
            columns = slice(b, b + TILE)
            mask = mask_of(visible, i, j[:, columns], len(q))  # (1 or B, rows, columns)
            if not mask.any():
                continue
            scores = scaled_dot(q, k[..., columns, :].to(dtype))  # (B, G, H/G, rows, columns)
            bias = bias_of(visible, i, j[:, columns], q.flatten(1, 2))
            if bias is not None:
                scores = scores + bias.unflatten(0, q.shape[1:3])
            scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
            # A constant for the gradient: the result does not depend on it.
            new = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
            weights = (scores - new).exp()  # divided by their total at the end
            shrink = (largest - new).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            y = y * shrink + weights @ v[..., columns, :].to(dtype)
            largest = new
        return (y / total.masked_fill(total == 0, 1.0)).to(v.dtype)  # 0: it sees nothing


def fused(q, k, v, visible=causal, score=scaled_dot, normalize=softmax):
    """One kernel, F.scaled_dot_product_attention: FlashAttention where the device has it.

    A predicate with a window W (and G global positions) costs O(T·(W + G)) time and memory, unless
    it has a bias too.
    """
    Tq, Tk = check_shapes(q, k, v, visible)
    check_standard("fused", score is scaled_dot and normalize is softmax)
    exact = getattr(visible, "exact", False)
    window = getattr(visible, "window", Tk)
    n_global = min(getattr(visible, "n_global", 0), Tk)
    start = max(n_global, Tk - Tq + 1 - window)  # keys from n_global up to here are out of reach
    # The kernel's own causal mask is aligned to the top left: right only when Tq == Tk.
    is_causal = visible is causal and Tq == Tk

    # Many queries with a window: other keys are out of reach for each of them.
    if Tq > 1 and not is_causal and not hasattr(visible, "bias"):
        if exact and q.is_cuda and sdpa.has_flash(q, v):
            return sdpa.flash_window(q, k, v, window)
        if Tk - start > max(3 * window, 4 * sdpa.BLOCK):  # else a full mask is faster
            seen = functools.partial(mask_of, visible, B=len(q))
            return sdpa.windowed(q, k, v, seen, window, n_global)

    # Else one call of the kernel, without the keys that are out of reach.
    i, j = positions(Tq, Tk, q.device)
    if start > n_global:
        if n_global:
            near = torch.cat([j[0, :n_global], j[0, start:]])
            k, v, j = k.index_select(2, near), v.index_select(2, near), near[None]
        else:  # views
            k, v, j = k[:, :, start:], v[:, :, start:], j[:, start:]
    sees_all = visible is full or (exact and Tq == 1)
    mask = None
    if not (is_causal or sees_all):
        mask = mask_of(visible, i, j, len(q))[:, None]  # (1 or B, 1, Tq, Tk)
        bias = bias_of(visible, i, j, q)  # (H, Tq, Tk)
        if bias is not None:
            mask = torch.where(mask, bias, float("-inf"))
    if q.is_cuda:  # there are several kernels to choose from
        return sdpa.attend(q, k, v, mask, is_causal)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=True)


ATTENTION = {"naive": naive, "masked_fill": masked_fill, "tiled": tiled, "fused": fused}

# --------------------------------------------------------------------------------------------------
# Another function: linear attention. Replace exp(q·k) by feature(q)·feature(k), and the sum over
# the past becomes a matrix of constant size that each token adds to (Katharopoulos et al. 2020,
# arXiv:2006.16236).


def elu1(x):
    """elu(x) + 1: positive, and cheap."""
    return F.elu(x).add_(1)


def linear(q, k, v, feature=elu1, memory=None):
    """Causal attention with weights feature(q)·feature(k), normalized: (B, H, Tq, Dv).

    O(T) time and memory. memory: a LinearState, the sum of all that came before k and v; it is
    updated.
    """
    Tq, Tk = check_shapes(q, k, v, causal)
    past = memory.sum if memory is not None else None
    with torch.autocast(q.device.type, enabled=False):  # sums need float32
        y, past = chunked(q, share_heads(q, k), share_heads(q, v), feature, past)
    if memory is not None:
        memory.sum = past.detach()
        memory.length += Tk
    return y


def linear_step(q, k, v, state, feature=elu1):
    """One token of linear, q, k, v (B, H or G, 1, D or Dv): its output and the next state.

    state None: nothing came before.
    """
    Tq, Tk = check_shapes(q, k, v, causal)
    if Tk != 1:
        raise ValueError(f"linear_step takes one token, not {Tk}: use linear")
    dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        # v gets a column of ones that sums the weights.
        q, k, v = featured(q, share_heads(q, k), share_heads(q, v), feature)
        state = (0 if state is None else state) + k.mT @ v  # (B, H, features, Dv + 1)
        return normalized(q @ state).to(dtype), state


FEATURE = {  # name -> the feature for heads of size D
    "linear": lambda D: elu1,
    "performer": lambda D: positive_random_features(D, 4 * D),
}

# --------------------------------------------------------------------------------------------------
# Memory: keys and values of the past, so that a new token costs one row of attention instead of all
# rows.


def next_columns(cache, T):
    """Return the next T positions of a cache, a slice. ValueError if it has no room for them."""
    end = cache.length + T
    if end > cache.max_len:
        raise ValueError(
            f"the cache is full: {cache.length} of {cache.max_len} positions used, "
            f"no room for {T} more"
        )
    return slice(cache.length, end)


class KVCache:
    """Keys and values of one layer for up to max_len positions. For inference.

    A cache of your own offers the same: index(T), visible(predicate), append(k, v), reset, trim
    and select, its `len`, and `at`, `k` and `v` for a compiled step.

    append(k, v) with k (B, G, T, D) and v (B, G, T, Dv) writes them after what is there and returns
    all of it as views (B, G, len, ...): the k and v that a path takes with the T new queries. The
    memory is allocated once. Rotate before caching.

    It also knows what a decoding step must know about its batch: `padding` (B,), given to reset,
    how many positions at the beginning of each sequence hold no token; and `at` (1,), the next
    position as a tensor, during a compiled step. While `at` is set, append returns all max_len
    positions, so that shapes never change and a step is compiled once (as in gpt-fast).
    """

    def __init__(self, batch_size, n_kv_head, max_len, head_size, value_size=None):
        self.shape = (batch_size, n_kv_head, max_len, head_size, value_size or head_size)
        self.max_len = max_len
        self.k = None  # allocated by the first append, which knows the dtype and the device
        self.v = None
        self.reset()

    def __len__(self):
        return self.length

    def reset(self, padding=None):
        """Forget everything; the next batch has this padding. The memory stays where it is."""
        self.length = 0
        self.padding = padding
        self.at = None

    def trim(self, length):
        """Forget the positions from length on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot trim {self.length} positions to {length}")
        self.length = length

    def select(self, rows):
        """A cache of these rows (N,) of the batch, to continue one prompt in several ways."""
        other = copy.copy(self)
        if self.padding is not None:
            other.padding = self.padding[rows]
        other.k = self.k[rows]
        other.v = self.v[rows]
        return other

    def index(self, T):
        """Positions of the next T tokens, as an index: a slice, `at`, or (B, T) after padding."""
        columns = self.at
        if columns is None:  # else the length is no part of the compiled step
            columns = next_columns(self, T)
        if self.padding is None:
            return columns
        if self.at is None:
            columns = torch.arange(columns.start, columns.stop, device=self.padding.device)
        return (columns - self.padding[:, None]).clamp_min(0)

    def visible(self, predicate):
        """Return the predicate for what append returns.

        Padding is hidden, and in a compiled step the query is at position `at`.
        """
        if self.padding is not None:
            predicate = after_padding(predicate, self.padding)
        if self.at is not None:
            predicate = at_position(predicate, self.at)
        return predicate

    def append(self, k, v):
        if self.at is not None:
            return self.k.index_copy_(2, self.at, k), self.v.index_copy_(2, self.at, v)
        new = next_columns(self, k.shape[2])
        if self.k is None:
            B, G, max_len, D, Dv = self.shape
            self.k = k.new_zeros(B, G, max_len, D)
            self.v = v.new_zeros(B, G, max_len, Dv)
        self.k[:, :, new] = k.detach()
        self.v[:, :, new] = v.detach()
        self.length = new.stop
        return self.k[:, :, : self.length], self.v[:, :, : self.length]


class LinearState:
    """The memory of linear attention: one matrix per head, however long the past is.

    It has KVCache's reset, select and index.
    """

    def __init__(self, max_len):
        self.max_len = max_len
        self.reset()

    def reset(self, padding=None):
        """Forget everything."""
        if padding is not None:
            raise ValueError(
                "linear attention would add padding to its sum: give sequences of one length"
            )
        self.length = 0
        self.sum = None  # (B, H, features, Dv + 1)

    def select(self, rows):
        """A state of these rows (N,) of the batch."""
        other = copy.copy(self)
        other.sum = self.sum[rows]
        return other

    def index(self, T):
        """Positions of the next T tokens."""
        return next_columns(self, T)


# --------------------------------------------------------------------------------------------------
# The modules only project; the maths is above.


def check_mechanism(attention, score, normalize, window, visible):
    """ValueError for a mechanism that does not exist, or that this path cannot compute."""
    predicate(visible)
    choose("attention", attention, ATTENTION | FEATURE)
    choose("score", score, SCORE)
    choose("normalize", normalize, NORMALIZE)
    if attention not in ("naive", "masked_fill"):
        check_standard(attention, score == "scaled_dot" and normalize == "softmax")
    if attention in FEATURE and (window or visible != "causal"):
        raise UserError(
            f"attention={attention!r} sees all of the past: give window=0 and leave visible out, "
            "or choose another"
        )


class SelfAttention(nn.Module):
    """(B, T, n_embd) -> (B, T, n_embd): n_head query heads over n_kv_head key/value heads.

    Causal, as in a GPT; with visible="full" as in an encoder, such as BERT or ViT, where window is
        on both sides; with visible="two_sided:W,G" as in Longformer.
    n_kv_head: n_head if None. head_size: D, if it is not n_embd / n_head. value_size: Dv, if not D.
    attention: a path in ATTENTION, which all compute the same function, or linear attention with
        one of the features in FEATURE.
    visible: a predicate in VISIBLE, full or two_sided. window, if any: it sees the last `window`
        positions only.
    qk_norm: a function of all queries and keys (B, T, heads, D), such as RMSNorm, which bounds the
        scores at high learning rates (Henry et al. 2020, arXiv:2010.04245).
    dropout: acts on the output.
    """

    def __init__(
        self,
        n_embd,
        n_head,
        n_kv_head=None,
        *,
        head_size=None,
        value_size=None,
        bias=False,
        qkv_bias=False,
        dropout=0.0,
        qk_norm=None,
        window=None,
        visible="causal",
        attention="fused",
        score="scaled_dot",
        normalize="softmax",
    ):
        super().__init__()
        check_mechanism(attention, score, normalize, window, visible)
        self.n_head = n_head
        self.n_kv_head = G = n_kv_head or n_head
        self.head_size = D = head_size or n_embd // n_head
        self.value_size = Dv = value_size or D
        self.mask = seen = predicate(visible)  # a module, if its bias is learned
        bias_of(seen, *positions(1, 1), torch.empty(1, n_head, 1, 1))  # refuses another n_head
        if window and seen in (causal, full):
            seen = {causal: sliding_window, full: two_sided}[seen](window)
        elif window or isinstance(seen, nn.Module):  # `both` keeps the module out of self.visible
            seen = both(seen, sliding_window(window) if window else causal)
        self.visible = seen

        widths = [n_head * D, G * D, G * Dv]
        self.c_attn = nn.Linear(n_embd, sum(widths), bias=bias or qkv_bias)
        self.c_attn.parts = widths  # three matrices on top of each other: see Muon
        self.c_proj = nn.Linear(n_head * Dv, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.qk_norm = qk_norm

        self.attention = ATTENTION.get(attention)
        self.feature = None if self.attention else FEATURE[attention](D)
        self.score = SCORE[score](D)
        self.normalize = NORMALIZE[normalize]

    def forward(self, x, rope=None, cache=None):
        """rope: (cos, sin) rows for these T positions, or None.

        cache: from new_cache; PackedDocuments, which keep the documents of a batch apart; or None.
        """
        return self.dropout(self.c_proj(self.attend(x, rope, cache)))

    def heads(self, x, rope):
        """Queries, keys and values of x: (B, H, T, D), (B, G, T, D) and (B, G, T, Dv)."""
        H, G, D, Dv = self.n_head, self.n_kv_head, self.head_size, self.value_size
        qk, v = self.c_attn(x).split([(H + G) * D, G * Dv], dim=2)
        qk = qk.unflatten(2, (H + G, D))  # (B, T, heads, D)
        if self.qk_norm:
            qk = self.qk_norm(qk)
        if rope is not None:
            cos, sin = rope
            qk = rotate(qk, cos[..., None, :], sin[..., None, :])
        q, k = qk.transpose(1, 2).split([H, G], dim=1)
        return q, k, v.unflatten(2, (G, Dv)).transpose(1, 2)

    def attend(self, x, rope, cache):
        """Return the heads' outputs, concatenated (B, T, H * Dv), before they are projected."""
        q, k, v = self.heads(x, rope)
        if self.feature:
            y = linear(q, k, v, self.feature, cache)
        else:
            visible = self.visible
            if cache is not None:
                visible = cache.visible(visible)
                k, v = cache.append(k, v)
            y = self.attention(q, k, v, visible, self.score, self.normalize)  # (B, H, T, Dv)
        return y.transpose(1, 2).flatten(2)  # (B, T, H * Dv)

    def flops(self, T):
        """Return the operations of training on one token of T, without those of the weights."""
        if self.feature:
            keys = self.feature(torch.zeros(1, self.head_size)).shape[1]
        else:
            keys = mean_keys(self.visible, T)
        return 6 * self.n_head * (self.head_size + self.value_size) * keys

    def new_cache(self, batch_size, max_len):
        """An empty memory of this layer: a KVCache or a LinearState; ValueError for an encoder."""
        if sees_ahead(self.visible):
            raise ValueError("without a mask each token sees later ones: there is no cache")
        if self.feature:
            return LinearState(max_len)
        return KVCache(batch_size, self.n_kv_head, max_len, self.head_size, self.value_size)


CausalSelfAttention = SelfAttention  # nanoGPT's name


class CrossAttention(nn.Module):
    """Queries from x (B, T, n_embd), keys and values from memory (B, S, n_embd).

    A decoder looks at an encoder through it. visible(i, j) says which position of the memory each
    query may see: full, or present(real) in a padded batch. Keys and values of a memory that does
    not change are computed once, by project(memory), and given instead of it. head_size: D, if it
    is not n_embd / n_head. value_size: Dv, if not D.
    """

    def __init__(
        self,
        n_embd,
        n_head,
        *,
        head_size=None,
        value_size=None,
        bias=False,
        dropout=0.0,
        attention="fused",
    ):
        super().__init__()
        self.attention = choose("attention", attention, ATTENTION)
        self.n_head = n_head
        D = head_size or n_embd // n_head
        self.widths = [n_head * D, n_head * (value_size or D)]
        self.c_q = nn.Linear(n_embd, n_head * D, bias=bias)
        self.c_kv = nn.Linear(n_embd, sum(self.widths), bias=bias)
        self.c_proj = nn.Linear(self.widths[1], n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def project(self, memory):
        """Keys (B, H, S, D) and values (B, H, S, Dv) of a memory (B, S, n_embd)."""
        k, v = self.c_kv(memory).split(self.widths, dim=2)
        return [x.unflatten(2, (self.n_head, -1)).transpose(1, 2) for x in (k, v)]

    def forward(self, x, memory, visible=full):
        k, v = self.project(memory) if torch.is_tensor(memory) else memory
        q = self.c_q(x).unflatten(2, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
        y = self.attention(q, k, v, visible)
        return self.dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


if __name__ == "__main__":
    runpy.run_module("tools.portrait", run_name="__main__")
