"""Linear attention: a state that replaces the past.

Replace exp(q·k) by f(q)·f(k), with f(x) = elu(x) + 1, which is positive. Then
    y_i = Σ_j≤i f(q_i)·f(k_j) v_j  /  Σ_j≤i f(q_i)·f(k_j)
and f(q_i) comes out of both sums: what is left inside does not depend on the query:
    S = Σ_j f(k_j) v_jᵀ   (D, Dv)          z = Σ_j f(k_j)   (D)
    y_i = f(q_i) S / (f(q_i)·z)
Write step(q, k, v, state): one token more:
    q, k (B, H, D)      v (B, H, Dv)      state: (S, z), with S (B, H, D, Dv) and z (B, H, D)
    return y, (S, z): y (B, H, Dv) and the new state; a token sees itself
However long the past is, the state has the same size. Katharopoulos et al. 2020, arXiv:2006.16236.
"""

import torch
import torch.nn.functional as F

from exercises.shared.cases import random


def step(q, k, v, state):
    def f(x):
        return F.elu(x) + 1

    S, z = state
    fq = f(q)
    fk = f(k)
    # A column (D, 1) times a row (1, Dv). A token sees itself: first add, then read.
    S = S + fk[..., :, None] * v[..., None, :]
    z = z + fk
    # f(q) as a row (1, D) times S (D, Dv).
    y = (fq[..., None, :] @ S)[..., 0, :] / (fq * z).sum(dim=-1, keepdim=True)
    return y, (S, z)


# Read on: attention.py: linear and linear_step; engine/linear_attention.py
def cases():
    for sizes in "B=1, H=1, T=2, D=2, Dv=1", "B=2, H=3, T=6, D=4, Dv=5":
        q, k, v = random(sizes, "T B H D", "T B H D", "T B H Dv")
        yield sizes, all_steps, q, k, v
    yield f"{sizes}, small f(q)", all_steps, q - 9, k, v


def all_steps(theirs, q, k, v):
    """All outputs, and the last state; the first one is all ones, so that nothing divides by 0."""
    state = torch.ones_like(k[0, ..., None] * v[0, ..., None, :]), torch.ones_like(k[0])
    outputs = []
    for inputs in zip(q, k, v):
        y, state = theirs.step(*inputs, state)
        outputs += [y, *state]
    return outputs
