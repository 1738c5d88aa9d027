"""Sampling: from logits to probabilities, and how good they are.

Write probabilities(logits, temperature, top_k, top_p), from which the next token will be drawn:

    logits (B, V), top_k a number of tokens, top_p in (0, 1]          -> probabilities (B, V)

    1  softmax of logits / temperature            0.5  0.3  0.1  0.1
    2  the top_k most likely tokens remain, 3:    0.5  0.3  0.1  0       of equal ones any
       renormalized                               0.56 0.33 0.11 0
    3  of them the most likely that together      0.56 0.33 0    0       the one that crosses
       reach top_p, 0.8: as few as possible       0.63 0.37 0    0       top_p is in; renormalized

Write losses(logits, targets, characters): of logits (B, T, V), at targets (B, T), −1 to be ignored,

    the mean cross-entropy in nats, the perplexity, and the bits per character of a text that has
    so many characters: all bits of its tokens, divided by its characters

Holtzman et al. 2019, arXiv:1904.09751; Shannon 1951.
"""

import math

import torch
import torch.nn.functional as F

LEARN = ("probabilities", "losses")
HINTS = (
    "p.sort(dim=-1, descending=True) gives values and indices; scatter brings them back.",
    "The sum before each token, cumsum − p, tells which are needed: those where it is below top_p.",
    "perplexity = exp(nats); a nat is 1 / ln 2 bits.",
)
READ_ON = "engine/decoding/sampling.py; model.py: GPT.forward; tools/evaluate.py"


def probabilities(logits, temperature, top_k, top_p):
    """logits (B, V) -> probabilities (B, V)."""
    p, ids = (logits / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
    p = p * (torch.arange(p.shape[-1]) < top_k)
    p = p / p.sum(dim=-1, keepdim=True)
    p = p * (p.cumsum(dim=-1) - p < top_p)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter(1, ids, p)


def losses(logits, targets, characters):
    """logits (B, T, V), targets (B, T), a number -> nats, perplexity, bits per character."""
    nats = F.cross_entropy(logits.mT, targets.clamp_min(0), reduction="none")
    nats = nats.masked_fill(targets < 0, 0.0).sum()
    mean = nats / (targets >= 0).sum()
    return mean, mean.exp(), nats / math.log(2) / characters


def flawed(logits, temperature, top_k, top_p, power=1, more=0, crossing=0, shared=True, first="k"):
    p, ids = (logits / temperature**power).softmax(dim=-1).sort(dim=-1, descending=True)
    rank = torch.arange(p.shape[-1])
    for step in (first, "p" if first == "k" else "k"):
        before = p.cumsum(-1) - p + crossing * p
        p = p * (rank < top_k + more) if step == "k" else p * (before < top_p)
        if shared:
            p = p / p.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(1, ids, p)


def wrong_losses(padding=False, base=math.e, per_token=False, exponent=math.e, total=False):
    def losses(logits, targets, characters):
        nats = F.cross_entropy(logits.mT, targets.clamp_min(0), reduction="none")
        nats = nats.masked_fill(targets < 0, 0.0).sum() / math.log(base)
        count = targets.numel() if padding else (targets >= 0).sum()
        mean = nats if total else nats / count
        return mean, exponent**mean, (mean if per_token else nats / characters) / math.log(2)

    return {"losses": losses}


MISTAKES = {
    "the logits are multiplied by the temperature": {"power": -1},
    "top_k keeps one token more": {"more": 1},
    "top_k keeps one token less": {"more": -1},
    "the token that crosses top_p is left out": {"crossing": 1},
    "what remains is not renormalized: it does not sum to 1": {"shared": False},
    "top_p comes before top_k": {"first": "p"},
    "losses: ignored targets count in the mean": wrong_losses(padding=True),
    "losses: logarithms have base 2": wrong_losses(base=2.0),
    "losses: logarithms have base 10": wrong_losses(base=10.0),
    "losses: perplexity is 2^nats": wrong_losses(exponent=2.0),
    "losses: bits per token, and not per character": wrong_losses(per_token=True),
    "losses: the sum of all tokens, and not their mean": wrong_losses(total=True),
}


def cases():
    random = torch.Generator().manual_seed(0)
    p = torch.tensor([[0.5, 0.3, 0.11, 0.09]]).double()
    yield "logits are logarithms of probabilities", "probabilities", p.log(), 1.0, 3, 0.8
    logits = 2 * torch.randn(3, 9, dtype=torch.float64, generator=random)
    for temperature, top_k, top_p in (1.0, 9, 1.0), (0.5, 9, 1.0), (2.0, 5, 0.7), (1.0, 7, 0.9):
        label = f"temperature={temperature}, top_k={top_k}, top_p={top_p}"
        yield label, "probabilities", logits, temperature, top_k, top_p
    targets = torch.tensor([[1, 0, -1], [2, -1, -1]])
    logits = torch.randn(2, 3, 4, dtype=torch.float64, generator=random)
    yield "3 of 6 targets, 7 characters", "losses", logits, targets, 7
