"""Masks: who may look?

A mask is a predicate: it says True where the query at position i may look at the key at position j.
i and j are tensors that broadcast against each other, such as i (T, 1) and j (1, T). Write

    causal(i, j)               the token itself, and all before it
    window(i, j, W)            the last W positions, the token itself included
    same_document(i, j, ids)   causal, and both in one document: ids (T,) has the number of each
                               position's document

           causal            window, W = 2       same_document, ids = 0 0 0 1 1
        j  0 1 2 3 4            0 1 2 3 4            0 1 2 3 4
     i=0   ■ · · · ·            ■ · · · ·            ■ · · · ·
     i=1   ■ ■ · · ·            ■ ■ · · ·            ■ ■ · · ·
     i=2   ■ ■ ■ · ·            · ■ ■ · ·            ■ ■ ■ · ·
     i=3   ■ ■ ■ ■ ·            · · ■ ■ ·            · · · ■ ·
     i=4   ■ ■ ■ ■ ■            · · · ■ ■            · · · ■ ■

Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3; Beltagy et al. 2020, arXiv:2004.05150.
"""

import torch

LEARN = ("causal", "window", "same_document")
HINTS = (
    "Comparisons of tensors are predicates: j <= i is True for the token itself and the past.",
    "Two conditions that must both hold are joined by &, each in parentheses.",
    "The window begins at i - W + 1; ids[i] == ids[j] compares the documents.",
)
READ_ON = "masks.py"


def causal(i, j):
    """i, j integers that broadcast -> bool tensor of their common shape."""
    return j <= i


def window(i, j, W):
    """The last W positions, the token itself included."""
    return (j <= i) & (j > i - W)


def same_document(i, j, ids):
    """ids (T,): the document of each position."""
    return (j <= i) & (ids[i] == ids[j])


MISTAKES = {
    "causal: a token cannot see itself": {"causal": lambda i, j: j < i},
    "causal: the future is visible, and not the past": {"causal": lambda i, j: j >= i},
    "causal: one step into the future is visible": {"causal": lambda i, j: j <= i + 1},
    "window: it is one position too long": {"window": lambda i, j, W: (j <= i) & (j >= i - W)},
    "window: it is one position too short": {"window": lambda i, j, W: (j <= i) & (j > i - W + 1)},
    "window: it shows the future, too": {"window": lambda i, j, W: (i - j).abs() < W},
    "window: the present is not in it": {"window": lambda i, j, W: (j < i) & (j >= i - W)},
    "window: the future is all visible": {"window": lambda i, j, W: j > i - W},
    "same_document: the future of the document is visible": {
        "same_document": lambda i, j, ids: ids[i] == ids[j]
    },
    "same_document: earlier documents are visible": {
        "same_document": lambda i, j, ids: (j <= i) & (ids[i] >= ids[j])
    },
    "same_document: only other documents are visible": {
        "same_document": lambda i, j, ids: (j <= i) & (ids[i] != ids[j])
    },
}


def cases():
    for T in 3, 6:
        i, j = torch.arange(T)[:, None], torch.arange(T)[None]
        yield f"T={T}", "causal", i, j
        for W in 1, 2, 4:
            yield f"T={T}, W={W}", "window", i, j, W
        ids = torch.arange(T) // 2
        yield f"T={T}, ids={ids.tolist()}", "same_document", i, j, ids
    i, j = torch.arange(4, 7)[:, None], torch.arange(7)[None]
    yield "the last 3 of 7 positions ask", "causal", i, j
