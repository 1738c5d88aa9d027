"""Cross: look at another sequence, whose end may be padding.

Write additive(s, h, W1, W2, v): Bahdanau's scores of a decoder's state, and its context.

    s (B, C) the state     h (B, S, C) the encoder's states     W1, W2 (C, A)     v (A)

    score of state i of h:  v · tanh(s W1 + h[i] W2)            weights: softmax over the S states
    context: the average of h with these weights            return weights (B, S), context (B, C)

Write cross_attention(q, k, v, real): scaled dot products of a decoder's queries with an encoder.

    q (B, H, T, D)     k, v (B, H, S, D)     real (B, S): False where the encoder's text is padding

           S = 4, real = ■ ■ ■ ·             every query sees the same three keys: there is no
      q0   ■ ■ ■ ·                           future in another sequence, and T may be larger than S
      q1   ■ ■ ■ ·

Bahdanau et al. 2014, arXiv:1409.0473; Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
"""

import math

import torch

LEARN = ("additive", "cross_attention")
HINTS = (
    "s[:, None] has a place for the S states: s[:, None] @ W1 + h @ W2 is (B, S, A).",
    "The context is (weights[:, :, None] * h).sum(1).",
    "real[:, None, None] is (B, 1, 1, S), one mask for all heads and queries.",
)
READ_ON = "attention.py: Additive and CrossAttention; masks.py: present"


def additive(s, h, W1, W2, v):
    """s (B, C), h (B, S, C), W1, W2 (C, A), v (A) -> weights (B, S), context (B, C)."""
    weights = (torch.tanh(s[:, None] @ W1 + h @ W2) @ v).softmax(dim=-1)
    return weights, (weights[:, :, None] * h).sum(1)


def cross_attention(q, k, v, real):
    """q (B, H, T, D), k, v (B, H, S, D), real (B, S) -> (B, H, T, D)."""
    return look(q, k, v, real)


def scored(s, h, W1, W2, v, activate=torch.tanh, apart=False, mean=False, dim=-1):
    terms = s[:, None] @ W1, h @ W2
    hidden = activate(terms[0]) + activate(terms[1]) if apart else activate(sum(terms))
    weights = (hidden @ v).softmax(dim)
    contexts = weights[:, :, None] * h
    return weights, contexts.mean(1) if mean else contexts.sum(1)


def look(
    q, k, v, real, hidden=-math.inf, late=False, causal=False, every=False, first=False, power=0.5
):
    scores = q @ k.mT / q.shape[-1] ** power
    mask = real[:1] if first else real | every
    mask = mask[:, None, None]
    if causal:
        mask = mask & torch.ones(scores.shape[-2:]).tril().bool()
    if late:
        return scores.softmax(-1).masked_fill(~mask, 0) @ v
    return scores.masked_fill(~mask, hidden).softmax(-1).nan_to_num() @ v


def wrong_score(**how):
    return {"additive": lambda *inputs: scored(*inputs, **how)}


def wrong_look(**how):
    return {"cross_attention": lambda *inputs: look(*inputs, **how)}


MISTAKES = {
    "tanh is missing": wrong_score(activate=lambda x: x),
    "tanh is taken of each term, and not of their sum": wrong_score(apart=True),
    "a sigmoid stands for tanh": wrong_score(activate=torch.sigmoid),
    "softmax is taken over the texts": wrong_score(dim=0),
    "the context is divided by S, though the weights sum to 1": wrong_score(mean=True),
    "padding is seen": wrong_look(every=True),
    "0 stands for −∞: exp(0) is a weight too": wrong_look(hidden=0.0),
    "padding is hidden after softmax: rows do not sum to 1": wrong_look(late=True),
    "a causal mask hides the end of the other sequence": wrong_look(causal=True),
    "all texts have the padding of the first": wrong_look(first=True),
    "the scale is missing": wrong_look(power=0.0),
}


def cases():
    random = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    for B, S, C, A in (1, 2, 2, 2), (2, 3, 2, 4), (3, 6, 5, 4):
        inputs = numbers(B, C), numbers(B, S, C), numbers(C, A), numbers(C, A), numbers(A)
        yield f"B={B}, S={S}, C={C}, A={A}", "additive", *inputs
    for B, H, T, S, D in (1, 1, 2, 2, 2), (2, 1, 2, 3, 2), (3, 2, 6, 4, 5):
        real = torch.arange(S) < S - torch.tensor([1, 0, 2])[:B, None]
        inputs = numbers(B, H, T, D), numbers(B, H, S, D), numbers(B, H, S, D), real
        yield f"B={B}, H={H}, T={T}, S={S}, D={D}", "cross_attention", *inputs
