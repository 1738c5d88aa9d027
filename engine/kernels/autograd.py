"""Operations with a hand-written backward pass. Skip this file at a first reading.

Autograd's own backward pass would read and write memory too often: a small model spends more time
on moving numbers than on multiplying them. Each function computes one line of its docstring;
tests/kernels compares values and gradients with autograd's.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling


def in_autocast(x):
    """x in bfloat16 where autocast has that dtype: a residual stream of half the bytes.

    float16 has no room for its sums. The default preset, with --dtype=bfloat16 on a CPU, loses
    nothing by it: 0.0005 ± 0.0025 nats, five seeds.
    """
    device = x.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return x
    return x.bfloat16() if torch.get_autocast_dtype(device) == torch.bfloat16 else x


# --------------------------------------------------------------------------------------------------
# Norm and activation


def rms_norm(x, eps=0.0):
    """x / rms(x) over the last dimension (Zhang & Sennrich 2019, arXiv:1910.07467).

    eps is added to the mean square; 0: the dtype's own, as in F.rms_norm. Keeps the dtype of x.
    """
    if x.is_cuda or not torch.is_grad_enabled():  # on CUDA F.rms_norm is a single kernel
        return F.rms_norm(x, x.shape[-1:], eps=eps or None).type_as(x)
    return RMSNorm.apply(x, eps)


class RMSNorm(torch.autograd.Function):
    """With r = 1 / rms(x): y = r·x and dx = r·(dy - y·mean(y·dy)).

    2.5 times as fast as autograd on a CPU.
    """

    @staticmethod
    def forward(ctx, x, eps):
        wide = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        mean_square = norm.square_().div_(x.shape[-1])
        r = mean_square.add_(eps or torch.finfo(wide).eps).rsqrt_().to(x.dtype)
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
    """With r = max(x, 0): y = r² and dx = 2·r·dy, in one pass.

    1.5 to 3.5 times as fast as autograd on a CPU.
    """

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


# --------------------------------------------------------------------------------------------------
# The loss. PyTorch 2.13 has a chunked F.linear_cross_entropy too, but for half precision it rounds
# the loss to bfloat16, takes 1.3 to 1.5 times as long on a CPU, and knows nothing of autocast.

MAX_LOGITS_CPU = 2**24  # logits in a chunk: 64 MB in float32
MAX_LOGITS_GPU = 2**27
LOSS_SCALE = 1024.0  # of the logits' gradients: divided by the tokens, float16 would underflow


def linear_cross_entropy(x, weight, targets):
    """Mean cross-entropy in nats of the logits x @ weight^T at targets (N,), -1 to ignore.

    0 if all are ignored.
    x (N, C), weight (V, C). Computed in chunks of rows, each with its gradient at once: for
    GPT-2's vocabulary, all N x V logits would be most of the memory of a training step. Its
    backward pass can run only once.
    """
    kept = targets >= 0
    if x.device.type == "cpu" and not is_compiling() and not kept.all():
        x, targets = x[kept], targets[kept]  # a GPU would wait to know how many these are
    return LinearCrossEntropy.apply(x, weight, targets, torch.is_grad_enabled())


class LinearCrossEntropy(torch.autograd.Function):
    """Computes gradients in the forward pass, while the logits exist.

    The backward pass only scales them.
    """

    @staticmethod
    def forward(ctx, x, weight, targets, with_gradients):
        wide = torch.promote_types(x.dtype, torch.float32)  # half precision is too coarse
        total = torch.zeros((), dtype=wide, device=x.device)
        count = (targets >= 0).sum(dtype=wide).clamp_min(1)
        if with_gradients:
            dx = torch.zeros_like(x)
            dweight = torch.zeros_like(weight) if weight.requires_grad else None
        size = rows_of_a_chunk(x, weight)
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            logits = F.linear(x[rows], weight)
            half = logits.dtype
            logits = logits.to(wide)
            target = targets[rows, None].clamp_min(0)
            ignored = targets[rows, None] < 0
            log_sum = logits.logsumexp(-1, keepdim=True)
            total += (log_sum - logits.gather(1, target)).masked_fill(ignored, 0).sum()
            if with_gradients:
                dlogits = softmax_minus_target(logits, log_sum, target).masked_fill_(ignored, 0)
                dlogits = dlogits.mul_(LOSS_SCALE / count).to(half)
                dx[rows] = dlogits @ weight
                if dweight is None:  # frozen
                    continue
                if half == dweight.dtype:
                    dweight.addmm_(dlogits.mT, x[rows])
                else:  # under autocast
                    dweight += dlogits.mT @ x[rows]
        if with_gradients:
            ctx.save_for_backward(dx, dweight)
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        dx, dweight = ctx.saved_tensors
        scale = dloss / LOSS_SCALE
        if dweight is not None:
            dweight.mul_(scale)
        return dx.mul_(scale), dweight, None, None


def rows_of_a_chunk(x, weight):
    """Rows of x whose logits are in memory at a time; on a GPU whole tiles of the products."""
    if x.is_cuda:
        return max(1, MAX_LOGITS_GPU // len(weight) // 128) * 128
    return max(1, MAX_LOGITS_CPU // len(weight))


def softmax_minus_target(logits, log_sum, target):
    """The gradient of each row's loss: its softmax, minus 1 at the target. Overwrites logits."""
    softmax = logits.sub_(log_sum).exp_()
    if not logits.is_cuda:
        return softmax.scatter_add_(1, target, softmax.new_full(target.shape, -1))
    # Compiled, this is one kernel that writes half precision alone.
    ids = torch.arange(logits.shape[1], device=logits.device)
    return softmax - (ids == target).to(logits.dtype)
