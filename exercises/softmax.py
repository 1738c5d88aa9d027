"""Softmax: from scores to weights that are positive and sum to 1.

Write softmax(scores), over the last dimension; scores and weights are (B, H, Tq, Tk):
    weight of key j = exp(score j) / sum of exp(score) over all keys

            1    2    3    −∞                    0.09  0.24  0.67  0
        10000    0    0    −∞       becomes      1     0     0     0
           −∞   −∞   −∞    −∞                    0     0     0     0
exp(10000) is infinite. Subtract a row's largest score from all of it: its weights stay the same, no
exponential exceeds 1. A row of nothing but −∞ sees no key: its weights and gradient are 0, not NaN.
Goodfellow et al. 2016, Deep Learning, section 4.1.
"""

from exercises.shared.cases import random, small


def softmax(scores):
    largest = scores.amax(-1, keepdim=True)
    # keepdim=True, to subtract it from its row; −∞ minus −∞ is NaN, and there we subtract 0.
    shift = largest.masked_fill(largest == float("-inf"), 0.0)
    powers = (scores - shift).exp()
    total = powers.sum(-1, keepdim=True)
    # The sum of such a row is 0: it is divided by 1.
    return powers / total.masked_fill(total == 0, 1.0)


# Read on: attention.py: softmax, sparsemax, and the end of attention_weights
def cases():
    hidden = float("-inf")
    yield "one row", "softmax", small([1, 2, 3])
    yield "large, 2 heads", "softmax", small([1, 2, hidden], [1e4, 9999, hidden]).transpose(1, 2)
    yield (
        "a query that sees no key",
        "softmax",
        small([hidden] * 3, [hidden, 0, -12], [-1e4] * 3, [-12000, -11000, hidden]),
    )
    sizes = "B=2, H=3, Tq=4, Tk=5"
    yield sizes, "softmax", *random(sizes, "B H Tq Tk")
