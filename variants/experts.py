"""A mixture of experts: each token meets a few of many MLPs (arXiv:1701.06538): `--mlp=experts`.

Rows are sorted by expert into blocks of one size, and all blocks are multiplied at once: none is
dropped, and no shape depends on a choice. The loss that keeps the load even: arXiv:2101.03961.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from engine.errors import UserError


@dataclass(kw_only=True)
class ExpertsSettings:
    # mlp=experts
    experts: int = 8
    """Their number in a layer."""
    experts_per_token: int = 2
    """How many of them a token meets."""
    balance: float = 0.01
    """The weight of the loss that keeps their load even."""


class Stack(nn.Module):
    def __init__(self, config, inputs, outputs, std):
        super().__init__()
        self.active = config.experts_per_token / config.experts  # of the weights, for a token
        self.parts = config.experts * [outputs]  # matrices on top of each other: see Muon
        self.weight = nn.Parameter(std * torch.randn(sum(self.parts), inputs))

    def forward(self, blocks, which):  # (M, S, inputs), and the expert of each block
        return blocks @ self.weight.unflatten(0, (len(self.parts), -1))[which].mT


class Experts(nn.Module):
    def __init__(self, config, n):
        super().__init__()
        self.count, self.k, self.balance = config.experts, config.experts_per_token, config.balance
        if not 1 <= self.k <= self.count:
            raise UserError(f"experts_per_token={self.k} must be 1 to experts={self.count}")
        size = config.mlp_size or 4 * config.n_embd // self.k
        self.router = nn.Linear(config.n_embd, self.count, bias=False)
        self.c_fc = Stack(config, config.n_embd, size, config.n_embd**-0.5)
        self.c_proj = Stack(config, size, config.n_embd, 0.0)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        shares = self.router(tokens).softmax(-1)  # (N, experts)
        largest, chosen = shares.topk(self.k)  # both (N, k)
        chosen, order = chosen.flatten().sort(stable=True)
        load = F.one_hot(chosen, self.count).sum(0)  # rows of each expert
        if self.training:  # balance, if all are alike
            self.auxiliary_loss = (
                self.balance * (load * shares.mean(0)).sum() * self.count / len(chosen)
            )
        S = -(-len(chosen) // self.count)
        blocks = (load + S - 1) // S  # of each expert; its last one ends in zeros
        before = blocks.cumsum(0) - blocks
        number = torch.arange((len(chosen) + self.count * (S - 1)) // S, device=x.device)
        which = torch.searchsorted(before, number, right=True) - 1
        row = torch.arange(len(chosen), device=x.device)
        row = row + (before * S - load.cumsum(0) + load)[chosen]
        padded = tokens.new_zeros(len(number) * S, tokens.shape[1])
        padded = padded.index_copy(0, row, tokens[order // self.k])
        y = self.c_proj(F.relu(self.c_fc(padded.unflatten(0, (-1, S)), which)).square(), which)
        y = y.flatten(0, 1)[row[order.argsort()]].unflatten(0, largest.shape)  # (N, k, n_embd)
        largest = largest / largest.sum(-1, keepdim=True)
        return self.dropout((y * largest[..., None].to(y.dtype)).sum(1).view_as(x))
