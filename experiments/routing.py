"""Mixture of experts: attention whose values are MLPs, of which each token asks few.

    python -m experiments.routing [--seeds=3]

Claim (Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961): one MLP may be replaced by many, the
experts, of which each token is sent to few. So a model has more parameters for the same number of FLOPs per token, and learns
better. Left alone, the router sends most tokens to few experts; an auxiliary loss balances their load.

The router is attention here, in other words: tokens are queries, each expert has a learned key, and of the weights only the
largest are kept, which then add up to 1, as in Shazeer et al. (but for their noise). The balancing loss is Fedus et al.'s. No
token is dropped. To tell what the router does, the keys of one kind are random and stay so; and to tell what the parameters
do, one dense MLP has as many as all experts together, and every token uses all of them.

Found (--seeds=6; of 8 experts each token asks 2, at 1.01 times the FLOPs of the dense model): yes, routing learns better, by
0.069 ± 0.005 nats of 2.097 ± 0.008. The large dense MLP has 2.074 ± 0.010, and comes as far by --learning_rate=0.012 (2.021 ±
0.007, while routed stays at 2.036 ± 0.004), for 2.5 times the FLOPs: which suggests that it is the parameters that help. That
the keys are learned helps little: random ones have 2.048 ± 0.012, and with twice the rate 2.023 ± 0.011. (The dense model does
not bear that rate: 2.165 ± 0.038. With 0.003 all are worse; two other seeds.) Left alone, the router sends 0.695 ± 0.025 of
all tokens to its favourite, where 0.25 would be balanced, and 0.057 ± 0.007 to the least asked; with the balancing loss 0.311
and 0.176. The loss is not lower for it (2.028 ± 0.004, alone 2.020 ± 0.015). In the run that is drawn, all newlines are sent
to one expert of each layer, and digits to another (0.74 and 0.97 of them). As a loop over experts on a CPU, routing takes 1.48
times as long as the dense MLP, and the large one 2.15.
"""

import statistics
import string
import sys
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn as nn
from torch.utils.flop_counter import FlopCounterMode

from attention import attention_weights, dot
from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.hardware import time_interleaved
from engine.common.settings import parse_settings
from engine.plotting import heatmaps
from experiments.shared import trials
from masks import full
from model import GPT, MLP, GPTConfig, init_weights

T, WIDTH = 64, 64
EXPERTS, CHOSEN = 8, 2  # in each layer; by each token
LARGE = 4 * WIDTH * EXPERTS // CHOSEN  # the size of all experts together
BALANCE = 0.01  # the weight of the load-balancing loss: Fedus et al. tried 0.1 to 0.00001


class Kind(NamedTuple):
    mlp_size: int = 4 * WIDTH  # of a dense MLP, or of the experts that a token asks
    keys: str = ""  # of experts, if there are any: learned or random
    balance: float = 0.0


KINDS = {
    "dense": Kind(),
    "routed": Kind(keys="learned", balance=BALANCE),
    "routed, not balanced": Kind(keys="learned"),
    "routed by random keys": Kind(keys="random"),
    "dense, as large as all experts": Kind(LARGE),
}
BYTES = {
    "a-z": string.ascii_lowercase,
    "A-Z": string.ascii_uppercase,
    "0-9": string.digits,
    "space": " ",
    "newline": "\n",
    "signs": string.punctuation,
}


def load(chosen):
    """The load of each expert, (EXPERTS,): the part of tokens that are sent to it. chosen: each token's experts (N, CHOSEN)."""
    return torch.bincount(chosen.flatten(), minlength=EXPERTS) / max(1, len(chosen))


class Routed(nn.Module):
    """The experts that each token of x (B, T, C) asks, and the mean of their answers by the token's weights for them.

    Each token chooses for itself. (That experts choose tokens, which balances them too, would let these see the future.)
    """

    def __init__(self, config, keys):
        super().__init__()
        self.keys = nn.Parameter(
            torch.randn(EXPERTS, config.n_embd) / config.n_embd**0.5,
            requires_grad=keys == "learned",
        )
        expert = replace(
            config, mlp_size=config.mlp_size // CHOSEN
        )  # together, those chosen are as large as a dense MLP
        self.experts = nn.ModuleList(MLP[config.mlp](expert) for _ in range(EXPERTS))

    def forward(self, x):
        weights = attention_weights(
            x[:, None], self.keys.expand(len(x), 1, -1, -1), full, dot
        ).flatten(0, 2)  # (B·T, EXPERTS)
        largest, self.chosen = weights.topk(CHOSEN)  # both (B·T, CHOSEN)
        self.balance_loss = (
            EXPERTS / CHOSEN * (load(self.chosen) * weights.mean(0)).sum()
        )  # 1 if balanced (Fedus, equation 4)
        largest, tokens = largest / largest.sum(1, keepdim=True), x.flatten(0, 1)
        y = torch.zeros_like(tokens)
        for n, expert in enumerate(self.experts):
            rows, rank = (self.chosen == n).nonzero(as_tuple=True)
            y = y.index_add(0, rows, largest[rows, rank, None] * expert(tokens[rows]))
        return y.view_as(x)


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 400
    """Of training, for each model."""
    learning_rate: float = 0.006
    """Of all models."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps")
        at_least(0, self, "learning_rate")


def new_model(kind, attention="fused"):
    """A GPT of this kind, and its routed MLPs: none, or one in each layer."""
    kind = KINDS[kind]
    model = GPT(
        GPTConfig(
            block_size=T,
            vocab_size=256,
            n_layer=2,
            n_head=4,
            n_embd=WIDTH,
            position="rope",
            norm="rmsnorm",
            mlp="relu2",
            mlp_size=kind.mlp_size,
            bias=False,
            tie_weights=False,
            init="zero_out",
            attention=attention,
        )
    )
    if not kind.keys:
        return model, []
    for block in model.transformer.h:
        block.mlp = Routed(model.config, kind.keys)
    init_weights(model)  # of the experts, too
    return model, [block.mlp for block in model.transformer.h]


def trained(kind, config, seed):
    """A model's loss and, for each routed layer, the load of each expert, of all tokens and of the bytes of each kind."""
    torch.manual_seed(seed)
    data, (model, routed) = trials.text(), new_model(kind)

    def loss(step):
        found = model(*trials.batch(data.train, 16, T, seed, step), only_loss=True)[1]
        return found + KINDS[kind].balance * sum(mlp.balance_loss for mlp in routed)

    trials.fit(model, loss, config.steps, config.learning_rate)
    found = {"loss": trials.text_loss(model, data.val, T)}
    if routed:
        x, _ = trials.batch(data.val, 256, T, 0)
        with torch.no_grad():
            model(x)
        kinds = torch.tensor(
            [[chr(byte) in of_kind for byte in x.flatten()] for of_kind in BYTES.values()]
        )
        found["load"] = [load(mlp.chosen).tolist() for mlp in routed]
        found["bytes"] = [[load(mlp.chosen[rows]).tolist() for rows in kinds] for mlp in routed]
    return found


def costs():
    """{kind: its parameters, FLOPs per token, and the time of a step's passes, as a multiple of the first kind's}."""
    x, y = torch.randint(256, (2, 16, T))
    models, found = {kind: new_model(kind)[0] for kind in KINDS}, {}
    rounds = time_interleaved(
        [lambda model=model: model(x, y)[1].backward() for model in models.values()],
        15,
        torch.device("cpu"),
    )
    for kind, times in zip(models, zip(*([time / each[0] for time in each] for each in rounds))):
        with FlopCounterMode(display=False) as counter:
            new_model(kind, "masked_fill")[0](
                x, y
            )  # whose products it sees, those with the future included
        found[kind] = {
            "parameters": sum(p.numel() for p in models[kind].parameters()),
            "MFLOP of a token": counter.get_total_flops() / x.numel() / 1e6,
            "time": statistics.median(times),
        }
    return found


def draw(runs):
    """Losses; the load of experts, the largest first; and in the first routed run, which bytes are sent to which expert."""
    drawn, panels = trials.figure(14, 3.4, 1, 4, width_ratios=[1.2, 1, 1, 1])
    for n, (kind, found) in enumerate(runs.items()):
        mean, error = trials.mean(run["loss"] for run in found)
        panels[0].errorbar(mean, n, xerr=error, fmt="o", capsize=3)
        if KINDS[kind].keys:
            parts = (
                torch.tensor([run["load"] for run in found])
                .sort(descending=True)
                .values.mean((0, 1))
            )
            panels[1].plot(
                range(1, EXPERTS + 1), parts, "o-", color=f"C{n}", markersize=4, label=kind
            )
    panels[0].set_yticks(range(len(runs)), runs)
    panels[0].invert_yaxis()
    panels[0].set(title="validation loss (nats per byte)")
    panels[1].axhline(CHOSEN / EXPERTS, color="#9a978f", linestyle=":", linewidth=1)
    panels[1].set(
        ylim=(0, None),
        xlabel="expert, from the most to the least asked",
        title="part of tokens that ask it",
    )
    panels[1].legend(frameon=False, fontsize=8)
    for layer, panel in enumerate(panels[2:]):
        heatmaps.cells(
            panel,
            runs["routed"][0]["bytes"][layer],
            [*BYTES],
            [str(n) for n in range(1, EXPERTS + 1)],
        )
        panel.set(title=f"routed, layer {layer + 1}: who asks", xlabel="expert", aspect="auto")
    return drawn


def main(config):
    trials.text()  # before several processes want to make it
    [spent] = trials.every(costs, [()])  # before the other cores are busy
    runs = trials.every(
        trained, [(kind, config, seed) for kind in KINDS for seed in range(config.seeds)]
    )
    runs, rows = trials.by_kind(KINDS, runs), []
    first, *_ = runs.values()
    for kind, found in runs.items():
        row = {
            "MLP": kind,
            "validation loss": trials.plus_minus(run["loss"] for run in found),
            f"less than {[*KINDS][0]}": trials.plus_minus(
                one["loss"] - run["loss"] for one, run in zip(first, found)
            ),
        }
        for what, of in (("most", max), ("least", min)):  # the mean of the layers
            parts = [statistics.fmean(map(of, run["load"])) for run in found if "load" in run]
            row[f"ask the {what} asked expert"] = trials.plus_minus(parts) if parts else None
        rows.append(row | spent[kind])
    trials.write_result(
        config,
        {f"{EXPERTS} experts, of which each token asks {CHOSEN}": rows},
        draw(runs),
        runs=runs,
    )
    return runs


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
