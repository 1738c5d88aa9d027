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
better for a while; then the heads appear, in all 5 runs, at step 178 ± 6, and the loss falls to
0.278 ± 0.011. At the end the best head of the second layer gives 0.733 ± 0.005 of its attention to
what followed, and the best of the first 0.417 ± 0.012 to the previous token: its two heads share
this work.

All this is on synthetic text, which consists of nothing but repetition, and depends on it. How it
is in natural text is not measured here. config/induction.toml trains a model on source code in
which such a head can be found.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from experiments.shared import trials
from masks import positions
from tools.shared import inspection

T = 40
VOCAB = 32
SHORTEST = 6  # period of repetition
LONGEST = 16
LAYERS = 1, 2
EVERY = 10  # steps from one measurement to the next
HALF = 0.5  # of its attention: a head with more of it, on average, is an induction head


def sequences(number, generator):
    """Return tokens in random order that repeat: ids (number, T + 1), periods (number, 1)."""
    shape = number, 1
    period = torch.randint(SHORTEST, LONGEST + 1, shape, generator=generator)
    ids = torch.randint(VOCAB, (number, T + 1), generator=generator)
    return ids.gather(1, torch.arange(T + 1) % period), period


def measure(model, ids, period):
    """Return losses where all is new and where it comes again, and scores of heads.

    Scores are lists (n_layer, H): the mean attention of a head to the token that followed the last
    time, and to the previous token.
    """
    targets = ids[:, 1:]
    with inspection.recording(model) as maps, torch.no_grad():
        logits, _ = model(ids[:, :-1], targets)
    losses = F.cross_entropy(logits.mT, targets, reduction="none")
    weights = torch.stack(maps)
    i, j = positions(T, T)
    again = i[:, 0] >= period  # (B, T): the query's token has been there before
    past = (j <= i) & (j > 0)
    distance = i + 1 - j
    followed = past & (distance % period[..., None] == 0)  # (B, T, T)
    on_followed = (weights * followed[:, None]).sum(-1)
    on_followed = on_followed.transpose(1, 2)  # (n_layer, H, B, T)
    on_previous = weights.diagonal(-1, -2, -1)
    return {
        "new": losses[:, : SHORTEST - 1].mean().item(),
        "again": losses[again].mean().item(),
        "induction": on_followed[:, :, again].mean(-1).tolist(),
        "previous token": on_previous.mean((1, 3)).tolist(),
    }


def run(n_layer, config, seed):
    """Train a GPT; return measurements at every EVERY-th step."""
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
    measurements = []

    def loss(step):
        if step % EVERY == 0:
            measurements.append(measure(model, ids, period))
        new_ids, _ = sequences(64, generator)
        x = new_ids[:, :-1]
        y = new_ids[:, 1:]
        return model(x, y, only_loss=True)[1]

    trials.fit(model, loss, config.steps, 5e-3)
    last = measure(model, ids, period)
    measurements.append(last)
    curves = {key: np.array(scores) for key, scores in trials.by_kind(measurements).items()}
    return curves | {
        "loss, new tokens": last["new"],
        "loss, again": last["again"],
        "previous token, first layer": max(last["previous token"][0]),
        "induction, last layer": max(last["induction"][-1]),
        "steps": [*range(0, config.steps, EVERY), config.steps],
    }


def begins(run):
    """Return the first step at which a head of the last layer is an induction head, or None."""
    for step, scores in zip(run["steps"], run["induction"]):
        if scores[-1].max() > HALF:
            return step


def draw_curves(panel, runs, curves, color, label):
    """Draw a line for each run, with one label for all."""
    steps = runs[0]["steps"]
    lines = panel.plot(steps, np.transpose(curves), color=color)
    lines[0].set_label(label)


def draw(runs):
    """Draw losses and scores against steps."""
    figure, (losses, scores) = trials.make_figure(11, 3.6, 1, 2)
    for n_layer, found in runs.items():
        curves = [run["again"] for run in found]
        draw_curves(losses, found, curves, f"C{n_layer - 1}", f"layers: {n_layer}")
    losses.axhline(math.log(VOCAB), color="grey", linestyle=":")
    title = "loss of tokens that come again (dotted: a guess)"
    losses.set(title=title, ylabel="nats", xlabel="step", ylim=0)
    losses.legend()

    two_layers = runs[2]
    for layer, kind in enumerate(("previous token", "induction")):
        best = []
        for run in two_layers:
            heads = run[kind][:, layer]
            best_head = heads[-1].argmax()  # at the end
            best.append(heads[:, best_head])
        draw_curves(scores, two_layers, best, f"C{layer + 2}", f"{kind}, layer {layer + 1}")
    scores.set(title="attention of the best heads of two layers", xlabel="step", ylim=(0, 1))
    scores.legend()
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
    trials.run_script(main)
