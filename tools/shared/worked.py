"""Attention by hand: worked examples, whose numbers come from the functions that train.

Each has its inputs as defaults and returns its steps: {name: a row of numbers, or rows}.
`python attention.py NAME` prints one.
"""

import inspect
import math

import torch
import torch.nn.functional as F

from attention import (
    TILE,
    Additive,
    SelfAttention,
    attention_weights,
    dot,
    masked_fill,
    scaled_dot,
    softmax,
)
from engine.errors import choose
from masks import causal, full, mask_of, positions


def matrix(*lines):
    """Lines of numbers as a tensor (T, D)."""
    return torch.tensor([[float(word) for word in line.split()] for line in lines])


def rows(*lines):
    """Lines of numbers as a tensor (1, 1, T, D): one text, one head."""
    return matrix(*lines)[None, None]


def two_tokens(q=rows("0.5 0", "1 0"), k=rows("1 0", "2 0"), v=rows("10 0", "0 10")):
    """Two tokens, D = 2: both see both, or, by the causal mask, the first one itself alone."""
    return {
        "scores q·k": dot(q, k),
        "divided by √2": scaled_dot(q, k),
        "softmax": attention_weights(q, k, full),
        "average of the values": masked_fill(q, k, v, full),
        "softmax, causal": attention_weights(q, k),
        "average, causal": masked_fill(q, k, v),
    }


def hard(scores):
    """All weight on the best key: for looking only, since the choice has no gradient."""
    return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


def look_up(k=rows("1 0", "0.6 0.8", "0 1"), v=rows("120", "80", "45"), q=rows("1 0", "0 1")):
    """Orders 104, 105 and 106: of two keys, asked at the same time, a dict returns the values.

    Attention returns averages over all. The colder softmax is, the nearer it comes to the dict.
    """
    steps = {"scores": dot(q, k), "weights": attention_weights(q, k, full, dot)}
    for temperature in 1.0, 0.3, 0.1, 0.01:
        look = q / temperature, k, v, full, dot
        steps[f"attention, temperature {temperature}"] = masked_fill(*look)
    return steps | {"attention, the best key only": masked_fill(q, k, v, full, dot, hard)}


def translation(h=rows("0.2 0.1", "1.5 0.3", "0.1 1.2"), s=rows("2 0.4")):
    """The decoder is about to write "chat": it looks back at the words of "the cat slept".

    h: the encoder's states; s: the decoder's.
    """
    return {
        "scores s·h: the, cat, slept": dot(s, h),
        "softmax": attention_weights(s, h, full, dot),
        "context": masked_fill(s, h, h, full, dot),
    }


@torch.no_grad()
def additive(
    s=rows("1 0.5"),
    h=rows("0.8 -0.2"),
    W1=matrix("0.5 -0.3", "0.2 0.4"),
    W2=matrix("0.1 0.6", "-0.4 0.3"),
    v=matrix("1 -0.5"),
):
    """Bahdanau's score of one query s and one key h, term by term."""
    score = Additive(2, 2)
    score.W1.copy_(W1)
    score.W2.copy_(W2)
    score.v.copy_(v[0])
    terms = s @ score.W1, h @ score.W2
    return {
        "s W1": terms[0],
        "h W2": terms[1],
        "tanh of their sum": score.activate(sum(terms)),
        "times v: the score": score(s, h),
    }


@torch.no_grad()
def projections(x=matrix("1 2"), W=matrix("1 0.5", "0 1", "0.5 0", "1 1", "2 0", "0 2")):
    """Three views of one word: the vector of "cat" becomes a query, a key and a value.

    W: two rows for each of the three, as a Linear has them.
    """
    layer = SelfAttention(2, 1)
    layer.c_attn.weight.copy_(W)
    q, k, v = layer.c_attn(x).split(layer.c_attn.parts, 1)
    return {"q = x Wq": q, "k = x Wk": k, "v = x Wv": v}


def self_attention(
    q=rows("1 0", "0 1", "1 1"), k=rows("1 0", "0 2", "1 1"), v=rows("1 0", "0 1", "2 2")
):
    """Three tokens: each looks at all three."""
    return {
        "scores q·k / √2": scaled_dot(q, k),
        "weights": attention_weights(q, k, full),
        "output": masked_fill(q, k, v, full),
    }


def causal_mask(q=rows("0 0", "1 0", "0 1"), k=rows("1 2", "0 2", "0 2")):
    """The mask is 0 where a token may look, and −∞ where it may not."""
    mask = torch.where(mask_of(causal, *positions(3, 3))[0], 0.0, -math.inf)
    return {
        "scores q·k": dot(q, k),
        "mask": mask,
        "their sum": dot(q, k) + mask,
        "softmax": attention_weights(q, k, causal, dot),
    }


def temperatures(scores=rows("2.1 1 0.5 0.1")):
    """Softmax of the same scores, divided by a temperature."""
    chosen = 0.1, 0.5, 1.0, 2.0, 4.0
    return {f"temperature {heat}": softmax(scores / heat) for heat in chosen}


def scale():
    """Random q and k of D = 512 have products of about ±√512 = 22.6: here 22, 0 and −22."""
    q = torch.ones(1, 1, 1, 512)
    k = rows("22", "0", "-22").expand(1, 1, 3, 512) / 512
    return {
        "scores q·k": dot(q, k),
        "softmax": attention_weights(q, k, full, dot),
        "divided by √512": scaled_dot(q, k),
        "softmax, scaled": attention_weights(q, k, full),
    }


def traffic():
    """Millions of numbers between a GPU's memory and its cores, causal, D = 64.

    All scores and weights are written and read, and backward their gradients; those of a tile never
    are, but made again (FlashAttention, arXiv:2205.14135, algorithms 1 and 4).
    """
    T = torch.tensor([1024, 4096, 16384])
    ends = 2 * T * 64 / 1e6  # q is read and the output written, once
    pairs = T**2 / 1e6
    tiles = ends * (T / TILE + 1) / 2
    return {
        "T": T,
        "masked_fill: q, k, v, y": 2 * ends,
        "masked_fill: scores and weights": 4 * pairs,
        "... backward, and gradients": 7 * pairs,
        "tiled: q, y": ends,
        "tiled: k and v of each tile": tiles,
        "... backward: q, y, gradients": 2.5 * tiles,  # five for two: q's are written, too
    }


EXAMPLES = {
    "two-tokens": two_tokens,
    "look-up": look_up,
    "translation": translation,
    "additive": additive,
    "projections": projections,
    "self-attention": self_attention,
    "causal-mask": causal_mask,
    "temperatures": temperatures,
    "scale": scale,
    "traffic": traffic,
}


def show(name):
    """Print an example: what it is, and its steps."""
    example = choose("example", name, EXAMPLES)
    about = " ".join(example.__doc__.split())
    print(f"\n{name}: {about}")
    inputs = {n: p.default for n, p in inspect.signature(example).parameters.items()}
    for step, numbers in (inputs | example()).items():
        numbers = torch.as_tensor(numbers).detach()
        for row in numbers.reshape(-1, numbers.shape[-1]).tolist():
            print(f"  {step:34}" + "".join(f"{number:9.2f}" for number in row))
            step = ""
