"""Mixture of experts: attention whose values are MLPs, of which each token asks few.

    python -m experiments.routing [--seeds=5]

Claim (Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961): one MLP may be
replaced by many, the experts, of which each token is sent to few. So a model has more parameters
for the same number of FLOPs per token, and learns better. Left alone, the router sends most tokens
to few experts; an auxiliary loss balances their load.

The router is attention here: tokens are queries, each expert has a learned key, and of the weights
only the largest are kept, which then add up to 1, as in Shazeer et al. (but for their noise). The
balancing loss is Fedus et al.'s. No token is dropped. To tell what the router does, the keys of one
kind are random and stay so; to tell what the parameters do, one dense MLP has as many as all
experts together, and every token uses all of them.

Found (6 seeds; of 8 experts each token asks 2, at 1.01 times the FLOPs of the dense model): yes,
routing learns better, 2.028 ± 0.004 nats where the dense model has 2.097 ± 0.008. The large dense
MLP has 2.074 ± 0.010 for 2.5 times the FLOPs (and more at a higher learning rate, which small ones
do not bear). Random keys have 2.048 ± 0.012: to learn them helps little, if at all. Left alone, the
router sends 0.695 ± 0.025 of all tokens to its favourite, where 0.25 would be balanced, and 0.057 ±
0.007 to the least asked; with the balancing loss 0.311 ± 0.003 and 0.176 ± 0.014, and the loss is
not lower for it, 2.028 ± 0.004 and 2.020 ± 0.015.
"""

import statistics
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
from torch.utils.flop_counter import FlopCounterMode

from attention import attention_weights, dot
from experiments.shared import trials
from masks import full
from model import MLP, MODERN, init_weights

T = 64
WIDTH = 64
EXPERTS = 8  # in each layer
CHOSEN = 2  # by each token
BALANCE = 0.01  # the weight of the load-balancing loss: Fedus et al. tried 0.1 to 0.00001
KINDS = {  # (keys of the experts, weight of the balancing loss)
    "dense": (None, 0),
    "routed": ("learned", BALANCE),
    "routed, not balanced": ("learned", 0),
    "routed by random keys": ("random", 0),
    "dense, as large as all experts": (None, 0),
}
_, ROUTED, ALONE, _, LARGE = KINDS
LOSS = "validation loss"


@dataclass
class Settings(trials.Settings):
    learning_rate: float = 0.006


# ---- The models


def load(chosen):
    """Return the part of tokens that each expert gets, (EXPERTS,), from choices (N, CHOSEN)."""
    tokens = torch.bincount(chosen.flatten(), minlength=EXPERTS)
    return tokens / max(1, len(chosen))


class Routed(nn.Module):
    """Experts for tokens x (B, T, C): the mean of the chosen ones' outputs, by a token's weights.

    If experts chose tokens, which balances them too, a token could see the future.
    """

    def __init__(self, config, keys):
        super().__init__()
        random = torch.randn(EXPERTS, config.n_embd) / config.n_embd**0.5
        self.keys = nn.Parameter(random, requires_grad=keys == "learned")
        # Together, the chosen experts are as large as a dense MLP.
        expert = replace(config, mlp_size=config.mlp_size // CHOSEN)
        self.experts = nn.ModuleList(MLP[config.mlp](expert, 0) for _ in range(EXPERTS))

    def forward(self, x):
        keys = self.keys.expand(len(x), 1, -1, -1)
        weights = attention_weights(x[:, None], keys, full, dot)
        weights = weights.flatten(0, 2)  # (B·T, EXPERTS)
        largest, self.chosen = weights.topk(CHOSEN)  # both (B·T, CHOSEN)
        largest = largest / largest.sum(1, keepdim=True)
        # Fedus et al., equation 4: 1 if balanced.
        product = load(self.chosen) * weights.mean(0)
        self.balance_loss = EXPERTS / CHOSEN * product.sum()
        tokens = x.flatten(0, 1)
        y = torch.zeros_like(tokens)
        for n, expert in enumerate(self.experts):
            rows, rank = (self.chosen == n).nonzero(as_tuple=True)
            weight = largest[rows, rank, None]
            y = y.index_add(0, rows, weight * expert(tokens[rows]))
        return y.view_as(x)


def new_model(kind, attention="fused"):
    """Return a GPT of this kind, and its routed MLPs: none, or one in each layer."""
    keys, _ = KINDS[kind]
    mlps = EXPERTS // CHOSEN if kind == LARGE else 1  # the size, in dense MLPs
    settings = MODERN | dict(qk_norm=False, mlp_size=4 * WIDTH * mlps, attention=attention)
    model = trials.new_gpt(block_size=T, n_head=4, n_embd=WIDTH, **settings)
    if not keys:
        return model, []
    for block in model.transformer.h:
        block.mlp = Routed(model.config, keys)
    init_weights(model)  # of the experts, too
    return model, [block.mlp for block in model.transformer.h]


# ---- Runs


def run(kind, config, seed):
    """Return a model's loss and, of each routed layer, the load of its experts."""
    data = trials.load_text()
    model, routed = new_model(kind)
    _, balance = KINDS[kind]

    def loss(step):
        x, y = trials.random_batch(data.train, 16, T, seed, step)
        _, cross_entropy = model(x, y, only_loss=True)
        return cross_entropy + balance * sum(mlp.balance_loss for mlp in routed)

    trials.fit(model, loss, config.steps, config.learning_rate)
    found = {LOSS: trials.text_loss(model, data.val, T)}
    if not routed:
        return found
    x, _ = trials.random_batch(data.val, 256, T, 0)
    model(x)
    loads = [load(mlp.chosen).tolist() for mlp in routed]
    # Means of the layers.
    found["ask the most asked expert"] = statistics.fmean(map(max, loads))
    found["ask the least asked expert"] = statistics.fmean(map(min, loads))
    return found | {"load": loads}


def costs(kind):
    """Return the parameters of a kind, and its FLOPs per token."""
    x, y = torch.randint(256, (2, 16, T))
    # The counter sees the products of this path, those with the future included.
    model, _ = new_model(kind, "masked_fill")
    with FlopCounterMode(display=False) as counter:
        model(x, y)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "MFLOP of a token": counter.get_total_flops() / x.numel() / 1e6,
    }


def draw(runs):
    """Draw losses, and what part of tokens asks each expert of the last layer in one run."""
    figure, (losses, loads) = trials.make_figure(10, 3.4, 1, 2)
    trials.draw_means(losses, runs, LOSS)
    losses.set_title("validation loss (nats per byte)")
    for kind in ROUTED, ALONE:
        layer = runs[kind][0]["load"][-1]
        loads.plot(sorted(layer, reverse=True), "o-", label=kind)
    loads.axhline(CHOSEN / EXPERTS, color="grey", linestyle=":")
    loads.set(title="part of tokens that asks each expert", xticks=())
    loads.legend()
    return figure


def main(config):
    runs = trials.run_seeds(run, KINDS, config)
    rows = trials.make_table("MLP", runs)
    rows = [row | costs(row["MLP"]) for row in rows]
    tables = {f"{EXPERTS} experts, of which each token asks {CHOSEN}": rows}
    trials.write_result("routing", config, tables, draw(runs), runs=runs)


if __name__ == "__main__":
    trials.run_script(main, Settings)
