"""The kernels of attention.fused, one for each device and kind of mask.

    CPU       F.scaled_dot_product_attention; a window in blocks
    GPU       FlashAttention without a mask, also for windows; the memory-efficient kernel with one
    compiled  on a GPU: one query in three generated kernels

All compute softmax(q·k / sqrt(D)) v, q (B, H, Tq, D), k (B, G, Tk, D), v (B, G, Tk, Dv), with a
mask, bool or to be added, as F.scaled_dot_product_attention takes it. A query that sees nothing
gets zeros.
`seen(i, j)` is a predicate's bool mask, (1 or B, *common shape of i and j).
"""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling
from torch.nn.attention import SDPBackend, sdpa_kernel

# --------------------------------------------------------------------------------------------------
# The choice

NOT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(q, k, v, mask=None, causal=False):
    """F.scaled_dot_product_attention with shared heads, by the best kernel of the device.

    On a GPU this is FlashAttention, or else the memory-efficient kernel, which shares no heads.
    PyTorch's slow path, which computes all scores, remains for float64, for bfloat16 before Ampere,
    and for a mask and heads of a size that is no multiple of 8.
    """
    if q.is_cuda:
        if q.shape[2] == 1 and is_compiling() and mask is not None:
            return one_query_compiled(q, k, v, mask)
        if mask is not None or not has_flash(q, v):
            k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    # cuDNN's kernel, PyTorch's first choice from Hopper on, is planned again for each shape. So
    # only training may use it, because its shape doesn't change.
    is_training = causal and torch.is_grad_enabled()
    with sdpa_kernel(NOT_CUDNN) if q.is_cuda and not is_training else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)


def has_flash(q, v):
    """Return whether FlashAttention takes q and v, which are on a GPU.

    It needs a GPU of compute capability 8.0 or above, half precision, heads of a multiple of 8 that
    fit any GPU's memory in the backward pass, and values as wide as keys.
    """
    D = q.shape[-1]
    if q.itemsize != 2 or D % 8 or D > 192 or D != v.shape[-1]:
        return False
    return torch.cuda.get_device_capability(q.device) >= (8, 0)


def repeat_heads(x, H):
    """Return keys or values (·, G, ...) with each head repeated for the H / G queries it serves."""
    G = x.shape[1]
    return x.repeat_interleave(H // G, dim=1) if H > G else x


# --------------------------------------------------------------------------------------------------
# One query: a token that is decoded.


def one_query_compiled(q, k, v, mask):
    """Return attention of q (B, H, 1, D), as sums that torch.compile turns into three kernels.

    They divide the keys among all of a GPU's multiprocessors. A fused kernel gives one of them all
    keys of a head, and so leaves most of the GPU idle in a small batch. Half precision is computed
    in float32.
    """
    B, H, _, D = q.shape
    G = k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    queries = q.to(wide).view(B, G, H // G, 1, D)
    keys = k.to(wide)[:, :, None]  # (B, G, 1, Tk, D)
    values = v.to(wide)[:, :, None]
    scores = (queries * keys).sum(-1)  # (B, G, H / G, Tk)
    scores = scores.view(B, H, 1, -1) / math.sqrt(D)
    if mask.dtype != torch.bool:
        scores = scores + mask
        mask = mask > float("-inf")
    # Softmax of a row of nothing but -inf is NaN: the second fill makes it zeros.
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0.0)
    weights = weights.view(B, G, H // G, -1, 1)
    y = (weights * values).sum(-2)  # (B, G, H / G, Dv)
    return y.view(B, H, 1, -1).to(q.dtype)


# --------------------------------------------------------------------------------------------------
# Windows by FlashAttention: on a GPU


def flash_window(q, k, v, window):
    """Return attention to the last `window` keys by FlashAttention, which skips all others."""
    from torch.nn.attention.varlen import varlen_attn  # takes a second

    B, H, Tq, _ = q.shape
    Tk = k.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T, heads, D)
    k, v = repeat_heads(k, H), repeat_heads(v, H)  # PyTorch 2.11 shares none here
    numbers = torch.arange(B + 1, dtype=torch.int32, device=q.device)
    ends_q = numbers * Tq  # where each sequence begins and ends
    ends_k = numbers * Tk
    y = varlen_attn(q, k, v, ends_q, ends_k, Tq, Tk, window_size=(window - 1, 0))
    return y.unflatten(0, (B, Tq)).transpose(1, 2)


# --------------------------------------------------------------------------------------------------
# Windows: O(T·W) on every device. The Tq queries are cut into N blocks of S. Each block attends to
# the K keys that it can reach: the global ones, those before the block that its window covers, and
# its own S. So T·K scores are computed, forward and backward, instead of T².

BLOCK = 64  # queries in a block: with more, more keys are out of reach; with fewer, products shrink


def windowed(q, k, v, seen, window, n_global):
    """Return attention to the last `window` keys and the first `n_global`: (B, H, Tq, D)."""
    B, _, Tq, _ = q.shape
    Tk = k.shape[2]
    device = q.device
    # Fewer and larger blocks suit a GPU.
    S = max(BLOCK, window // 4 if device.type == "cpu" else window)
    N = -(-Tq // S)  # rounded up
    before = -(-(window - 1) // S) * S

    # Blocks end where the sequence ends, and may begin before it.
    i = torch.arange(Tk - N * S, Tk, device=device).view(N, S, 1)
    j = i[:, :1] + torch.arange(-before, S, device=device)
    global_j = torch.arange(n_global, device=device).expand(N, 1, n_global)
    # A global key may also be in the window: it counts once.
    is_counted = torch.cat([global_j < j[..., :1], j >= 0], dim=2)
    j = torch.cat([global_j, j], dim=2)
    mask = seen(i.clamp_min(0), j.clamp_min(0)) & is_counted  # (1 or B, N, S, K)
    mask = mask.expand(B, -1, -1, -1).flatten(0, 1)[:, None]  # (B * N, 1, S, K)

    def within_reach(x):
        """Return keys or values of each block, (B, G, N, K, D); zeros for positions before 0."""
        near = last_positions(x, before + N * S)
        near = near.unfold(2, before + S, S).mT  # overlapping views
        if not n_global:
            return near
        first = x[:, :, None, :n_global]
        first = first.expand(-1, -1, N, -1, -1)
        return torch.cat([first, near], dim=3)

    q = last_positions(q, N * S).unflatten(2, (N, S))  # (B, H, N, S, D)
    blocks = (q, within_reach(k), within_reach(v))
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in blocks)  # (B * N, heads, S or K, D)
    y = attend(q, k, v, mask)
    y = y.unflatten(0, (B, N)).transpose(1, 2)  # (B, H, N, S, D)
    return y.flatten(2, 3)[:, :, -Tq:]


def last_positions(x, length):
    """Return the last positions of x (B, heads, T, D), with zeros in front if it has fewer."""
    missing = length - x.shape[2]
    if missing > 0:
        return F.pad(x, (0, 0, missing, 0))
    return x[:, :, -length:]
