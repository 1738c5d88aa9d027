"""Scores: how alike are a query and a key?

Write scaled_dot(q, k): every query with every key:
    q (B, H, Tq, D)      k (B, H, Tk, D)      scores (B, H, Tq, Tk)
                 k0    k1    k2
          q0   q0·k0 q0·k1 q0·k2
          q1   q1·k0 q1·k1 q1·k2        all of it divided by √D
B texts and H heads do not see each other. Without the √D the products of vectors of D random
numbers are as large as √D, and softmax of them nearly picks one key.
Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
"""

from exercises.shared.cases import random, small


def scaled_dot(q, k):
    # @ multiplies matrices of the last two dimensions, and k.mT swaps those of k.
    # D is q.shape[-1], and a power of 0.5 is a square root.
    return q @ k.mT / q.shape[-1] ** 0.5


# Read on: attention.py: dot and scaled_dot, then General and Additive, which are learned
def cases():
    q, k = small([1, 0], [1, 1]), small([2, 0], [1, 3])
    yield "B=1, H=1, Tq=2, Tk=2, D=2", "scaled_dot", q, k
    for sizes in "B=1, H=2, Tq=3, Tk=3, D=5", "B=2, H=3, Tq=4, Tk=9, D=6":
        yield sizes, "scaled_dot", *random(sizes, "B H Tq D", "B H Tk D")
