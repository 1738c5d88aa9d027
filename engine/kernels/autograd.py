"""Operations with a hand-written backward pass, where autograd's own would read and write memory too often.

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
            raise RuntimeError(
                f"{backward.__qualname__} has no second derivative: leave out create_graph=True"
            )
        return backward(ctx, *gradients)

    return first_only


def in_autocast(x):
    """x in bfloat16 where autocast has that dtype: a residual stream of half the bytes. float16 has no room for its sums.

    The default preset, with --dtype=bfloat16 on a CPU, loses nothing by it: 0.0005 ± 0.0025 nats, five seeds.
    """
    kind = x.device.type
    wanted = (
        kind in ("cpu", "cuda")
        and torch.is_autocast_enabled(kind)
        and torch.get_autocast_dtype(kind) == torch.bfloat16
    )
    return x.bfloat16() if wanted else x


def rms_norm(x, eps=0.0):
    """x / rms(x) over the last dimension, as F.rms_norm (Zhang & Sennrich 2019, arXiv:1910.07467). Keeps the dtype of x.

    eps is added to the mean square; 0: the dtype's own, as F.rms_norm takes it.
    """
    if x.is_cuda or not torch.is_grad_enabled():  # on CUDA F.rms_norm is a single kernel
        return F.rms_norm(x, x.shape[-1:], eps=eps or None).type_as(x)
    return RMSNorm.apply(x, eps)


class RMSNorm(torch.autograd.Function):
    """With r = 1 / rms(x): y = r·x and dx = r·(dy - y·mean(y·dy)). 2.5 times as fast as autograd on a CPU."""

    @staticmethod
    def forward(ctx, x, eps):
        norm = torch.linalg.vector_norm(
            x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32)
        )
        r = (
            norm.square_()
            .div_(x.shape[-1])
            .add_(eps or torch.finfo(norm.dtype).eps)
            .rsqrt_()
            .to(x.dtype)
        )
        y = x * r
        ctx.save_for_backward(y, r)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        y, r = ctx.saved_tensors
        mean = torch.linalg.vecdot(y, dy).div_(y.shape[-1])[..., None]
        return torch.addcmul(dy, y, mean, value=-1).mul_(r), None


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


MAX_LOGITS_CPU, MAX_LOGITS_GPU = (
    2**24,
    2**27,
)  # that linear_cross_entropy holds at a time (64 and 512 MB in float32)
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
        wide = torch.promote_types(
            x.dtype, torch.float32
        )  # half precision is too coarse for a loss
        total, count = torch.zeros((), dtype=wide, device=x.device), (targets >= 0).sum(dtype=wide)
        dx, dweight = (
            (torch.zeros_like(x), torch.zeros_like(weight)) if with_gradients else (None, None)
        )
        rows = max(1, MAX_LOGITS_CPU // len(weight))
        if x.is_cuda:
            rows = max(1, MAX_LOGITS_GPU // len(weight) // 128) * 128  # whole tiles of the products
        dx_chunks = dx.split(rows) if with_gradients else itertools.repeat(None)
        for x_chunk, target, dx_chunk in zip(x.split(rows), targets.split(rows), dx_chunks):
            logits = F.linear(x_chunk, weight)
            half, logits = logits.dtype, logits.to(wide)
            ignored, target = (target < 0)[:, None], target.clamp_min(0)[:, None]
            log_sum = logits.logsumexp(-1, keepdim=True)
            total += (log_sum - logits.gather(1, target)).masked_fill(ignored, 0).sum()
            if with_gradients:
                dlogits = logits.sub_(log_sum).exp_()  # softmax, minus 1 at the target
                if x.is_cuda:  # compiled, all of it is one kernel that writes half precision alone
                    dlogits = dlogits - (torch.arange(len(weight), device=x.device) == target).to(
                        wide
                    )
                else:
                    dlogits.scatter_add_(1, target, dlogits.new_full(target.shape, -1))
                dlogits = dlogits.masked_fill_(ignored, 0)
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
        q_tile, k_tile, v_tile = (
            x.to(wide) for x in (q[..., rows, :], k[..., columns, :], v[..., columns, :])
        )
        weights = (scale * q_tile @ k_tile.mT + bias - log_total[..., rows, :]).exp()
        dscores = weights * (dy[..., rows, :] @ v_tile.mT - mean[..., rows, :]) * scale
        dq[..., rows, :] += dscores @ k_tile
        dk[..., columns, :] += (dscores.mT @ q_tile).sum(
            2, keepdim=True
        )  # over the query heads that share the key
        dv[..., columns, :] += (weights.mT @ dy[..., rows, :]).sum(2, keepdim=True)
    return dq.flatten(1, 2).to(q.dtype), dk[:, :, 0].to(k.dtype), dv[:, :, 0].to(v.dtype)
