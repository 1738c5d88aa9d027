"""The blocks of an encoder and a decoder: a GPT's, which may also look at something else."""

import torch
import torch.nn as nn

from attention import CrossAttention, full
from masks import PackedDocuments
from model import NORM, POSITION, Block


def packed(real):
    """Return the cache for a batch of which some are real (B, T): no real one sees padding.

    Each padding begins a document of its own.
    """
    return PackedDocuments(torch.arange(real.shape[1]) * real)


class LookingBlock(Block):
    """A block that may look at a memory, too, between its attention and its MLP.

    norm_first: x + f(norm(x)), as in GPT-2; else norm(x + f(x)), as in Vaswani et al. 2017.
    """

    def __init__(self, config, n, looks=True, norm_first=True):
        super().__init__(config, n)
        self.norm_first = norm_first
        if looks:
            self.ln_x = NORM[config.norm](config)
            self.look = CrossAttention(config.n_embd, config.n_head, dropout=config.dropout)

    def forward(self, x, rope=None, cache=None, memory=None, visible=full):
        x = self.add(x, self.ln_1, self.attn, rope, cache)
        if memory is not None:
            x = self.add(x, self.ln_x, self.look, memory, visible)
        return self.add(x, self.ln_2, self.mlp)

    def add(self, x, norm, f, *more):
        if self.norm_first:
            return x + f(norm(x), *more)
        return norm(x + f(x, *more))


class Stack(nn.Module):
    """What stands between embeddings x (B, T, C) and a head: positions, blocks and a norm."""

    def __init__(self, config, block=Block):
        super().__init__()
        self.wpe = POSITION[config.position](config)
        self.h = nn.ModuleList(block(config, n) for n in range(config.n_layer))
        self.ln_f = NORM[config.norm](config)

    def forward(self, x, **more):
        place = slice(x.shape[1])
        x = self.wpe.add(x, place)
        for block in self.h:
            x = block(x, self.wpe.rope(place), **more)
        return self.ln_f(x)
