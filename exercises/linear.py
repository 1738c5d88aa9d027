"""Linear attention: a state that replaces the past.

Replace exp(q·k) by f(q)·f(k), with f(x) = elu(x) + 1, which is positive. Then

    y_i = Σ_j≤i f(q_i)·f(k_j) v_j  /  Σ_j≤i f(q_i)·f(k_j)

and f(q_i) comes out of both sums: what is left inside does not depend on the query.

    S = Σ_j f(k_j) v_jᵀ   (D, Dv)          z = Σ_j f(k_j)   (D)
    y_i = f(q_i) S / (f(q_i)·z)

Write step(q, k, v, state): one token more.

    q, k (B, H, D)      v (B, H, Dv)      state: (S, z), with S (B, H, D, Dv) and z (B, H, D)
    return y (B, H, Dv) and the new state; a token sees itself

However long the past is, the state has the same size.

Katharopoulos et al. 2020, arXiv:2006.16236.
"""

import torch
import torch.nn.functional as F

LEARN = ("step",)
HINTS = (
    "f is F.elu(x) + 1.",
    "f(k)[..., :, None] * v[..., None, :] is the product that S adds for this token.",
    "(f(q)[..., None, :] @ S)[..., 0, :] is f(q) S. Add the token first, and then read.",
)
READ_ON = "attention.py: linear and linear_step; engine/kernels/linear_attention.py"


def step(q, k, v, state):
    """q, k (B, H, D), v (B, H, Dv), state (S, z) -> y (B, H, Dv), new state (S, z)."""
    S, z = state
    q, k = F.elu(q) + 1, F.elu(k) + 1
    S = S + k[..., :, None] * v[..., None, :]
    z = z + k
    y = (q[..., None, :] @ S)[..., 0, :] / (q * z).sum(-1, keepdim=True)
    return y, (S, z)


def flawed(q, k, v, state, **wrong):
    def f(x):
        return F.elu(x) + wrong.get("plus", 1)

    S, z = state
    q = q if "plain_q" in wrong else f(q)
    k = k if "plain_k" in wrong else f(k)
    new = k[..., :, None] * v[..., None, :]
    after = (new, k) if "replace" in wrong else (S + new, z + k)
    read_S, read_z = state if "late" in wrong else after
    if "last" in wrong:
        read_z = k
    y = (q[..., None, :] @ read_S)[..., 0, :]
    total = (q * read_z).sum(-1, keepdim=True)
    return (y if "sum" in wrong else y / total), after


MISTAKES = {
    "the sum of the weights does not divide": {"sum": True},
    "only the last token's weight divides": {"last": True},
    "the state is replaced, and not added to": {"replace": True},
    "the state is read before the token is added: it does not see itself": {"late": True},
    "f is not applied to q": {"plain_q": True},
    "f is not applied to k": {"plain_k": True},
    "f is elu without the 1": {"plus": 0},
}


def cases():
    random = torch.Generator().manual_seed(0)
    for B, H, T, D, Dv in (1, 1, 2, 2, 1), (1, 2, 4, 3, 3), (2, 3, 6, 4, 5):
        shapes = (T, B, H, D), (T, B, H, D), (T, B, H, Dv)
        inputs = [torch.randn(x, dtype=torch.float64, generator=random) for x in shapes]
        yield f"B={B}, H={H}, {T} tokens, D={D}, Dv={Dv}", all_steps, *inputs


def all_steps(theirs, q, k, v):
    """All outputs, and the last state; the first one is all ones, so that nothing divides by 0."""
    T, B, H, D = q.shape
    state = q.new_ones(B, H, D, v.shape[-1]), q.new_ones(B, H, D)
    outputs = []
    for t in range(T):
        y, state = theirs.step(q[t], k[t], v[t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=2), *state
