"""Mixture of experts: attention whose values are MLPs, of which each token asks few.

    python -m experiments.routing [--seeds=3]

Claim (Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961): an MLP may be many, the experts, if each
token is sent to few of them: those whose keys its own vector has the largest attention weights for. So a model has more
parameters at the same number of operations for each token, and learns better. Left alone, such a router sends most tokens to
few experts; a loss that is least when all of them have equally many keeps the balance.

To tell what the routing does from what the parameters do, the keys of one kind are random and stay so, and one dense model
has as large an MLP as all experts together, which is what a routed one would be if every token asked all.

Found (400 steps, 3 seeds): of 8 experts each token asks 2, so that a routed MLP has four times the parameters of the dense
one, and 1.01 times the operations of the whole model. It learns better: 2.100 ± 0.025 nats for 2.173 ± 0.007 (500 steps:
1.992 ± 0.013 for 2.074 ± 0.021). Random keys do nearly as well, 2.126 ± 0.012, so that most of this is not the router's
merit; nor only that of the parameters: a dense MLP that has as many learns 2.143 ± 0.009, not less. Without the balance the
most asked expert of a layer has 0.351 ± 0.030 of what is sent and the least asked 0.027 ± 0.009, which is not all to few;
with it 0.161 and 0.094. The loss is the same within its error, 2.116 ± 0.023. Kinds of bytes have their experts: line ends,
digits and capitals most clearly. As a loop over experts on a CPU, a step's passes take 1.47 times as long as the dense ones;
those of the large one 2.18.
"""

import statistics
import sys
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
from torch.utils.flop_counter import FlopCounterMode

from attention import attention_weights, dot
from engine import configure, heatmaps, trials
from engine.checks import at_least
from engine.roofline import take_turns
from masks import full
from model import GPT, MLP, GPTConfig, init_weights

T, WIDTH = 64, 64
EXPERTS, CHOSEN = 8, 2  # in each layer; by each token
BALANCE = 0.01  # how much an imbalance of 1 adds to the loss: Fedus et al. found this best
BYTES = {"a-z": str.islower, "A-Z": str.isupper, "0-9": str.isdigit, "space": " ".__eq__, "newline": "\n".__eq__,
         "others": lambda byte: not (byte.isalnum() or byte.isspace())}


def shares(chosen):
    """What part each expert has of those that are asked, (N, CHOSEN): (EXPERTS,)."""
    return torch.bincount(chosen.flatten(), minlength=EXPERTS) / max(1, chosen.numel())


class Routed(nn.Module):
    """The experts that each token of x (B, T, C) asks, and the mean of their answers by the token's weights for them.

    Each token chooses experts by itself. (Experts that choose tokens, which keeps the balance too, would see the future.)
    """

    def __init__(self, config, learned):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(EXPERTS, config.n_embd) / config.n_embd**0.5, requires_grad=learned)
        expert = replace(config, mlp_size=4 * config.n_embd // CHOSEN)  # together, those chosen are as large as a dense MLP
        self.experts = nn.ModuleList(MLP[config.mlp](expert) for _ in range(EXPERTS))

    def forward(self, x):
        weights = attention_weights(x[:, None], self.keys.expand(len(x), 1, -1, -1), full, dot).flatten(0, 2)  # (B·T, EXPERTS)
        largest, self.chosen = weights.topk(CHOSEN)  # both (B·T, CHOSEN)
        self.imbalance = EXPERTS * (shares(self.chosen) * weights.mean(0)).sum()  # Fedus et al., equation 4; 1: balanced
        largest, tokens = largest / largest.sum(1, keepdim=True), x.flatten(0, 1)
        y = torch.zeros_like(tokens)
        for n, expert in enumerate(self.experts):
            rows, rank = (self.chosen == n).nonzero(as_tuple=True)
            y = y.index_add(0, rows, largest[rows, rank, None] * expert(tokens[rows]))
        return y.view_as(x)


KINDS = {  # name -> size of a dense MLP, or whether the experts' keys are learned, and the weight of the imbalance
    "dense": 4 * WIDTH, "routed": (True, BALANCE), "routed, not balanced": (True, 0), "routed by random keys": (False, 0),
    "dense, as large as all experts": 4 * WIDTH * EXPERTS // CHOSEN,
}


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 400
    """Of training, for each model."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps")


def new_model(kind):
    """A GPT of this kind, and its routed MLPs: none, or one in each layer."""
    dense = isinstance(KINDS[kind], int)
    model = GPT(GPTConfig(block_size=T, vocab_size=256, n_layer=2, n_head=4, n_embd=WIDTH, position="rope", norm="rmsnorm",
                          mlp="relu2", mlp_size=KINDS[kind] if dense else 0, bias=False, tie_weights=False, init="zero_out"))
    for block in () if dense else model.transformer.h:
        block.mlp = Routed(model.config, KINDS[kind][0])
    init_weights(model)
    return model, [block.mlp for block in model.transformer.h if isinstance(block.mlp, Routed)]


def trained(kind, config, seed):
    """A model's loss, and what each expert's share is of all tokens, and of the bytes of each kind, for each routed layer."""
    torch.manual_seed(seed)
    data, (model, routed) = trials.text(), new_model(kind)

    def loss(step):
        found = model(*trials.batch(data.train, 16, T, seed, step), only_loss=True)[1]
        return found + KINDS[kind][1] * sum(mlp.imbalance for mlp in routed) if routed else found

    trials.fit(model, loss, config.steps, 3e-3)
    found = {"loss": trials.text_loss(model, data.val, T)}
    if routed:
        x, _ = trials.batch(data.val, 256, T, 0)
        with torch.no_grad():
            model(x)
        kinds = torch.tensor([[of_kind(chr(byte)) for byte in x.flatten()] for of_kind in BYTES.values()])
        found["loads"] = [shares(mlp.chosen).tolist() for mlp in routed]
        found["bytes"] = [[shares(mlp.chosen[rows]).tolist() for rows in kinds] for mlp in routed]
    return found


def costs():
    """{kind: its parameters, operations of a pass, and the time of a step's passes in both directions, for a dense model's}."""
    x, y = torch.randint(256, (2, 16, T))
    models, found = {kind: new_model(kind)[0] for kind in KINDS}, {}
    rounds = take_turns([lambda model=model: model(x, y)[1].backward() for model in models.values()], 15, torch.device("cpu"))
    for (kind, model), times in zip(models.items(), zip(*([time / each[0] for time in each] for each in rounds))):
        with FlopCounterMode(display=False) as counter:
            model(x, y)
        found[kind] = {"parameters": sum(p.numel() for p in model.parameters()),
                       "MFLOP of a token": counter.get_total_flops() / x.numel() / 1e6,
                       "time, dense = 1": statistics.median(times)}
    return found


def draw(runs):
    """Losses; how many tokens each expert has, the most asked first; and for bytes of a kind, which experts they ask."""
    drawn, panels = trials.figure(14, 3.4, 1, 4, width_ratios=[1.2, 1, 1, 1])
    for n, (kind, found) in enumerate(runs.items()):
        mean, error = trials.mean(run["loss"] for run in found)
        panels[0].errorbar(mean, n, xerr=error, fmt="o", capsize=3)
        if "loads" in found[0]:
            loads = torch.tensor([load for run in found for load in run["loads"]]).sort(descending=True).values.mean(0)
            panels[1].plot(range(1, EXPERTS + 1), loads, "o-", color=f"C{n}", markersize=4, label=kind)
    panels[0].set_yticks(range(len(runs)), runs)
    panels[0].invert_yaxis()
    panels[0].set(title="validation loss (nats per byte)")
    panels[1].axhline(1 / EXPERTS, color="#9a978f", linestyle=":", linewidth=1)
    panels[1].set(ylim=(0, None), xlabel="expert, from the most to the least asked", title="share of tokens")
    panels[1].legend(frameon=False, fontsize=8)
    for layer, panel in enumerate(panels[2:]):
        heatmaps.cells(panel, runs["routed"][0]["bytes"][layer], [*BYTES], [str(n) for n in range(1, EXPERTS + 1)])
        panel.set(title=f"layer {layer + 1}: who asks which expert", aspect="auto")
    return drawn


def main(config):
    trials.text()  # before several processes want to make it
    [spent] = trials.every(costs, [()])  # before the other cores are busy
    runs = trials.every(trained, [(kind, config, seed) for kind in KINDS for seed in range(config.seeds)])
    runs, rows = trials.by_kind(KINDS, runs), []
    for kind, found in runs.items():
        loads = [load for run in found for load in run.get("loads", ())]  # of all seeds and layers
        asked = {f"{what} asked expert": trials.plus_minus(map(of, loads)) if loads else None
                 for what, of in (("most", max), ("least", min))}
        rows.append({"MLP": kind, "validation loss": trials.plus_minus(run["loss"] for run in found), **spent[kind], **asked})
    trials.store(config, {f"{EXPERTS} experts, of which each token asks {CHOSEN}": rows}, draw(runs))
    return runs


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(Settings, sys.argv[1:]))
