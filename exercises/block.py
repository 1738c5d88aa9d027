"""Block: what stands around attention, and how it begins.

Write six functions. x is (B, T, C): of B texts of T tokens each, C features:
    layer_norm(x, weight, bias, eps)      of each token: (x − mean) / √(variance + eps), times
                                          weight (C), plus bias (C); the variance divides by C
    rms_norm(x, weight, eps)              of each token: x / √(mean of x² + eps), times weight
    mlp(x, W_fc, W_proj)                  widen, gelu, narrow: W_fc (4C, C) and W_proj (C, 4C), as
                                          in nn.Linear; gelu(x) = x · Φ(x), which F.gelu knows
    block(x, norm_1, attend, norm_2, mlp) a pre-norm block; the others map (B, T, C) to (B, T, C)
        x ──┬── norm_1 ── attend ── + ──┬── norm_2 ── mlp ── + ──      x itself is never normed:
            └───────────────────────┘   └────────────────────┘        it is the residual stream
    post_norm(x, norm, part)              as in 2017: x plus what part makes of x, then the norm
    initial(V, n_layer)   → loss, std   the loss in nats of a model that finds V tokens equally
                          likely; and the std of matrices that write into the residual stream: each
                          of n_layer blocks has two, and all their writes are to add up to 0.02
Ba et al. 2016, arXiv:1607.06450; Xiong et al. 2020, arXiv:2002.04745; Radford et al. 2019, 2.3.
"""

import math

import torch
import torch.nn.functional as F

from exercises.shared.cases import random, small


def layer_norm(x, weight, bias, eps):
    mean = x.mean(dim=-1, keepdim=True)
    variance = x.var(dim=-1, keepdim=True, correction=0)
    normed = (x - mean) / (variance + eps).sqrt()
    return weight * normed + bias


def rms_norm(x, weight, eps):
    square = x.square().mean(dim=-1, keepdim=True)
    return x / (square + eps).sqrt() * weight


def mlp(x, W_fc, W_proj):
    return F.gelu(x @ W_fc.T) @ W_proj.T


def block(x, norm_1, attend, norm_2, mlp):
    # Each adds to x what it makes of a normed x.
    y = x + attend(norm_1(x))
    return y + mlp(norm_2(y))


def post_norm(x, norm, part):
    return norm(x + part(x))


def initial(V, n_layer):
    # n random writes of one std add up to √n times that std.
    return math.log(V), 0.02 / math.sqrt(2 * n_layer)


# Read on: model.py: layer_norm, FeedForward, Block, gpt2_std and init_weights
def cases():
    x = small([1, 2, 3, 6], [5, 5, 5, 5])[0]
    yield "two tokens, C = 4", "layer_norm", x, *small([1] * 4, [0] * 4)[0, 0], 1e-5
    yield "65 tokens, 5 blocks", "initial", 65, 5
    sizes = "B=2, T=3, C=5, 4C=20"
    x, weight, bias, *matrices = random(sizes, "B T C", "C", "C", "4C C", "C 4C")
    yield sizes, "layer_norm", x, weight, bias, 0.1
    yield sizes, "rms_norm", x, weight, 0.1
    yield sizes, "post_norm", x, torch.tanh, torch.atan
    yield sizes, "block", x, torch.tanh, torch.sigmoid, torch.atan, torch.sin
    yield sizes, "mlp", x, *matrices
