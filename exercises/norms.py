"""Norms: RMSNorm, and whether it stands before a layer or after it.

Write three functions. x is (B, T, C): of B texts of T tokens each, C features:
    rms_norm(x, weight, eps)      of each token: x / √(mean of x² + eps), times weight (C)
                                  no mean is subtracted, and no bias added
    pre_norm(x, norm, layer)      the layer sees a normed x; x itself goes by, and is never normed
        x ──┬── norm ── layer ── + ──           today's: the sum is a clean way for gradients
            └────────────────────┘
    post_norm(x, norm, layer)     what the layer and x add up to is normed
        x ──┬── layer ── + ── norm ──           as in 2017: deep models need a warm-up then
            └────────────┘
x may be float16, as in training: 300² is infinite there, and the mean too. Compute in float32, or
more, and return what x was. norm and layer map (B, T, C) to (B, T, C).
Zhang and Sennrich 2019, arXiv:1910.07467; Xiong et al. 2020, arXiv:2002.04745.
"""

import torch

from exercises.shared.cases import random


def rms_norm(x, weight, eps):
    # float16 has no number above 65504; float64 stays as it is.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    # A mean over the features, with keepdim=True.
    square = wide.square().mean(dim=-1, keepdim=True)
    y = wide / (square + eps).sqrt()
    return (y * weight).to(x.dtype)


def pre_norm(x, norm, layer):
    return x + layer(norm(x))


def post_norm(x, norm, layer):
    return norm(x + layer(x))


MISTAKES = {}
READ_ON = "model.py: RMSNorm, Block; engine/kernels/autograd.py: rms_norm"


def cases():
    sizes = "B=2, T=3, C=5"
    x, weight = random(sizes, "B T C", "C")
    yield sizes, "rms_norm", x, weight, 0.1
    yield f"{sizes}, thousands in float16", "rms_norm", (1000 * x).half(), weight.half(), 1e-5
    for call in "pre_norm", "post_norm":
        yield sizes, call, x, torch.tanh, torch.sin
