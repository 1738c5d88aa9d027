"""Handwritten digits of scikit-learn, real data that needs no download; captions, and questions."""

import itertools

import torch
import torch.nn.functional as F

from experiments.shared.translation import padded

SIDE = 8  # of an image, in pixels
DIGITS = "zero one two three four five six seven eight nine".split()
WIDTHS = ["thin", "thick"]
SIDES = ["left", "right"]
WORDS = ["<start>", "a", *WIDTHS, *DIGITS, "leaning", *SIDES]
LENGTH = 5  # words of a caption
CAPTIONS = [
    f"<start> a {width} {digit} leaning {side}"
    for digit, width, side in itertools.product(DIGITS, WIDTHS, SIDES)
]
LIMITS = 2, 4, 6  # a digit is larger than a limit, or smaller than the one after it
QUESTIONS = ["is it even", "is it thick", "does it lean right"]
QUESTIONS += [f"is it larger than {DIGITS[n]}" for n in LIMITS]
QUESTIONS += ["is it odd", "is it thin", "does it lean left"]  # the opposites, in the same order
QUESTIONS += [f"is it smaller than {DIGITS[n + 1]}" for n in LIMITS]


def encode(texts, words):
    """Return texts as numbers of their words (N, T), 0 after the end of shorter ones."""
    rows = [[words.index(word) for word in text.split()] for text in texts]
    numbers, _ = padded(rows)
    return numbers


def images(seed):
    """Return (images, digits) for training and for the test, a quarter of 1,797.

    Images are (N, 8, 8), ink from 0 to 1; digits are (N,).
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.target), generator=generator)
    ink = torch.tensor(data.images / 16, dtype=torch.float32)
    x = ink[order]
    y = torch.tensor(data.target)[order]
    tested = len(x) // 4
    train = x[tested:], y[tested:]
    return train, (x[:tested], y[:tested])


def looks(x):
    """Return whether images x are thick, and whether they lean to the right, both (N,) bool."""
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    ink = x.sum((1, 2))
    down = (x.sum(2) @ place) / ink  # the centre of the ink
    right = (x.sum(1) @ place) / ink
    product = torch.einsum("nij,i,j->n", x, place, place) / ink
    covariance = product - down * right
    return ink > 0.3 * SIDE**2, covariance < 0


def captions(x, y):
    """Return captions of images x that show digits y, as ids of WORDS (N, 1 + LENGTH).

    They say whether a digit is thin or thick, and whether it leans to the left or right.
    """
    thick, right = looks(x)
    return encode(CAPTIONS, WORDS)[4 * y + 2 * thick + right]


def answers(x, y):
    """Return the answers to all QUESTIONS about images x of digits y, True for yes: (Q, N)."""
    thick, right = looks(x)
    even = y % 2 == 0
    larger = [y > n for n in LIMITS]
    facts = torch.stack([even, thick, right, *larger])
    return torch.cat([facts, ~facts])


def augmented(x):
    """Return images (B, 8, 8), each stretched, slanted and shifted a little at random."""
    scale = torch.tensor([0.1, 0.1, 0.15])
    change = torch.randn(len(x), 2, 3) * scale
    x = x[:, None]
    grid = F.affine_grid(torch.eye(2, 3) + change, x.shape, align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)
    return x[:, 0]
