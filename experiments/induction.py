"""Heads specialise without being told: the moment in which induction heads form.

    python -m experiments.induction [--seeds=5]

Claim (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, arXiv:2209.11895): what came
before comes again, and a head predicts it that looks at what followed the last time. This needs two layers: a head of the first
writes into each token which one stood before it, and a head of the second finds by that the token after an earlier copy. So one
layer cannot; and with two, both heads and the ability appear together, suddenly, in the midst of training.

Found (5 seeds, tokens in random order that repeat after 6 to 16, two heads a layer): with one layer the loss of what comes
again falls from 3.466 nats, a guess, to 2.111 ± 0.018 (which tokens come again can be known without their order), and no head
is an induction head. With two it does no better for some 120 steps of 64 sequences; then the heads appear, in all 5 runs, at
step 178 ± 6, and the loss falls to 0.278 ± 0.011. At the end the best head of the second layer gives 0.733 ± 0.005 of its
attention to what followed, and the best of the first 0.417 ± 0.012 to the previous token: its two heads share this work.

All this is on synthetic text, which consists of nothing but repetition, and depends on it: in texts of 24 tokens, of 12 kinds,
that repeat after 4 to 8, no such head forms in 200 steps (one seed). How it is in natural text is not measured here.
config/induction.toml trains a model on source code in which such a head can be found.
"""

import math
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attention import attention_weights
from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from engine.plotting import heatmaps, inspection
from experiments.shared import trials
from masks import positions
from model import GPT, GPTConfig

T, VOCAB, SHORTEST, LONGEST = 40, 32, 6, 16
LAYERS = 1, 2
HALF = 0.5  # of its attention: a head with more of it, on average, is an induction head


@dataclass(kw_only=True)
class Settings(trials.Settings):
    seeds: int = 5
    """Runs with one layer, and with two, from whose spread the standard errors are computed."""
    steps: int = 400
    """Of training, for each model."""
    every: int = 10
    """Steps from one measurement to the next."""

    def __post_init__(self):
        super().__post_init__()
        at_least(2, self, "steps")
        at_least(1, self, "every", most=self.steps)


def sequences(number, generator):
    """Tokens in random order that repeat after a period, another one in each row: ids (number, T + 1), periods (number, 1)."""
    period = torch.randint(SHORTEST, LONGEST + 1, (number, 1), generator=generator)
    ids = torch.randint(VOCAB, (number, T + 1), generator=generator)
    return ids.gather(1, torch.arange(T + 1) % period), period


def measure(model, ids, period, shown):
    """Losses where all is new and where it comes again; of each head (n_layer, H) the scores; and the maps of one row."""
    with inspection.recording(model, attention_weights) as maps, torch.no_grad():
        logits, _ = model(ids[:, :-1], ids[:, 1:])
    i, j = positions(T, T)
    again = i[:, 0] >= period  # (B, T): the query's token has been there before
    after = (
        (j <= i) & (j > 0) & ((i + 1 - j) % period[..., None] == 0)
    )  # (B, T, T): what followed it
    losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    weights = torch.stack(maps)  # (n_layer, B, H, T, T)
    followed = (
        (weights * after[:, None]).sum(-1).transpose(1, 2)[:, :, again]
    )  # (n_layer, H, queries)
    return {
        "new": losses[:, : SHORTEST - 1].mean().item(),
        "again": losses[again].mean().item(),
        "induction": followed.mean(-1).tolist(),
        "previous token": weights.diagonal(-1, -2, -1).mean((1, 3)).tolist(),
    }, weights[:, shown].numpy()


def trained(n_layer, steps, every, seed):
    """What training does to the heads of a GPT: measurements every few steps, and its maps of one sequence before and after."""
    torch.manual_seed(seed)
    model = GPT(
        GPTConfig(
            block_size=T,
            vocab_size=VOCAB,
            n_layer=n_layer,
            n_head=2,
            n_embd=64,
            mlp_size=64,
            position="rope",
            rope_base=100.0,
            norm="rmsnorm",
            bias=False,
            tie_weights=False,
        )
    )
    generator = torch.Generator().manual_seed(seed)
    held_out, curve, maps = sequences(64, generator), [], []
    shown = (held_out[1].flatten() - T // 4).abs().argmin()  # a sequence that comes four times

    def watch(step):
        found, weights = measure(model, *held_out, shown)
        curve.append({"step": step} | found)
        maps[1:] = [weights]

    def loss(step):
        if step % every == 0:
            watch(step)
        ids, _ = sequences(64, generator)
        return model(ids[:, :-1], ids[:, 1:], only_loss=True)[1]

    trials.fit(model, loss, steps, 5e-3)
    watch(steps)
    return {
        "curve": curve,
        "before": maps[0],
        "after": maps[-1],
        "ids": held_out[0][shown].tolist(),
    }


def steps_of(run):
    return [found["step"] for found in run["curve"]]


def best(run, layer, kind):
    """The scores all along of the head of a layer that has the highest at last."""
    last = run["curve"][-1][kind][layer]
    return [found[kind][layer][last.index(max(last))] for found in run["curve"]]


def begins(run):
    """The first step measured at which a head of the last layer is an induction head; None if there is none."""
    return next(
        (found["step"] for found in run["curve"] if max(found["induction"][-1]) > HALF), None
    )


def row(n_layer, runs):
    last, steps = (
        [run["curve"][-1] for run in runs],
        [step for run in runs if (step := begins(run)) is not None],
    )
    return {
        "layers": n_layer,
        "loss, new tokens": trials.plus_minus(found["new"] for found in last),
        "loss, again": trials.plus_minus(found["again"] for found in last),
        "previous token, first layer": trials.plus_minus(
            max(found["previous token"][0]) for found in last
        ),
        "induction, last layer": trials.plus_minus(max(found["induction"][-1]) for found in last),
        "runs with an induction head": f"{len(steps)} of {len(runs)}",
        "from step": trials.plus_minus(steps, 0) if steps else None,
    }


def draw(runs):
    """Losses and scores against steps; of the first run with two layers, where each layer looks before and after."""
    drawn, panels = trials.figure(13, 7.2, 2, 3, width_ratios=[1.5, 1, 1])
    for n_layer, of_seeds in runs.items():
        for n, run in enumerate(of_seeds):
            panels[0, 0].plot(
                steps_of(run),
                [found["again"] for found in run["curve"]],
                color=f"C{n_layer - 1}",
                linewidth=1,
                label=f"{n_layer} layer{'s' * (n_layer > 1)}" if not n else None,
            )
    for n, run in enumerate(runs[2]):
        for layer, kind in enumerate(("previous token", "induction")):
            panels[1, 0].plot(
                steps_of(run),
                best(run, layer, kind),
                color=f"C{layer + 2}",
                linewidth=1,
                label=f"{kind}, layer {layer + 1}" if not n else None,
            )
    panels[0, 0].axhline(math.log(VOCAB), color="grey", linestyle=":", linewidth=1)
    panels[0, 0].set(
        title="loss of tokens that come again (dotted: a guess)", ylabel="nats", ylim=0
    )
    panels[1, 0].set(title="attention of the best heads of two layers", xlabel="step", ylim=(0, 1))
    for panel in panels[:, 0]:
        panel.legend(frameon=False)
    run = runs[2][0]
    for layer, of_layer in enumerate(panels[:, 1:]):
        for panel, when in zip(of_layer, ("before", "after")):
            image = heatmaps.draw(panel, run[when][layer].mean(0), run["ids"][:T], most=0)
            panel.set_title(
                f"layer {layer + 1}, {when} training"
            )  # the mean of its heads, which share the work
    heatmaps.scale(drawn, image, panels[:, 1:])
    return drawn


def main(config):
    jobs = [
        (n_layer, config.steps, config.every, seed)
        for n_layer in LAYERS
        for seed in range(config.seeds)
    ]
    found = trials.every(trained, jobs)
    runs = trials.by_kind(LAYERS, found)
    rows = [row(n_layer, of_seeds) for n_layer, of_seeds in runs.items()]
    trials.write_result(config, {f"a guess has a loss of {math.log(VOCAB):.3f}": rows}, draw(runs))
    return runs


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
