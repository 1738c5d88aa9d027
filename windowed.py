"""Windows at the cost of a window: how attention.fused keeps sliding_window and local_global at O(T·W) on every device.

The queries are cut into N blocks of S. Each block stands beside the K keys that it can reach: the first ones, those
before the block that its window covers, and its own S. So T·K scores are made, forward and backward, and not T².
This is engineering, to be skipped at a first reading: what it computes, attention.py says.
"""

import math

import torch
import torch.nn.functional as F

from byhand import once_differentiable

BLOCK = 64  # queries in a block: more of them reach keys in vain, fewer do not keep a processor busy


def attend(q, k, v, mask_of, window, first):
    """softmax(q·k / sqrt(D)) v over the last `window` keys and the first `first`: (B, H, Tq, D), as attention.fused.

    mask_of(i, j) is the predicate's bool mask, (1 or B, *shape of i and j together).
    """
    B, H, Tq, D = q.shape
    Tk = k.shape[2]
    plain = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)  # see Banded
    S = BLOCK if plain else max(BLOCK, window)  # a kernel gets whole windows at a time
    N, before = -(-Tq // S), -(-(window - 1) // S) * S
    length = before + N * S

    # Blocks end where the sequence ends, and may begin before it.
    i = torch.arange(Tk - N * S, Tk, device=q.device).view(N, S, 1)
    j = i[:, :1] + torch.arange(-before, S, device=q.device)
    firsts = torch.arange(first, device=q.device).expand(N, 1, first)
    counted = torch.cat([firsts < j[..., :1], j >= 0], dim=2)  # a first key may be in the window too: count it there only
    mask = mask_of(i.clamp_min(0), torch.cat([firsts, j.clamp_min(0)], dim=2)) & counted  # (1 or B, N, S, K)

    def within_reach(x):  # zeros stand for what is before the beginning
        last = x[:, :, -length:] if length < Tk else F.pad(x, (0, 0, length - Tk, 0))
        return torch.cat([x[:, :, :first], last], dim=2) if first else last

    q = (F.pad(q, (0, 0, N * S - Tq, 0)) if N * S > Tq else q).unflatten(2, (N, S))  # (B, H, N, S, D)
    k, v = within_reach(k), within_reach(v)  # (B, G, first + length, D)
    if plain:
        blind = ~mask.amax(-1, keepdim=True)
        if some_blind := bool(blind.any()):  # rows that see nothing look at everything, and are made zero after that
            mask = mask | blind
        y = Banded.apply(q, k, v, torch.where(mask, 0.0, float("-inf")).to(q.dtype), first)
        y = y.masked_fill(blind[:, None], 0.0) if some_blind else y
    else:
        seen = (q, windows(k, S, mask.shape[-1], first), windows(v, S, mask.shape[-1], first))
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in seen)  # (B·N, heads, S or K, D)
        mask = mask.expand(B, -1, -1, -1).flatten(0, 1)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).unflatten(0, (B, N)).transpose(1, 2)
    return y.flatten(2, 3)[:, :, -Tq:]


def windows(x, S, K, first):
    """The K keys of each block, from what is within reach x (..., first + length, D): (..., N, K, D), views that overlap."""
    sliding = x[..., first:, :].unfold(-2, K - first, S).mT
    return torch.cat([x[..., None, :first, :].expand(*sliding.shape[:-2], -1, -1), sliding], dim=-2) if first else sliding


class Banded(torch.autograd.Function):
    """softmax(q·k / sqrt(D) + bias) v over windows, as plain products, one head at a time: on a CPU faster than the kernel.

    q (B, H, N, S, D), k, v (B, G, first + length, D), bias (1 or B, N, S, K). Scores are written to the same memory for
    each head, since new memory costs as much as a product. The weights, K for each query, are kept for the backward pass.
    """

    @staticmethod
    def heads(q, k):
        """(sequence, query head, the key/value head that it shares) of all."""
        B, H, G = *q.shape[:2], k.shape[1]
        return [(b, h, h * G // H) for b in range(B) for h in range(H)]

    @staticmethod
    def forward(ctx, q, k, v, bias, first):
        S, D, K = *q.shape[-2:], bias.shape[-1]
        y, scores, kept = torch.empty_like(q), q.new_empty(bias.shape[1:]), []
        for b, h, g in Banded.heads(q, k):
            keys, values = windows(k[b, g], S, K, first), windows(v[b, g], S, K, first)
            torch.baddbmm(bias[b % len(bias)], q[b, h], keys.mT, alpha=1 / math.sqrt(D), out=scores)
            weights = scores.softmax(-1)  # (N, S, K)
            torch.bmm(weights, values, out=y[b, h])
            if any(ctx.needs_input_grad):
                kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.first = first
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        q, k, v, *kept = ctx.saved_tensors
        N, S, D = q.shape[-3:]
        K, first = kept[0].shape[-1], ctx.first
        dq, dk, dv, dscores = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.empty_like(kept[0])

        def gather(dx, weights, x):
            """Add to each key's gradient dx the x of all queries that looked at it."""
            dx[:first].addmm_(weights[..., :first].flatten(0, 1).mT, x.flatten(0, 1))
            for c in range(0, K - first, S):  # columns c to c + S of all windows are the keys from row c on
                rows = dx[first + c : first + c + N * S].unflatten(0, (N, S))
                rows.baddbmm_(weights[..., first + c : first + c + S].mT, x)

        for (b, h, g), weights in zip(Banded.heads(q, k), kept):
            gather(dv[b, g], weights, dy[b, h])
            torch.bmm(dy[b, h], windows(v[b, g], S, K, first).mT, out=dscores)
            torch.ops.aten._softmax_backward_data.out(dscores, weights, -1, dscores.dtype, grad_input=dscores)
            torch.bmm(dscores, windows(k[b, g], S, K, first), out=dq[b, h])
            gather(dk[b, g], dscores, q[b, h])
        return dq.div_(math.sqrt(D)), dk.div_(math.sqrt(D)), dv, None, None
