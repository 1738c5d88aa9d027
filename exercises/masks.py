"""Masks: who may look?

A mask is a predicate: it says True where the query at position i may look at the key at position j.
i and j are any tensors that broadcast against each other, such as i (Tq, 1) and j (1, Tk). Write
    causal(i, j)               the token itself, and all before it
    window(i, j, W)            the last W positions, the token itself included
    same_document(i, j, ids)   causal, and both in one document; ids (T,): each position's document
           causal          window, W = 2     same_document, ids = 0 0 1 1
        j  0 1 2 3            0 1 2 3            0 1 2 3
     i=0   ■ · · ·            ■ · · ·            ■ · · ·
     i=1   ■ ■ · ·            ■ ■ · ·            ■ ■ · ·
     i=2   ■ ■ ■ ·            · ■ ■ ·            · · ■ ·
     i=3   ■ ■ ■ ■            · · ■ ■            · · ■ ■
Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3; Beltagy et al. 2020, arXiv:2004.05150.
"""

import torch


def causal(i, j):
    # True for itself and the past; & joins conditions. The last W begin at i - W + 1.
    return j <= i


def window(i, j, W):
    return (j <= i) & (j > i - W)


def same_document(i, j, ids):
    # ids[i] are the documents of the queries, ids[j] those of the keys.
    return (j <= i) & (ids[i] == ids[j])


# Read on: masks.py
def cases():
    table = [  # queries and keys
        ([0, 1, 2], [range(3)]),
        ([5, 2, 3], [range(1, 7)]),
        ([[2, 3]], [2]),
    ]
    for i, j in table:
        label = f"positions {i} look"
        i, j = torch.tensor(i)[..., None], torch.tensor(j)
        yield label, "causal", i, j
        yield label, "same_document", i, j, torch.tensor([0, 0, 2, 2, 1, 0, 0])
        for W in 1, 2:
            yield f"{label}, W={W}", "window", i, j, W
