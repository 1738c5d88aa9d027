"""Block: what stands around attention, and how it begins.

Write four functions. x is (B, T, C): of B texts of T tokens each, C features.

    layer_norm(x, weight, bias, eps)      each token by itself: (x − mean) / √(variance + eps) over
                                          its C features, times weight (C), plus bias (C); the
                                          variance is the mean of the squares, divided by C
    mlp(x, W_fc, W_proj)                  widen, gelu, narrow: W_fc (4C, C) and W_proj (C, 4C), as
                                          in nn.Linear; gelu(x) = x · Φ(x), which F.gelu knows
    block(x, norm_1, attend, norm_2, mlp) a pre-norm block. The others are functions: (B, T, C) to
                                          (B, T, C)

        x ──┬── norm_1 ── attend ── + ──┬── norm_2 ── mlp ── + ──      x itself is never normed:
            └───────────────────────┘   └────────────────────┘        it is the residual stream

    initial(V, n_layer)   → loss, std   the loss in nats of a model that finds V tokens equally
                          likely; and the std of matrices that write into the residual stream: each
                          of n_layer blocks has two, and all their writes are to add up to 0.02

Ba et al. 2016, arXiv:1607.06450; Xiong et al. 2020, arXiv:2002.04745; Radford et al. 2019, 2.3.
"""

import math

import torch
import torch.nn.functional as F

LEARN = ("layer_norm", "mlp", "block", "initial")
HINTS = (
    "x.mean(dim=-1, keepdim=True) is each token's mean; the variance is the mean of its squares.",
    "block adds twice: x = x + attend(norm_1(x)), and then the same with norm_2 and mlp.",
    "n random writes of one std add up to √n times that std: 0.02 / √(2 · n_layer).",
)
READ_ON = "model.py: layer_norm, FeedForward, Block, gpt2_std and init_weights"


def layer_norm(x, weight, bias, eps):
    """x (B, T, C), weight (C), bias (C), eps a number -> (B, T, C)."""
    x = x - x.mean(dim=-1, keepdim=True)
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight + bias


def mlp(x, W_fc, W_proj):
    """x (B, T, C), W_fc (4C, C), W_proj (C, 4C) -> (B, T, C)."""
    return F.gelu(x @ W_fc.T) @ W_proj.T


def block(x, norm_1, attend, norm_2, mlp):
    """x (B, T, C) and four functions of (B, T, C) -> (B, T, C)."""
    x = x + attend(norm_1(x))
    return x + mlp(norm_2(x))


def initial(V, n_layer):
    """V tokens, n_layer blocks -> the first loss in nats, the std."""
    return math.log(V), 0.02 / math.sqrt(2 * n_layer)


def norm(dim=-1, center=True, less=0, outside=False, power=0.5):
    def layer_norm(x, weight, bias, eps):
        y = x - x.mean(dim, keepdim=True)
        variance = y.square().sum(dim, keepdim=True) / (x.shape[dim] - less)
        size = variance**power + eps if outside else (variance + eps) ** power
        return (y if center else x) / size * weight + bias

    return {"layer_norm": layer_norm}


def stream(wrong, **keep):
    return {"block": lambda *inputs: wrong(*inputs, **keep)}


def after(x, norm_1, attend, norm_2, mlp):
    x = norm_1(x + attend(x))
    return norm_2(x + mlp(x))


def partly(x, norm_1, attend, norm_2, mlp, first=1, second=1, beside=False):
    y = first * x + attend(norm_1(x))
    return second * y + mlp(norm_2(x if beside else y))


MISTAKES = {
    "layer_norm: mean and variance are of each feature over the tokens": norm(dim=1),
    "layer_norm: the mean is not subtracted": norm(center=False),
    "layer_norm: the variance is divided by C − 1 (unbiased=False is needed)": norm(less=1),
    "layer_norm: eps is added to the root, and not under it": norm(outside=True),
    "layer_norm: the variance divides, and not its root": norm(power=1),
    "mlp: nothing stands between the matrices": {"mlp": lambda x, W, V: x @ W.T @ V.T},
    "mlp: relu stands for gelu": {"mlp": lambda x, W, V: F.relu(x @ W.T) @ V.T},
    "block: the norm comes after the sum (post-norm)": stream(after),
    "block: attention's residual is missing": stream(partly, first=0),
    "block: the mlp's residual is missing": stream(partly, second=0),
    "block: the mlp reads what attention reads, not its result": stream(partly, beside=True),
    "initial: the loss is in bits": {"initial": lambda V, n: (math.log2(V), initial(V, n)[1])},
    "initial: 2 · n_layer divides, not its root": {"initial": lambda V, n: (math.log(V), 0.01 / n)},
    "initial: each block writes twice, not once": {
        "initial": lambda V, n: (math.log(V), 0.02 / math.sqrt(n))
    },
}


def cases():
    random = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    x = torch.tensor([[[1.0, 2.0, 3.0, 6.0], [5.0, 5.0, 5.0, 5.0]]]).double()
    yield "two tokens, C = 4", "layer_norm", x, x.new_ones(4), x.new_zeros(4), 1e-5
    for B, T, C in (1, 2, 3), (2, 3, 5):
        label = f"B={B}, T={T}, C={C}"
        yield label, "layer_norm", numbers(B, T, C), numbers(C), numbers(C), 0.1
        yield label, "mlp", numbers(B, T, C), numbers(4 * C, C), numbers(C, 4 * C)
        yield label, "block", numbers(B, T, C), torch.tanh, mean_of_past, torch.atan, torch.sin
    yield "65 tokens, 4 blocks", "initial", 65, 4


def mean_of_past(x):
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
