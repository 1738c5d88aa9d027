"""Backward: the gradients of attention by hand.

Write backward(q, k, v, dy): given the gradient dy of the output y, those of q, k and v.

    q, k (B, H, T, D)      v, y and dy (B, H, T, Dv)      attention is causal

    forward                                  backward, from the last line to the first
    scores  = q kᵀ / √D                      dv       = weightsᵀ dy
    weights = softmax of what is visible     dweights = dy vᵀ
    y       = weights v                      dscores  = weights · (dweights − each row's sum of
                                                                   weights · dweights)
                                             dq       = dscores k / √D
                                             dk       = dscoresᵀ q / √D

Weights of the future are 0, and so are their dscores. Autograd may not help: the tensors that the
check gives have no graph, and it compares with autograd's own gradients.

Rumelhart et al. 1986; Dao et al. 2022, arXiv:2205.14135, appendix B.2.
"""

import math

import torch

LEARN = ("backward",)
HINTS = (
    "First compute the weights again, as in the forward pass, with the causal mask.",
    "ᵀ is .mT, which swaps the last two dimensions.",
    "The row's sum: (weights * dweights).sum(-1, keepdim=True).",
)
READ_ON = "engine/kernels/autograd.py: tiled_gradients, which needs y to know each row's sum"


def backward(q, k, v, dy):
    """q, k (B, H, T, D), v, dy (B, H, T, Dv) -> dq, dk, dv."""
    T, scale = q.shape[2], 1 / math.sqrt(q.shape[3])
    future = torch.ones(T, T).triu(1).bool()
    weights = (q @ k.mT * scale).masked_fill(future, -math.inf).softmax(dim=-1)
    dweights = dy @ v.mT
    dscores = weights * (dweights - (weights * dweights).sum(dim=-1, keepdim=True))
    return dscores @ k * scale, dscores.mT @ q * scale, weights.mT @ dy


def flawed(q, k, v, dy, **wrong):
    T, scale = q.shape[2], 1 / math.sqrt(q.shape[3])
    scores = q @ k.mT * scale
    future = torch.ones(T, T).triu(1).bool()
    if "open" not in wrong:
        scores = scores.masked_fill(future, -math.inf)
    weights = scores.softmax(-1)
    dweights = dy @ v.mT
    mean = (weights * dweights).sum(wrong.get("dim", -1), keepdim=True)
    dscores = weights * (dweights - (0 if "sum" in wrong else mean))
    if "unweighted" in wrong:
        dscores = dweights - mean
    after = 1 if "scale" in wrong else scale
    shares = scores.masked_fill(future, 0) if "scores" in wrong else weights
    dk = (dscores if "turn" in wrong else dscores.mT) @ q * after
    return dscores @ k * after, dk, (shares if "turn_v" in wrong else shares.mT) @ dy


MISTAKES = {
    "softmax's gradient lacks the row's sum": {"sum": True},
    "the sum runs over the queries, not over the keys": {"dim": -2},
    "dscores are not multiplied by the weights": {"unweighted": True},
    "the scale is missing in dq and dk": {"scale": True},
    "dk is made of dscores, not of dscoresᵀ": {"turn": True},
    "dv is made of weights, not of weightsᵀ": {"turn_v": True},
    "dv is made of scores, not of weights": {"scores": True},
    "the causal mask is missing": {"open": True},
}


def cases():
    random = torch.Generator().manual_seed(0)
    for B, H, T, D, Dv in (1, 1, 2, 2, 2), (1, 1, 4, 3, 3), (2, 3, 5, 4, 6):
        shapes = (B, H, T, D), (B, H, T, D), (B, H, T, Dv), (B, H, T, Dv)
        inputs = [torch.randn(x, dtype=torch.float64, generator=random) for x in shapes]
        yield f"B={B}, H={H}, T={T}, D={D}, Dv={Dv}", without_graph, *inputs


def without_graph(theirs, *inputs):
    return theirs.backward(*(x.detach() for x in inputs))
