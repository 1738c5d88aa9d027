"""The block of an encoder and a decoder: a GPT's, which may also look at something else."""

from attention import CrossAttention, full
from model import NORM, Block


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

    def forward(self, x, memory=None, visible=full, cache=None):
        x = self.add(x, self.ln_1, self.attn, None, cache)
        if memory is not None:
            x = self.add(x, self.ln_x, self.look, memory, visible)
        return self.add(x, self.ln_2, self.mlp)

    def add(self, x, norm, f, *more):
        if self.norm_first:
            return x + f(norm(x), *more)
        return norm(x + f(x, *more))
