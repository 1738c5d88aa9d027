"""Why scores are divided by the square root of D.

    python -m experiments.scaling [--seeds=3]

Claim (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1): a product of two vectors of D numbers with variance 1 has variance
D. For large D, softmax of such scores is nearly one-hot, where its gradient vanishes, so that a model hardly learns.

Found: TO BE WRITTEN
"""

import sys
from dataclasses import dataclass

import torch

from attention import attention_weights, dot, scaled_dot
from engine import configure, inspection, trials
from masks import full
from model import GPT, GPTConfig

SCORES = {"scaled_dot": scaled_dot, "dot": dot}
T = 64


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 400
    """Of training, for each model."""
    D: int = 128
    """Size of the one head of the models that are trained."""


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
        found[name] = {"variance": score(q, k).var().item(), "entropy": inspection.entropy(weights).mean().item(),
                       "slope": slope.mean().item()}
    return found


def trained(init, score, D, steps, seed):
    """The curve of training a GPT with one head of size D, its validation loss, and the entropy that its heads begin with."""
    torch.manual_seed(seed)
    data = trials.text()
    model = GPT(GPTConfig(block_size=T, vocab_size=256, n_layer=2, n_head=1, n_embd=D, score=score, init=init, norm="rmsnorm",
                          bias=False, attention="masked_fill", position="rope", tie_weights=False))
    x, _ = trials.batch(data.val, 1, T, seed)
    weights, _ = inspection.attention_maps(model, x[0], attention_weights)
    curve = trials.fit(model, lambda step: model(*trials.batch(data.train, 16, T, seed, step), only_loss=True)[1], steps, 2e-3)
    return {"curve": curve, "val": trials.text_loss(model, data.val, T), "entropy": inspection.entropy(weights[0])[:, -1].item()}


def main(config):
    sizes = [2**n for n in range(2, 11)]
    measured = {D: at_random(D, 0) for D in sizes}
    rows = [{"D": D, "score": name, **found} for D, both in measured.items() for name, found in both.items()]

    trials.text()  # before several processes want to make it
    kinds = [(init, score) for init in ("zero_out", "gpt2") for score in SCORES]
    runs = trials.every(trained, [(*kind, config.D, config.steps, seed) for kind in kinds for seed in range(config.seeds)])
    runs = {kind: runs[n * config.seeds : (n + 1) * config.seeds] for n, kind in enumerate(kinds)}
    losses = [{"init": init, "score": score, "validation loss": trials.plus_minus(run["val"] for run in found),
               "entropy at first (bits)": trials.plus_minus(run["entropy"] for run in found)}
              for (init, score), found in runs.items()]

    drawn, panels = trials.figure(13, 3.4, 1, 4)
    for panel, what in zip(panels, ("variance", "entropy", "slope")):
        for name in SCORES:
            panel.plot(sizes, [measured[D][name][what] for D in sizes], "o-", label=name, markersize=4)
        panel.set(xlabel="D", xscale="log", title={"variance": "variance of scores", "entropy": f"entropy over {T} keys (bits)",
                                                   "slope": "norm of softmax's Jacobian"}[what])
    panels[0].set(yscale="log")
    panels[0].legend(frameon=False)
    for n, (kind, found) in enumerate(runs.items()):
        curve = torch.tensor([run["curve"] for run in found]).mean(0).unfold(0, 20, 10).mean(-1)
        panels[3].plot(range(10, 10 * len(curve) + 10, 10), curve, "-" if kind[1] == "scaled_dot" else "--", color=f"C{n // 2 + 2}",
                       label=f"{kind[1]}, init {kind[0]}")
    panels[3].set(xlabel="step", title=f"training loss, D = {config.D}")
    panels[3].legend(frameon=False, fontsize=8)
    trials.store(config, {"random queries and keys": rows, "the same GPT, trained": losses}, drawn)


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(Settings, sys.argv[1:]))
