"""An encoder of images and one of captions, which learn only what belongs together: CLIP.

Radford et al. 2021, arXiv:2103.00020.
"""

from dataclasses import replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from experiments.shared import digits
from experiments.shared.blocks import Stack
from experiments.shared.digits import WORDS
from experiments.shared.eye import SHAPE, Eye, fit
from model import Block, init_weights


class Reader(nn.Module):
    """Words (B, T) -> (B, C), the mean over words, each of which sees all: a block of an encoder.

    A block that looks takes a memory as well.
    """

    config = replace(SHAPE, visible="full", n_layer=1)

    def __init__(self, words, block):
        super().__init__()
        self.wte = nn.Embedding(len(words), SHAPE.n_embd)
        self.stack = Stack(self.config, block)
        init_weights(self)
        nn.init.normal_(self.wte.weight)
        nn.init.normal_(self.stack.wpe.weight)

    def forward(self, words, **more):
        return self.stack(self.wte(words), **more).mean(1)


class Pair(nn.Module):
    """Vectors (B, C) of length 1 for images and for captions."""

    def __init__(self):
        super().__init__()
        self.eye = Eye()
        self.reader = Reader(WORDS, Block)
        self.log_scale = nn.Parameter(torch.tensor(1 / 0.07).log())  # of 1 / temperature

    def see(self, images):
        x = self.eye(images).mean(1)
        return F.normalize(x, dim=1)

    def read(self, captions):
        x = self.reader(captions)
        return F.normalize(x, dim=1)


def contrastive_loss(images, captions, scale):
    """Of all captions (B, C) the nth belongs to the nth of images (B, C), and the other way round.

    Equal captions of a batch share the probability.
    """
    scores = scale * images @ captions.T
    own = torch.arange(len(scores))
    to_caption = F.cross_entropy(scores, own)
    to_image = F.cross_entropy(scores.T, own)
    return (to_caption + to_image) / 2


def trained_pair(x, y, steps):
    """Return a Pair that has learned from images x, which show digits y, and their captions."""
    model = Pair()

    def loss(x, y):
        captions = digits.captions(x, y)
        scale = model.log_scale.exp().clamp(max=100)
        return contrastive_loss(model.see(x), model.read(captions), scale)

    fit(model, loss, x, y, steps)
    return model
