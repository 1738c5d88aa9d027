"""Operations with a hand-written backward pass, where autograd's own would read and write memory more often than needed.

A small model spends more time on moving numbers than on multiplying them. What each function computes is one line of its
docstring; tests/test_kernels.py compares values and gradients with autograd's. Skip this file at a first reading.
"""

import functools
import itertools
import math

import torch
import torch.nn.functional as F


def once_differentiable(backward):
    """Refuse a second derivative, which would be silently wrong (torch's own decorator misses torch.autograd.grad)."""

    @functools.wraps(backward)
    def first_only(ctx, *gradients):
        if torch.is_grad_enabled():
            raise RuntimeError(f"{backward.__qualname__} has no second derivative: leave out create_graph=True")
        return backward(ctx, *gradients)

    return first_only


# --------------------------------------------------------------------------------------------------
# RMS norm, squared ReLU, and the loss of the head


def rms_norm(x):
    """x / rms(x) over the last dimension, as F.rms_norm (Zhang & Sennrich 2019, arXiv:1910.07467). Keeps the dtype of x."""
    if x.is_cuda or not torch.is_grad_enabled():  # on CUDA F.rms_norm is a single kernel
        return F.rms_norm(x, x.shape[-1:]).type_as(x)
    return RMSNorm.apply(x)


class RMSNorm(torch.autograd.Function):
    """With r = 1 / rms(x): y = r·x and dx = r·(dy - y·mean(y·dy)). 2.5 times as fast as autograd on a CPU."""

    @staticmethod
    def forward(ctx, x):
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        r = norm.square_().div_(x.shape[-1]).add_(torch.finfo(norm.dtype).eps).rsqrt_().to(x.dtype)
        y = x * r
        ctx.save_for_backward(y, r)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        y, r = ctx.saved_tensors
        mean = torch.linalg.vecdot(y, dy).div_(y.shape[-1])[..., None]
        return torch.addcmul(dy, y, mean, value=-1).mul_(r)


def relu2(x):
    """max(x, 0)² (Primer, So et al. 2021, arXiv:2109.08668)."""
    return ReLU2.apply(x) if torch.is_grad_enabled() else F.relu(x).square_()


class ReLU2(torch.autograd.Function):
    """With r = max(x, 0): y = r² and dx = 2·r·dy, in one pass. 1.5 to 3.5 times as fast as autograd on a CPU."""

    @staticmethod
    def forward(ctx, x):
        r = F.relu(x)
        ctx.save_for_backward(r)
        return r * r

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (r,) = ctx.saved_tensors
        return torch.addcmul(dy.new_zeros(()), r, dy, value=2)


MAX_LOGITS_CPU, MAX_LOGITS_GPU = 2**24, 2**27  # that linear_cross_entropy holds at a time (64 and 512 MB in float32)
LOSS_SCALE = 1024.0  # of the logits' gradients: avoids float16 underflow once they are divided by the number of tokens


def linear_cross_entropy(x, weight, targets):
    """Mean cross-entropy in nats of the logits x @ weight^T, x (N, C), weight (V, C), at targets (N,); -1 is ignored.

    Computed in chunks of rows, each with its gradient at once: for GPT-2's vocabulary, all N x V logits would be most of
    the memory of a training step. Its backward pass can run only once. The same as F.linear_cross_entropy of PyTorch
    2.13, for every version of PyTorch and under torch.compile.
    """
    return LinearCrossEntropy.apply(x, weight, targets, torch.is_grad_enabled())


class LinearCrossEntropy(torch.autograd.Function):
    """Gradients are computed in the forward pass, while the logits exist, and scaled in the backward pass."""

    @staticmethod
    def forward(ctx, x, weight, targets, with_gradients):
        wide = torch.promote_types(x.dtype, torch.float32)  # half precision is too coarse for a loss
        total, count = torch.zeros((), dtype=wide, device=x.device), (targets >= 0).sum(dtype=wide)
        dx, dweight = (torch.zeros_like(x), torch.zeros_like(weight)) if with_gradients else (None, None)
        rows = max(1, (MAX_LOGITS_GPU if x.is_cuda else MAX_LOGITS_CPU) // len(weight))
        dx_chunks = dx.split(rows) if with_gradients else itertools.repeat(None)
        for x_chunk, target, dx_chunk in zip(x.split(rows), targets.split(rows), dx_chunks):
            logits = F.linear(x_chunk, weight)
            half, logits = logits.dtype, logits.to(wide)
            ignored, target = (target < 0)[:, None], target.clamp_min(0)[:, None]
            log_sum = logits.logsumexp(-1, keepdim=True)
            total += (log_sum - logits.gather(1, target)).masked_fill(ignored, 0).sum()
            if with_gradients:
                dlogits = logits.sub_(log_sum).exp_()  # softmax, minus 1 at the target
                dlogits = dlogits.scatter_add_(1, target, dlogits.new_full(target.shape, -1)).masked_fill_(ignored, 0)
                dlogits = dlogits.mul_(LOSS_SCALE / count).to(half)
                dx_chunk.copy_(dlogits @ weight)
                if half == dweight.dtype:
                    dweight.addmm_(dlogits.mT, x_chunk)
                else:
                    dweight += dlogits.mT @ x_chunk
        if with_gradients:
            ctx.save_for_backward(dx, dweight)
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        dx, dweight = ctx.saved_tensors
        return dx.mul_(dloss / LOSS_SCALE), dweight.mul_(dloss / LOSS_SCALE), None, None


# --------------------------------------------------------------------------------------------------
# The backward pass of attention.tiled


def tiled_gradients(dy, q, k, v, y, log_total, tiles):
    """Gradients of q (B, H, Tq, D) and k, v (B, G, Tk, D) from the tensors that attention.Tiled.forward saved.

    The weights of each tile are computed again, from the logarithm of their sum over all keys.
    """
    wide = log_total.dtype
    dy = dy.reshape(y.shape).to(wide)
    dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
    mean = (dy * y).sum(-1, keepdim=True)  # what softmax subtracts from the gradient of each weight
    scale = 1 / math.sqrt(q.shape[-1])
    for rows, columns, bias in tiles:
        q_tile, k_tile, v_tile = (x.to(wide) for x in (q[..., rows, :], k[..., columns, :], v[..., columns, :]))
        weights = (scale * q_tile @ k_tile.mT + bias - log_total[..., rows, :]).exp()
        dscores = weights * (dy[..., rows, :] @ v_tile.mT - mean[..., rows, :]) * scale
        dq[..., rows, :] += dscores @ k_tile
        dk[..., columns, :] += (dscores.mT @ q_tile).sum(2, keepdim=True)  # over the query heads that share the key
        dv[..., columns, :] += (weights.mT @ dy[..., rows, :]).sum(2, keepdim=True)
    return dq.flatten(1, 2).to(q.dtype), dk[:, :, 0].to(k.dtype), dv[:, :, 0].to(v.dtype)


# --------------------------------------------------------------------------------------------------
# attention.fused with a window: O(T·W) on every device. The queries are cut into N blocks of S. Each block attends to the
# K keys that it can reach: the global ones, those before the block that its window covers, and its own S. So T·K scores
# are computed, forward and backward, instead of T².

BLOCK = 64  # queries in a block: with more, more keys are out of reach; with fewer, the products are too small


def windowed_attention(q, k, v, mask_of, window, n_global):
    """softmax(q·k / sqrt(D)) v over the last `window` keys and the first `n_global`: (B, H, Tq, D), as attention.fused.

    mask_of(i, j) is the predicate's bool mask, (1 or B, *common shape of i and j).
    """
    B, H, Tq, D = q.shape
    Tk = k.shape[2]
    by_products = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)  # see Banded
    S = BLOCK if by_products else max(BLOCK, window)  # SDPA's kernels want fewer and larger blocks
    N, before = -(-Tq // S), -(-(window - 1) // S) * S
    length = before + N * S

    # Blocks end where the sequence ends, and may begin before it.
    i = torch.arange(Tk - N * S, Tk, device=q.device).view(N, S, 1)
    j = i[:, :1] + torch.arange(-before, S, device=q.device)
    global_j = torch.arange(n_global, device=q.device).expand(N, 1, n_global)
    counted = torch.cat([global_j < j[..., :1], j >= 0], dim=2)  # a global key may also be in the window: count it once
    mask = mask_of(i.clamp_min(0), torch.cat([global_j, j.clamp_min(0)], dim=2)) & counted  # (1 or B, N, S, K)

    def within_reach(x):  # zeros stand for positions before the beginning
        last = x[:, :, -length:] if length < Tk else F.pad(x, (0, 0, length - Tk, 0))
        return torch.cat([x[:, :, :n_global], last], dim=2) if n_global else last

    q = (F.pad(q, (0, 0, N * S - Tq, 0)) if N * S > Tq else q).unflatten(2, (N, S))  # (B, H, N, S, D)
    k, v = within_reach(k), within_reach(v)  # (B, G, n_global + length, D)
    if by_products:
        blind = ~mask.amax(-1, keepdim=True)
        if any_blind := bool(blind.any()):  # rows that see nothing attend to everything here, and become zeros below
            mask = mask | blind
        y = Banded.apply(q, k, v, torch.where(mask, 0.0, float("-inf")).to(q.dtype), n_global)
        y = y.masked_fill(blind[:, None], 0.0) if any_blind else y
    else:
        blocks = (q, key_blocks(k, S, mask.shape[-1], n_global), key_blocks(v, S, mask.shape[-1], n_global))
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in blocks)  # (B·N, heads, S or K, D)
        mask = mask.expand(B, -1, -1, -1).flatten(0, 1)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).unflatten(0, (B, N)).transpose(1, 2)
    return y.flatten(2, 3)[:, :, -Tq:]


def key_blocks(x, S, K, n_global):
    """The K keys that each block reaches, from x (..., n_global + length, D): (..., N, K, D), overlapping views."""
    sliding = x[..., n_global:, :].unfold(-2, K - n_global, S).mT
    if not n_global:
        return sliding
    return torch.cat([x[..., None, :n_global, :].expand(*sliding.shape[:-2], -1, -1), sliding], dim=-2)


class Banded(torch.autograd.Function):
    """softmax(q·k / sqrt(D) + bias) v over windows as plain products, one head at a time: on a CPU faster than SDPA.

    q (B, H, N, S, D), k, v (B, G, n_global + length, D), bias (1 or B, N, S, K). All heads write their scores to the same
    memory, since allocating costs as much as a product. The weights are kept for the backward pass.
    """

    @staticmethod
    def heads(q, k):
        """(sequence, query head, the key/value head that it shares) of all."""
        B, H, G = *q.shape[:2], k.shape[1]
        return [(b, h, h * G // H) for b in range(B) for h in range(H)]

    @staticmethod
    def forward(ctx, q, k, v, bias, n_global):
        S, D, K = *q.shape[-2:], bias.shape[-1]
        y, scores, kept = torch.empty_like(q), q.new_empty(bias.shape[1:]), []
        for b, h, g in Banded.heads(q, k):
            keys, values = key_blocks(k[b, g], S, K, n_global), key_blocks(v[b, g], S, K, n_global)
            torch.baddbmm(bias[b % len(bias)], q[b, h], keys.mT, alpha=1 / math.sqrt(D), out=scores)
            weights = scores.softmax(-1)  # (N, S, K)
            torch.bmm(weights, values, out=y[b, h])
            if any(ctx.needs_input_grad):
                kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.n_global = n_global
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        q, k, v, *kept = ctx.saved_tensors
        N, S, D = q.shape[-3:]
        K, n_global = kept[0].shape[-1], ctx.n_global
        dq, dk, dv, dscores = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.empty_like(kept[0])

        def gather(dx, weights, x):
            """Add to each key's gradient dx the x of all queries that attended to it."""
            dx[:n_global].addmm_(weights[..., :n_global].flatten(0, 1).mT, x.flatten(0, 1))
            for c in range(0, K - n_global, S):  # columns c to c + S of all windows are the keys from row c on
                rows = dx[n_global + c : n_global + c + N * S].unflatten(0, (N, S))
                rows.baddbmm_(weights[..., n_global + c : n_global + c + S].mT, x)

        for (b, h, g), weights in zip(Banded.heads(q, k), kept):
            gather(dv[b, g], weights, dy[b, h])
            torch.bmm(dy[b, h], key_blocks(v[b, g], S, K, n_global).mT, out=dscores)
            torch.ops.aten._softmax_backward_data.out(dscores, weights, -1, dscores.dtype, grad_input=dscores)
            torch.bmm(dscores, key_blocks(k[b, g], S, K, n_global), out=dq[b, h])
            gather(dk[b, g], dscores, q[b, h])
        return dq.div_(math.sqrt(D)), dk.div_(math.sqrt(D)), dv, None, None
