"""Heads specialise without being told: the moment in which induction heads form.

    python -m experiments.induction [--seeds=5]

Claim (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022,
arXiv:2209.11895): what came before comes again, and a head predicts it that looks at what followed
the last time. This needs two layers: a head of the first writes into each token which one stood
before it, and a head of the second finds by that the token after an earlier copy. So one layer
cannot; and with two, both heads and the ability appear together, suddenly, in the midst of
training.

Found (5 seeds, tokens in random order that repeat after 6 to 16, two heads a layer): with one layer
the loss of what comes again falls from 3.466 nats, a guess, to 2.111 ± 0.018 (which tokens come
again can be known without their order), and no head is an induction head. With two it does no
better for some 120 steps of 64 sequences; then the heads appear, in all 5 runs, at step 178 ± 6,
and the loss falls to 0.278 ± 0.011. At the end the best head of the second layer gives 0.733 ±
0.005 of its attention to what followed, and the best of the first 0.417 ± 0.012 to the previous
token: its two heads share this work.

All this is on synthetic text, which consists of nothing but repetition, and depends on it: in texts
of 24 tokens, of 12 kinds, that repeat after 4 to 8, no such head forms in 200 steps (one seed). How
it is in natural text is not measured here. config/induction.toml trains a model on source code in
which such a head can be found.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from attention import attention_weights
from engine.plotting import heatmaps, inspection
from experiments.shared import trials
from masks import positions

T, VOCAB = 40, 32
SHORTEST, LONGEST = 6, 16  # periods of repetition
LAYERS = 1, 2
EVERY = 10  # steps from one measurement to the next
HALF = 0.5  # of its attention: a head with more of it, on average, is an induction head


@dataclass(kw_only=True)
class Settings(trials.Settings):
    seeds: int = 5


def sequences(number, generator):
    """Return tokens in random order that repeat: ids (number, T + 1), periods (number, 1)."""
    shape = number, 1
    period = torch.randint(SHORTEST, LONGEST + 1, shape, generator=generator)
    ids = torch.randint(VOCAB, (number, T + 1), generator=generator)
    return ids.gather(1, torch.arange(T + 1) % period), period


def measure(model, ids, period):
    """Return losses where all is new and where it comes again, scores of heads, and the maps.

    Scores are lists (n_layer, H): the mean attention of a head to the token that followed the last
    time, and to the previous token. Maps are (n_layer, B, H, T, T).
    """
    with inspection.recording(model, attention_weights) as maps, torch.no_grad():
        logits, _ = model(ids[:, :-1], ids[:, 1:])
    losses = F.cross_entropy(logits.mT, ids[:, 1:], reduction="none")
    weights = torch.stack(maps)
    i, j = positions(T, T)
    again = i[:, 0] >= period  # (B, T): the query's token has been there before
    followed = (j <= i) & (j > 0) & ((i + 1 - j) % period[..., None] == 0)  # (B, T, T)
    on_followed = (weights * followed[:, None]).sum(-1)  # (n_layer, B, H, T)
    on_previous = weights.diagonal(-1, -2, -1)
    scores = {
        "new": losses[:, : SHORTEST - 1].mean().item(),
        "again": losses[again].mean().item(),
        "induction": on_followed.transpose(1, 2)[:, :, again].mean(-1).tolist(),
        "previous token": on_previous.mean((1, 3)).tolist(),
    }
    return scores, weights


def run(n_layer, config, seed):
    """Train a GPT; return measurements every few steps, and its maps before and after."""
    torch.manual_seed(seed)
    model = trials.new_gpt(
        block_size=T,
        vocab_size=VOCAB,
        n_layer=n_layer,
        n_head=2,
        n_embd=64,
        mlp_size=64,
        position="rope",
        rope_base=100.0,
    )
    generator = torch.Generator().manual_seed(seed)
    ids, period = sequences(64, generator)
    shown = (period.flatten() - T // 4).abs().argmin()  # a sequence that comes four times
    steps, curve, maps = [], [], []

    def watch(step):
        scores, weights = measure(model, ids, period)
        steps.append(step)
        curve.append(scores)
        maps.append(weights[:, shown].mean(1))  # the mean of the heads, which share the work

    def loss(step):
        if step % EVERY == 0:
            watch(step)
        new_ids, _ = sequences(64, generator)
        return model(new_ids[:, :-1], new_ids[:, 1:], only_loss=True)[1]

    trials.fit(model, loss, config.steps, 5e-3)
    watch(config.steps)
    found = {key: np.array([scores[key] for scores in curve]) for key in curve[0]}
    return found | {
        "loss, new tokens": curve[-1]["new"],
        "loss, again": curve[-1]["again"],
        "previous token, first layer": found["previous token"][-1, 0].max().item(),
        "induction, last layer": found["induction"][-1, -1].max().item(),
        "steps": steps,
        "maps": {"before": maps[0], "after": maps[-1]},
        "ids": ids[shown].tolist(),
    }


def begins(run):
    """Return the first step at which a head of the last layer is an induction head, or None."""
    for step, scores in zip(run["steps"], run["induction"]):
        if scores[-1].max() > HALF:
            return step


def draw_curves(panel, runs, curves, color, label):
    """Draw a line for each run, with one label for all."""
    lines = panel.plot(runs[0]["steps"], np.transpose(curves), color=color, linewidth=1)
    lines[0].set_label(label)


def draw(runs):
    """Draw losses and scores against steps, and where each layer looks before and after."""
    figure, panels = trials.make_figure(13, 7.2, 2, 3, width_ratios=[1.5, 1, 1])
    losses, scores = panels[:, 0]
    for n_layer, found in runs.items():
        curves = [run["again"] for run in found]
        draw_curves(losses, found, curves, f"C{n_layer - 1}", f"layers: {n_layer}")
    losses.axhline(math.log(VOCAB), color="grey", linestyle=":")
    losses.set(title="loss of tokens that come again (dotted: a guess)", ylabel="nats", ylim=0)

    for layer, kind in enumerate(("previous token", "induction")):
        curves = []
        for run in runs[2]:
            heads = run[kind][:, layer]
            curves.append(heads[:, heads[-1].argmax()])  # the best at the end
        draw_curves(scores, runs[2], curves, f"C{layer + 2}", f"{kind}, layer {layer + 1}")
    scores.set(title="attention of the best heads of two layers", xlabel="step", ylim=(0, 1))

    run = runs[2][0]
    for layer, row in enumerate(panels):
        row[0].legend()
        for panel, (when, maps) in zip(row[1:], run["maps"].items()):
            image = heatmaps.draw(panel, maps[layer], run["ids"][:T], most=0)
            panel.set_title(f"layer {layer + 1}, {when} training")
    heatmaps.scale(figure, image, panels[:, 1:])
    return figure


def main(config):
    runs = trials.run_seeds(run, LAYERS, config)
    rows = trials.make_table("layers", runs)
    for row, found in zip(rows, runs.values()):
        steps = [begins(run) for run in found]
        steps = [step for step in steps if step is not None]
        row["runs with an induction head"] = f"{len(steps)} of {len(found)}"
        row["from step"] = trials.plus_minus(steps, 0) if steps else None
    tables = {f"a guess has a loss of {math.log(VOCAB):.3f}": rows}
    trials.write_result("induction", config, tables, draw(runs))


if __name__ == "__main__":
    trials.run_script(main, Settings)
