"""Attention by hand: worked examples, whose numbers come from the functions that train.

Each returns its steps: {name: a row of numbers, or rows}. `python attention.py NAME` prints one.
"""

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
    visible_tiles,
)
from engine.common.errors import choose
from masks import causal, full, mask_of, positions


def matrix(*lines):
    """Lines of numbers as a tensor (T, D)."""
    return torch.tensor([[float(word) for word in line.split()] for line in lines])


def rows(*lines):
    """Lines of numbers as a tensor (1, 1, T, D): one text, one head."""
    return matrix(*lines)[None, None]


def two_tokens():
    """Two tokens, D = 2: the second token sees both."""
    q, k, v = rows("0 0", "1 0"), rows("1 0", "2 0"), rows("10 0", "0 10")
    return {
        "scores q·k": dot(q, k)[..., 1, :],
        "divided by √2": scaled_dot(q, k)[..., 1, :],
        "softmax": attention_weights(q, k)[..., 1, :],
        "average of the values": masked_fill(q, k, v)[..., 1, :],
    }


def hard(scores):
    """All weight on the best key: for looking only, since the choice has no gradient."""
    return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


def look_up():
    """A dict returns the value of one key, attention an average over all keys.

    The colder softmax is, the nearer it comes to the dict.
    """
    database = {"order_104": 120.0, "order_105": 80.0, "order_106": 45.0}
    k, v = rows("1 0", "0.6 0.8", "0 1"), rows(*map(str, database.values()))
    q = rows("0 1")  # the key of order_106
    steps = {"database['order_106']": [database["order_106"]], "scores": dot(q, k)}
    for temperature in 1.0, 0.3, 0.1, 0.01:
        look = q / temperature, k, v, full, dot
        steps[f"attention, temperature {temperature}"] = masked_fill(*look)
    return steps | {"attention, the best key only": masked_fill(q, k, v, full, dot, hard)}


def translation():
    """The decoder is about to write "chat": it looks back at the words of "the cat slept"."""
    h = rows("0.2 0.1", "1.5 0.3", "0.1 1.2")  # the encoder's states
    s = rows("2 0.4")  # the decoder's
    return {
        "scores s·h: the, cat, slept": dot(s, h),
        "softmax": attention_weights(s, h, full, dot),
        "context": masked_fill(s, h, h, full, dot),
    }


@torch.no_grad()
def additive():
    """Bahdanau's score of one query s and one key h, term by term."""
    s, h = rows("1 0.5"), rows("0.8 -0.2")
    score = Additive(2, 2)
    score.W1.copy_(matrix("0.5 -0.3", "0.2 0.4"))
    score.W2.copy_(matrix("0.1 0.6", "-0.4 0.3"))
    score.v.copy_(torch.tensor([1.0, -0.5]))
    terms = s @ score.W1, h @ score.W2
    return {
        "s W1": terms[0],
        "h W2": terms[1],
        "tanh of their sum": score.activate(sum(terms)),
        "times v: the score": score(s, h),
    }


@torch.no_grad()
def projections():
    """Three views of one word: the vector of "cat" becomes a query, a key and a value."""
    layer = SelfAttention(2, 1)
    layer.c_attn.weight.copy_(matrix("1 0.5", "0 1", "0.5 0", "1 1", "2 0", "0 2"))
    cat = torch.tensor([1.0, 2.0])
    q, k, v = layer.c_attn(cat).split(layer.c_attn.parts)
    return {"x": cat, "q = x Wq": q, "k = x Wk": k, "v = x Wv": v}


def self_attention():
    """Three tokens: each looks at all three."""
    q = rows("1 0", "0 1", "1 1")
    k, v = rows("1 0", "0 2", "1 1"), rows("1 0", "0 1", "2 2")
    return {
        "scores q·k / √2": scaled_dot(q, k),
        "weights": attention_weights(q, k, full),
        "output": masked_fill(q, k, v, full),
    }


def causal_mask():
    """The mask is 0 where a token may look, and −∞ where it may not."""
    q, k = rows("0 0", "1 0", "0 1"), rows("1 2", "0 2", "0 2")
    mask = torch.where(mask_of(causal, *positions(3, 3))[0], 0.0, -math.inf)
    return {
        "scores q·k": dot(q, k),
        "mask": mask,
        "their sum": dot(q, k) + mask,
        "softmax": attention_weights(q, k, causal, dot),
    }


def temperatures():
    """Softmax of the same scores, divided by a temperature."""
    scores = rows("2 1 0.5 0.1")
    steps = {"scores": scores}
    for temperature in 0.1, 0.5, 1.0, 2.0, 4.0:
        steps[f"temperature {temperature}"] = softmax(scores / temperature)
    return steps


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
    """Thousands of numbers between a GPU's memory and its cores: T = 1,024, D = 64, causal.

    All scores and weights are written and read; those of a tile never are (FlashAttention,
    arXiv:2205.14135).
    """
    T, D = 1024, 64
    ends = 2 * T * D  # q is read and the output written, once
    i, j = positions(T, T)
    tiles = [tile for rows in i.split(TILE) for tile in visible_tiles(causal, rows, j, 1)]
    keys = sum(mask.shape[-1] for _, mask in tiles)
    return {
        "masked_fill: q, k, v, y": [2 * ends / 1000],
        "masked_fill: scores and weights": [4 * T * T / 1000],
        "tiled: q, y": [ends / 1000],
        "tiled: k and v of each tile": [2 * keys * D / 1000],
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
    for step, numbers in example().items():
        numbers = torch.as_tensor(numbers).detach()
        for row in numbers.reshape(-1, numbers.shape[-1]).tolist():
            print(f"  {step:34}" + "".join(f"{number:9.2f}" for number in row))
            step = ""
