"""A vision transformer for the digits of digits.py, and what looks at an image through it."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from experiments.shared import digits, trials
from experiments.shared.blocks import Stack
from experiments.shared.digits import DIGITS, SIDE, WORDS
from model import GPTConfig, init_weights

PATCH = 2  # pixels of its side
PATCHES = (SIDE // PATCH) ** 2
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


class Eye(nn.Module):
    """A vision transformer: images (B, 8, 8) -> what it sees in each patch (B, PATCHES, C).

    Or, if not in each, the mean of that, (B, 1, C).
    """

    config = SHAPE

    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(PATCH**2, SHAPE.n_embd)
        self.stack = Stack(replace(SHAPE, visible="full"))
        self.head = nn.Linear(SHAPE.n_embd, len(DIGITS))
        init_weights(self)
        # As large as the patches, to tell where they were.
        nn.init.normal_(self.stack.wpe.weight)

    def forward(self, x, each=True):
        patches = F.unfold(x[:, None], PATCH, stride=PATCH)  # (B, PATCH², PATCHES)
        y = self.stack(self.patch(patches.mT))
        return y if each else y.mean(1, keepdim=True)

    def classify(self, x):
        """The paper's appendix D.3: the mean of all patches serves as well as a class token."""
        return self.head(self(x).mean(1))


def fit(model, loss, x, y, steps, size=64, learning_rate=3e-3, changed=True):
    """Train a model for loss(images, digits). changed: each time, images are a little different."""

    def of_step(step):
        rows = torch.randint(len(x), (size,))
        images = digits.augmented(x[rows]) if changed else x[rows]
        return loss(images, y[rows])

    trials.fit(model, of_step, steps, learning_rate, weight_decay=0.05)


def train_classifier(model, train, test, *how):
    """Train a model to classify images; return its accuracy. how: what fit takes, from steps on."""

    def loss(x, y):
        return F.cross_entropy(model.classify(x), y, label_smoothing=0.1)

    fit(model, loss, *train, *how)
    x, y = test
    return trials.accuracy(model.classify(x), y)


def show(panel, image, weights=None):
    """Draw an image, and in red the weights of its patches."""
    panel.imshow(image, cmap="gray_r", vmin=0, vmax=1)
    panel.axis("off")
    if weights is not None:
        patches = weights.reshape(SIDE // PATCH, -1)
        patch = np.ones((PATCH, PATCH))
        pixels = np.kron(patches, patch)
        opacity = 0.7 * pixels / pixels.max()
        panel.imshow(0 * pixels, cmap="autumn", alpha=opacity)


def draw_looks(rows):
    """Draw rows of an image, and of what was looked at: (image, titles, weights for each title)."""
    columns = 1 + len(rows[0][1])
    figure, panels = trials.make_figure(2 * columns, 2.2 * len(rows), len(rows), columns)
    for (first, *others), (image, titles, weights) in zip(panels, rows):
        show(first, image)
        for panel, title, own in zip(others, titles, weights):
            show(panel, image, own)
            panel.set_title(title, fontsize=9)
    return figure
