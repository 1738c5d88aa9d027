"""Backward: the gradients of attention by hand.

Write backward(q, k, v, dy): given the gradient dy of the output y, return dq, dk and dv:
    q, k (B, H, T, D)      v, y and dy (B, H, T, Dv)      attention is causal
    forward                                  backward, from the last line to the first
    scores  = q kᵀ / √D                      dv       = weightsᵀ dy
    weights = softmax of what is visible     dweights = dy vᵀ
    y       = weights v                      dscores  = weights · (dweights − Σ weights · dweights)
                                             dq       = dscores k / √D
                                             dk       = dscoresᵀ q / √D
Σ is each row's sum. Weights of the future are 0, and so are their dscores. Autograd may not help:
the tensors that the check gives have no graph, and it compares with autograd's own gradients.
Rumelhart et al. 1986; Dao et al. 2022, arXiv:2205.14135, appendix B.2.
"""

import torch

from exercises.shared.cases import random


def backward(q, k, v, dy):
    T = q.shape[2]
    scale = q.shape[3] ** -0.5
    future = torch.ones(T, T).triu(1).bool()
    # The weights once more, as in the forward pass. ᵀ is .mT.
    weights = (q @ k.mT * scale).masked_fill(future, -torch.inf).softmax(dim=-1)
    dweights = dy @ v.mT
    # Each row's sum: over the keys, with keepdim=True.
    total = (weights * dweights).sum(dim=-1, keepdim=True)
    dscores = weights * (dweights - total)
    return dscores @ k * scale, dscores.mT @ q * scale, weights.mT @ dy


# Read on: attention.py: tiled, which computes its weights again in the backward pass
def cases():
    def call(theirs, q, k, v, dy):
        def graph(x):
            raise ValueError("autograd helps: it records a graph of the forward pass")

        with torch.autograd.graph.saved_tensors_hooks(graph, graph):
            return theirs.backward(*(x.detach() for x in (q, k, v, dy)))

    for sizes in "B=1, H=1, T=2, D=2, Dv=2", "B=2, H=3, T=5, D=4, Dv=6":
        yield sizes, call, *random(sizes, "B H T D", "B H T D", "B H T Dv", "B H T Dv")
