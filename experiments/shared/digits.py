"""Handwritten digits of scikit-learn, captions for them, and the vision transformer that sees them.

They are real data that needs no download.
"""

from dataclasses import replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import NORM, Block, GPTConfig, Learned, init_weights

SIDE = 8  # of an image, in pixels
PATCH = 2  # pixels of the side of a patch
PATCHES = (SIDE // PATCH) ** 2
DIGITS = "zero one two three four five six seven eight nine".split()
WIDTHS = ["thin", "thick"]
SIDES = ["left", "right"]
WORDS = ["<start>", "a", *WIDTHS, *DIGITS, "leaning", *SIDES]
LENGTH = 5  # words of a caption
SHAPE = GPTConfig(
    block_size=PATCHES,
    vocab_size=len(WORDS),
    n_layer=3,
    n_head=4,
    n_embd=64,
    norm="rmsnorm",
    init="zero_out",
    tie_weights=False,
)


def images(seed):
    """Return (images, digits) for training and for the test, a quarter of 1,797.

    Images are (N, 8, 8), ink from 0 to 1; digits are (N,).
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.target), generator=generator)
    x = torch.tensor(data.images / 16, dtype=torch.float32)[order]
    y = torch.tensor(data.target)[order]
    tested = len(x) // 4
    train = x[tested:], y[tested:]
    return train, (x[:tested], y[:tested])


def captions(x, y):
    """Return captions of images x that show digits y, as ids of WORDS (N, 1 + LENGTH).

    They say whether a digit is thin or thick, and whether it leans to the left or right.
    """
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    ink = x.sum((1, 2))
    down = (x.sum(2) @ place) / ink  # the centre of the ink
    right = (x.sum(1) @ place) / ink
    product = torch.einsum("nij,i,j->n", x, place, place) / ink
    covariance = product - down * right
    found = []
    for n, digit in enumerate(y):
        width = WIDTHS[ink[n] > 0.3 * SIDE**2]
        side = SIDES[covariance[n] < 0]
        words = ["<start>", "a", width, DIGITS[digit], "leaning", side]
        found.append([WORDS.index(word) for word in words])
    return torch.tensor(found)


def augmented(x):
    """Return images (B, 8, 8), each stretched, slanted and shifted a little at random."""
    scale = torch.tensor([0.1, 0.1, 0.15])
    change = torch.randn(len(x), 2, 3) * scale
    x = x[:, None]
    grid = F.affine_grid(torch.eye(2, 3) + change, x.shape, align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)
    return x[:, 0]


class Eye(nn.Module):
    """A vision transformer: images (B, 8, 8) -> what it sees in each patch (B, PATCHES, C)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.patch = nn.Linear(PATCH**2, config.n_embd)
        self.wpe = Learned(config)
        no_future = replace(config, visible="full")
        self.h = nn.ModuleList(Block(no_future, n) for n in range(config.n_layer))
        self.ln_f = NORM[config.norm](config)
        self.head = nn.Linear(config.n_embd, len(DIGITS))
        init_weights(self)
        nn.init.normal_(self.wpe.weight)  # as large as the patches, to tell where they were

    def forward(self, x):
        patches = F.unfold(x[:, None], PATCH, stride=PATCH)  # (B, PATCH², PATCHES)
        x = self.patch(patches.mT)
        x = self.wpe.add(x, slice(None))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)

    def classify(self, x):
        """The paper's appendix D.3: the mean of all patches serves as well as a class token."""
        return self.head(self(x).mean(1))
