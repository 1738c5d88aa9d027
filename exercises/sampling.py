"""Sampling: from logits to probabilities, and how good they are.

Write probabilities(logits, temperature, top_k, top_p), from which the next token will be drawn:
    logits (B, V), top_k a number of tokens, top_p in (0, 1]          -> probabilities (B, V)
    1  softmax of logits / temperature            0.5  0.3  0.1  0.1
    2  the top_k most likely tokens remain, 3:    0.5  0.3  0.1  0       of equal ones any
       renormalized                               0.56 0.33 0.11 0
    3  of them the most likely that together      0.56 0.33 0    0       the one that crosses
       reach top_p, 0.8: as few as possible       0.63 0.37 0    0       top_p is in; renormalized
Write losses(logits, ids, characters): of a causal model that read ids (B, T), and gave logits
    (B, T, V). Those at t foretell the id at t + 1; there is none after the last. −1 is padding,
    which is not foretold. Return the mean cross-entropy in nats, the perplexity, and the bits per
    character of a text of so many characters: all bits of its tokens, divided by its characters
Holtzman et al. 2019, arXiv:1904.09751; Shannon 1951.
"""

import math

import torch
import torch.nn.functional as F

from exercises.shared.cases import random

GRADIENTS = False  # are not asked for


def probabilities(logits, temperature, top_k, top_p):
    def renormalized(p):
        return p / p.sum(dim=-1, keepdim=True)

    p, ids = (logits / temperature).softmax(dim=-1).sort(descending=True)
    # In this order the first top_k are the most likely; scatter brings them back.
    rank = torch.arange(p.shape[-1])
    p = renormalized(p * (rank < top_k))
    # cumsum − p is the sum before each token: if it is below top_p, the token is needed.
    p = renormalized(p * (p.cumsum(dim=-1) - p < top_p))
    return torch.zeros_like(p).scatter(1, ids, p)


def losses(logits, ids, characters):
    # The first id is no target, and the last logits have none.
    logits, targets = logits[:, :-1], ids[:, 1:]
    mean = F.cross_entropy(logits.mT, targets, ignore_index=-1)
    bits = mean / math.log(2) * (targets >= 0).sum()
    return mean, mean.exp(), bits / characters


# Read on: engine/sampling.py; model.py: GPT.forward; tools/evaluate.py
def cases():
    p = torch.tensor([[0.5, 0.3, 0.11, 0.09]]).double()
    yield "logits are logarithms of probabilities", "probabilities", p.log(), 1.0, 3, 0.8
    ids = torch.arange(18).view(3, 6) % 7
    ids[torch.ones(3, 6).triu(3) > 0] = -1
    for B, T in (2, 4), (3, 6):
        label = f"B={B}, T={T}, V=7, {T + 7} characters"
        yield label, "losses", *random(label, "B T V"), ids[:B, :T], T + 7
    for temperature, top_k, top_p in (2.0, 5, 0.7), (1.0, 7, 0.9), (0.5, 6, 0.8), (3.0, 9, 0.4):
        label = f"B=3, V={top_k + 2}, temperature={temperature}, top_k={top_k}, top_p={top_p}"
        yield label, "probabilities", *random(label, "B V"), temperature, top_k, top_p
    for V, top_k, top_p in (5, 3, 0.9), (4, 4, 0.5):
        label = f"{V} equal logits, in order, top_k={top_k}, top_p={top_p}"
        yield label, in_order, torch.zeros(2, V).double(), 1.0, top_k, top_p


def in_order(theirs, logits, temperature, top_k, top_p):
    """Which of equal ones remain is not asked."""
    return theirs.probabilities(logits, temperature, top_k, top_p).sort().values
