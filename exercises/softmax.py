"""Softmax: from scores to weights that are positive and sum to 1.

Write softmax(scores), over the last dimension:

    weight of key j = exp(score j) / sum of exp(score) over all keys

    scores (B, H, Tq, Tk)     weights of the same shape

            1    2    3    −∞                    0.09  0.24  0.67  0
        10000    0    0    −∞       becomes      1     0     0     0
           −∞   −∞   −∞    −∞                    0     0     0     0

exp(10000) is infinite. The weights stay the same when one number is subtracted from all scores of a
row, and with the row's largest score no exponential exceeds 1. A row of nothing but −∞ belongs to a
query that may look nowhere: its weights are 0, and its gradient is 0, and neither is NaN.

Goodfellow et al. 2016, Deep Learning, section 4.1.
"""

import math

import torch

LEARN = ("softmax",)
HINTS = (
    "scores.amax(dim=-1, keepdim=True) is the largest score of each row.",
    "−∞ minus −∞ is NaN: for rows of nothing but −∞ subtract 0, with masked_fill.",
    "Then their sum of exponentials is 0: divide by 1 there (clamp_min, or masked_fill).",
)
READ_ON = "attention.py: softmax, sparsemax, and the end of attention_weights"


def softmax(scores):
    """scores (..., Tk) -> weights (..., Tk), zeros for a row of nothing but −∞."""
    largest = scores.amax(dim=-1, keepdim=True)
    powers = (scores - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total.masked_fill(total == 0, 1.0)


def flawed(scores, dim=-1, shift="row", base=math.e, blind="zero", norm=1):
    largest = {"row": scores.amax(dim, keepdim=True), "all": scores.amax(), "none": scores * 0}[
        shift
    ]
    largest = largest.masked_fill(~largest.isfinite(), 0.0).detach()
    powers = ((scores - largest) * math.log(base)).exp()
    total = powers.pow(norm).sum(dim, keepdim=True)
    if blind == "zero":
        total = total.masked_fill(total == 0, 1.0)
    weights = powers / total.pow(1 / norm)
    if blind == "uniform":
        weights = weights.nan_to_num(1 / scores.shape[dim])
    return weights


MISTAKES = {
    "no largest score is subtracted: exp(10000) is infinite": {"shift": "none"},
    "the largest score of all rows is subtracted, and not each row's own": {"shift": "all"},
    "the weights of a query's keys do not sum to 1: it is over the queries": {"dim": -2},
    "the sum runs over the heads": {"dim": 1},
    "powers of 2 stand for powers of e": {"base": 2.0},
    "a row of nothing but −∞ is NaN": {"blind": "nan"},
    "a row of nothing but −∞ gets equal weights": {"blind": "uniform"},
    "the squares of the weights sum to 1, and not they themselves": {"norm": 2},
}


def cases():
    hidden = -math.inf
    yield "one row", "softmax", torch.tensor([[[[1.0, 2.0, 3.0]]]]).double()
    rows = [1.0, 2.0, 3.0, hidden], [1e4, 0.0, 0.0, hidden], [-1e4, -1e4, -2e4, -1e4]
    yield "large scores", "softmax", torch.tensor(rows).double()[None, None]
    rows = [hidden] * 3, [0.0, hidden, 1.0]
    yield "a query that may look nowhere", "softmax", torch.tensor(rows).double()[None, None]
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=random)
    yield "B=2, H=3, Tq=4, Tk=5", "softmax", scores
