"""The head and its loss in chunks, with a backward pass by hand. Skip it at a first reading.

PyTorch 2.13 has a chunked F.linear_cross_entropy too, but for half precision it rounds the loss to
bfloat16, takes 1.3 to 1.5 times as long on a CPU, and knows nothing of autocast.
"""

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling

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
        # Rows whose logits are in memory at a time; on a GPU whole tiles of the products.
        if x.is_cuda:
            size = max(1, MAX_LOGITS_GPU // len(weight) // 128) * 128
        else:
            size = max(1, MAX_LOGITS_CPU // len(weight))
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
                # The gradient of a row's loss: its softmax, minus 1 at the target.
                dlogits = logits.sub_(log_sum).exp_()
                if logits.is_cuda:  # compiled, this is one kernel that writes half precision alone
                    ids = torch.arange(logits.shape[1], device=logits.device)
                    dlogits = dlogits - (ids == target).to(wide)
                else:
                    dlogits.scatter_add_(1, target, dlogits.new_full(target.shape, -1))
                dlogits = dlogits.masked_fill_(ignored, 0).mul_(LOSS_SCALE / count).to(half)
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
    def backward(ctx, dloss):
        if torch.is_grad_enabled():  # it would be silently wrong
            raise RuntimeError("the loss has no second derivative: leave out create_graph=True")
        dx, dweight = ctx.saved_tensors
        scale = dloss / LOSS_SCALE
        if dweight is not None:
            dweight.mul_(scale)
        return dx.mul_(scale), dweight, None, None
