"""Why scores are divided by the square root of D.

    python -m experiments.scaling [--seeds=3]

Claim (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1): a product of two vectors of D numbers with variance 1 has variance
D. For large D, softmax of such scores is nearly one-hot, where its gradient vanishes, so that a model hardly learns.

Found: the variance is D, and 1 with the scale. Softmax of 64 such scores has 0.57 bits of entropy at D = 128 (5.3 with the
scale), but its gradient vanishes only for large heads: up to D = 64 its Jacobian is larger without the scale than with it, and
at D = 1024 it is 0.4 of it. A GPT with heads of 16 learns as well without (2.38 for 2.35 nats, GPT-2's initial weights 2.16 for
2.21), and with heads of 128 it learns worse: 2.52 ± 0.02 for 2.41 ± 0.01, and 2.38 ± 0.02 for 2.25 ± 0.01. With GPT-2's small
initial weights nothing is one-hot at first (5.8 bits of 6): scores grow while it learns.
"""

import itertools
import sys
from dataclasses import dataclass

import torch

from attention import attention_weights, dot, scaled_dot
from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from engine.plotting import inspection
from experiments.shared import trials
from masks import full
from model import GPT, GPTConfig

SCORES = {"scaled_dot": scaled_dot, "dot": dot}
T, WIDTH = 64, 128


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 200
    """Of training, for each model."""
    sizes: tuple[int, ...] = (16, 128)
    """D of the models that are trained; all are 128 wide."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps")
        if wrong := [D for D in self.sizes if D < 1 or WIDTH % D]:
            raise ValueError(f"sizes={wrong[0]} must divide {WIDTH}, the width of the models")


def at_random(D, seed):
    """Numbers about softmax over T keys, for queries and keys of D numbers with variance 1, by the name of the score."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 64, 1, T, D, dtype=torch.float64, generator=generator)
    found = {}
    for name, score in SCORES.items():
        weights = attention_weights(q, k, full, score)
        # The Jacobian of softmax, diag(w) - w w^T, has the squared Frobenius norm sum(w²) - 2 sum(w³) + sum(w²)².
        square = weights.square().sum(-1)
        slope = (square - 2 * weights.pow(3).sum(-1) + square.square()).clamp_min(0).sqrt()
        found[name] = {
            "variance": score(q, k).var().item(),
            "entropy": inspection.entropy(weights).mean().item(),
            "slope": slope.mean().item(),
        }
    return found


def trained(D, init, score, steps, seed):
    """A GPT with heads of size D: its losses while it is trained, and on the validation split, and its entropy before."""
    torch.manual_seed(seed)
    data = trials.text()
    model = GPT(
        GPTConfig(
            block_size=T,
            vocab_size=256,
            n_layer=2,
            n_head=WIDTH // D,
            n_embd=WIDTH,
            score=score,
            init=init,
            attention="masked_fill",
            position="rope",
            norm="rmsnorm",
            bias=False,
            tie_weights=False,
        )
    )
    weights, _ = inspection.attention_maps(
        model, trials.batch(data.val, 1, T, seed)[0][0], attention_weights
    )
    curve = trials.fit(
        model,
        lambda step: model(*trials.batch(data.train, 16, T, seed, step), only_loss=True)[1],
        steps,
        2e-3,
    )
    entropy = (
        inspection.entropy(weights[0])[:, -1].mean().item()
    )  # of the last token, which sees all
    return {"curve": curve, "loss": trials.text_loss(model, data.val, T), "entropy": entropy}


def main(config):
    sizes = [2**n for n in range(2, 11)]
    measured = {D: at_random(D, 0) for D in sizes}
    names = {
        "variance": "variance of scores",
        "entropy": f"entropy of {T} weights (bits)",
        "slope": "norm of softmax's Jacobian",
    }
    rows = [
        {"D": D} | {f"{what}, {score}": found[score][what] for what in names for score in SCORES}
        for D, found in measured.items()
    ]

    trials.text()  # before several processes want to make it
    kinds = [*itertools.product(config.sizes, ("zero_out", "gpt2"), SCORES)]
    runs = trials.every(
        trained, [(*kind, config.steps, seed) for kind in kinds for seed in range(config.seeds)]
    )
    runs = trials.by_kind(kinds, runs)
    losses = [
        {
            "D": D,
            "init": init,
            "score": score,
            "validation loss": trials.plus_minus(run["loss"] for run in found),
            "entropy before training (bits)": trials.plus_minus(
                (run["entropy"] for run in found), 2
            ),
        }
        for (D, init, score), found in runs.items()
    ]

    drawn, panels = trials.figure(13, 3.4, 1, 4)
    for panel, (what, title) in zip(panels, names.items()):
        for score, style in zip(SCORES, ("o-", "o--")):
            panel.plot(
                sizes, [measured[D][score][what] for D in sizes], style, label=score, markersize=4
            )
        panel.set(xlabel="D", title=title)
        panel.set_xscale("log", base=2)
    panels[0].set(yscale="log")
    panels[2].set(ylim=(0, None))
    panels[0].legend(frameon=False)
    for n, ((D, init, score), found) in enumerate(runs.items()):
        curve = torch.tensor([run["curve"] for run in found]).mean(0)
        curve = curve.unfold(0, min(20, len(curve)), 5).mean(-1)  # smoothed
        label = f"D = {D}, init {init}" if score == "scaled_dot" else None
        panels[3].plot(
            range(0, 5 * len(curve), 5),
            curve,
            "-" if label else "--",
            color=f"C{n // 2 + 2}",
            label=label,
        )
    panels[3].set(xlabel="step", title="training loss (dashed: dot)")
    panels[3].legend(frameon=False, fontsize=8)
    trials.write_result(
        config, {"random queries and keys": rows, "the same GPT, trained": losses}, drawn
    )


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
