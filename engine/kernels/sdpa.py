"""The kernels of attention.fused: which of them computes what, on which device.

    CPU       F.scaled_dot_product_attention; one query by itself; a window in blocks
    GPU       FlashAttention without a mask, also for windows; the memory-efficient kernel with one
    compiled  on a GPU: FlexAttention for predicates, one query in three generated kernels

All compute softmax(q·k / sqrt(D)) v, q (B, H, Tq, D), k and v (B, G, Tk, D), with a mask, bool or to be added, as
F.scaled_dot_product_attention takes it. A query that sees nothing gets zeros.
"""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FLEX = 128  # queries and keys in a block of FlexAttention
NOT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(q, k, v, mask=None, causal=False):
    """F.scaled_dot_product_attention with shared heads, by what the device has for it."""
    if q.shape[2] == 1 and q.device.type == "cpu" and q.itemsize >= 4:
        return one_query(q, k, v, mask)
    if q.shape[2] == 1 and q.is_cuda and torch.compiler.is_compiling():
        return one_query_compiled(q, k, v, mask)
    if q.is_cuda:
        return attend_on_gpu(q, k, v, mask, causal)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)


def attend_on_gpu(q, k, v, mask, causal):
    """The same, not by PyTorch's slow path, which computes all scores, but in float64, or bfloat16 before Ampere.

    What FlashAttention cannot do is left to the memory-efficient kernel, which knows neither shared heads nor head sizes that
    are no multiple of 8. cuDNN's kernel, PyTorch's first choice from Hopper on, is planned anew for each shape: it may only do
    training, whose shape does not change.
    """
    B, H, Tq, D = q.shape
    G, Tk = k.shape[1:3]
    if mask is not None or not has_flash(q):
        if (
            Tq == 1
        ):  # instead of H / G copies of all keys, the heads that share them are H / G queries
            q = q.reshape(B, G, H // G, D)
            if mask is not None and mask.shape[-3] == H:
                mask = mask.reshape(*mask.shape[:-3], G, H // G, Tk)
        elif H > G:
            k, v = k.repeat_interleave(H // G, dim=1), v.repeat_interleave(H // G, dim=1)
        if D % 8:
            q, k, v = (F.pad(x, (0, -D % 8)) for x in (q, k, v))
    with nullcontext() if causal and torch.is_grad_enabled() else sdpa_kernel(NOT_CUDNN):
        y = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, scale=1 / math.sqrt(D), enable_gqa=True
        )
    return y[..., :D].reshape(B, H, Tq, D)


def has_flash(q):
    """Whether FlashAttention takes q, on a GPU: half precision, compute capability 8.0 or above, heads that fit its memory."""
    capability = torch.cuda.get_device_capability(q.device)
    most = (
        256 if capability == (8, 0) or capability[0] in (9, 10) else 192
    )  # features of a head in the backward pass
    return q.itemsize == 2 and capability >= (8, 0) and q.shape[-1] <= most


def sparse_on_gpu(q, k, visible):
    """What computes a predicate without a bias faster than a kernel that reads a mask, on a GPU: window, flex, or None."""
    if not q.is_cuda or q.shape[2] == 1:
        return None
    if getattr(visible, "exact", False) and has_flash(q) and q.shape[-1] % 8 == 0:
        return window
    # Only what is compiled around it compiles FlexAttention; blocks pay if some of them see nothing.
    return flex if torch.compiler.is_compiling() and k.shape[2] > 2 * FLEX and has_flex(q) else None


def has_flex(q):
    """Whether FlexAttention takes q: its blocks must fit a multiprocessor's shared memory, or the compiler gives up.

    PyTorch chooses their sizes for each kind of GPU, and rounds heads up to a power of two. What the compiler then needs, in
    PyTorch 2.11 and 2.13, is within 512 rows on the GPUs that have little.
    """
    row = q.itemsize * 2 ** (q.shape[-1] - 1).bit_length()
    memory = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin
    return q.itemsize <= 4 and q.shape[-1] >= 16 and 512 * row <= memory


def window(q, k, v, visible, seen):
    """The last visible.window keys, or all of the past, by FlashAttention, which skips the others."""
    from torch.nn.attention.varlen import varlen_attn  # here, since that takes a second

    B, Tq, Tk = len(q), q.shape[2], k.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B·T, heads, D)
    ends = [torch.arange(0, B * T + 1, T, dtype=torch.int32, device=q.device) for T in (Tq, Tk)]
    before = getattr(visible, "window", 0) - 1  # -1: all
    shared = (
        {"enable_gqa": True} if "enable_gqa" in varlen_attn.__kwdefaults__ else {}
    )  # before PyTorch 2.13 without asking
    return (
        varlen_attn(q, k, v, *ends, Tq, Tk, window_size=(before, 0), **shared)
        .unflatten(0, (B, Tq))
        .transpose(1, 2)
    )


def flex(q, k, v, visible, seen):
    """Any predicate, by FlexAttention (Dong et al. 2024, arXiv:2412.05496), which skips blocks in which nothing is visible.

    It reads the whole mask, a byte for each pair, where a block is visible in part: not every predicate, such as one that looks
    positions up in a table, can be asked about one pair at a time. Mask and blocks are made once for all layers, since the
    compiler computes nothing twice.
    """
    from torch.nn.attention.flex_attention import flex_attention  # here, since that takes a second

    Tq, Tk = q.shape[2], k.shape[2]
    i, j = (
        torch.arange(Tk - Tq, Tk, device=q.device)[:, None],
        torch.arange(Tk, device=q.device)[None],
    )
    return flex_attention(q, k, v, block_mask=blocks_of(seen(i, j)), enable_gqa=True)


def blocks_of(mask):
    """FlexAttention's form of a mask (1 or B, Tq, Tk): its create_block_mask cannot be traced in activation checkpointing."""
    from torch.nn.attention.flex_attention import BlockMask

    _, Tq, Tk = mask.shape
    padded = (
        F.pad(mask, (0, -Tk % FLEX, 0, -Tq % FLEX))
        .unflatten(2, (-1, FLEX))
        .unflatten(1, (-1, FLEX))
    )
    pairs = padded.sum((2, 4), dtype=torch.int32)[
        :, None
    ]  # how many are visible, (1 or B, 1, Tq / FLEX, Tk / FLEX)
    lists = []  # of the blocks that are visible in part, and of those as a whole: how many, and which come first
    for kind in (0 < pairs) & (pairs < FLEX**2), pairs == FLEX**2:
        lists += (
            kind.sum(-1, dtype=torch.int32),
            kind.int().argsort(dim=-1, descending=True, stable=True).int(),
        )
    # In this layout, and not in one that the compiler chooses later: it cannot read such a tensor within FlexAttention.
    mask = mask.clone().as_strided(mask.shape, (Tq * Tk, Tk, 1))
    one = mask[0]
    seen = (lambda b, h, a, j: mask[b, a, j]) if len(mask) > 1 else (lambda b, h, a, j: one[a, j])
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=FLEX, mask_mod=seen, seq_lengths=(Tq, Tk))


def one_query(q, k, v, mask):
    """F.scaled_dot_product_attention for q (B, H, 1, D), as fast on a CPU, and the same bits in any number of threads.

    PyTorch's kernel divides the keys of a single query among its threads.
    """
    B, H, _, D = q.shape
    G, Tk = k.shape[1:3]
    q, k, v = q.reshape(B * G, H // G, D), k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=1 / math.sqrt(D)).view(
        B, H, 1, Tk
    )
    weights = softmax_of_seen(scores, mask)
    return torch.bmm(weights.view(B * G, H // G, Tk), v).view(B, H, 1, D)


def softmax_of_seen(scores, mask):
    """Weights (B, H, Tq, Tk) of scores; mask: bool, or what to add, or None."""
    if mask is None:
        return scores.softmax(-1)
    hidden, scores = (
        (~mask, scores) if mask.dtype == torch.bool else (mask == float("-inf"), scores + mask)
    )
    # Softmax of a row of nothing but -inf is NaN; the second fill makes it zeros, and the first its gradient.
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).masked_fill(hidden, 0.0)


def one_query_compiled(q, k, v, mask):
    """The same, as sums that torch.compile makes three kernels of, which divide the keys among all of a GPU's multiprocessors.

    A fused kernel gives one multiprocessor all keys of a head, which for a small batch leaves most of the GPU idle. Half
    precision is computed in float32.
    """
    B, H, _, D = q.shape
    G, dtype = k.shape[1], q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    q, k, v = (
        q.to(wide).view(B, G, H // G, 1, D),
        k.to(wide)[:, :, None],
        v.to(wide)[:, :, None],
    )  # (B, G, 1, Tk, D)
    scores = (q * k).sum(-1).view(B, H, 1, -1) / math.sqrt(D)
    weights = softmax_of_seen(scores, mask).view(B, G, H // G, -1, 1)
    return (weights * v).sum(-2).view(B, H, 1, D).to(dtype)


# ---- Windows: O(T·W) on every device
# The queries are cut into N blocks of S. Each block attends to the K keys that it can reach: the global ones, those before
# the block that its window covers, and its own S. So T·K scores are computed, forward and backward, instead of T².

BLOCK = 64  # queries in a block: with more, more keys are out of reach; with fewer, the products are too small


def windowed(q, k, v, mask_of, window, n_global):
    """softmax(q·k / sqrt(D)) v over the last `window` keys and the first `n_global`: (B, H, Tq, D), as attention.fused.

    mask_of(i, j) is the predicate's bool mask, (1 or B, *common shape of i and j).
    """
    B, _, Tq, _ = q.shape
    Tk = k.shape[2]
    S = max(
        BLOCK, window // 4 if q.device.type == "cpu" else window
    )  # a GPU wants fewer and larger blocks
    N, before = -(-Tq // S), -(-(window - 1) // S) * S
    length = before + N * S

    # Blocks end where the sequence ends, and may begin before it.
    i = torch.arange(Tk - N * S, Tk, device=q.device).view(N, S, 1)
    j = i[:, :1] + torch.arange(-before, S, device=q.device)
    global_j = torch.arange(n_global, device=q.device).expand(N, 1, n_global)
    counted = torch.cat(
        [global_j < j[..., :1], j >= 0], dim=2
    )  # a global key may also be in the window: count it once
    mask = (
        mask_of(i.clamp_min(0), torch.cat([global_j, j], dim=2).clamp_min(0)) & counted
    )  # (1 or B, N, S, K)

    def within_reach(x):
        """The keys or values of each block, (B, G, N, K, D); zeros stand for positions before the beginning."""
        last = x[:, :, -length:] if length < Tk else F.pad(x, (0, 0, length - Tk, 0))
        near = last.unfold(2, before + S, S).mT  # overlapping views
        return (
            torch.cat([x[:, :, None, :n_global].expand(-1, -1, N, -1, -1), near], dim=3)
            if n_global
            else near
        )

    q = (F.pad(q, (0, 0, N * S - Tq, 0)) if N * S > Tq else q).unflatten(
        2, (N, S)
    )  # (B, H, N, S, D)
    q, k, v = (
        x.transpose(1, 2).flatten(0, 1) for x in (q, within_reach(k), within_reach(v))
    )  # (B·N, heads, S or K, D)
    mask = mask.expand(B, -1, -1, -1).flatten(0, 1)[:, None]
    y = attend(q, k, v, mask)
    return y.unflatten(0, (B, N)).transpose(1, 2).flatten(2, 3)[:, :, -Tq:]
