"""Why scores are divided by the square root of D.

    python -m experiments.scaling [--seeds=5]

Claim (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1): a product of two vectors of D numbers
with variance 1 has variance D. For large D, softmax of such scores is nearly one-hot, where its
gradient vanishes, so that a model hardly learns.

Found (5 seeds): the variance is D, and 1 with the scale. Softmax of 64 such scores has 0.57 bits of
entropy at D = 128 (5.3 with the scale), but its gradient vanishes only for large heads: up to D =
64 its Jacobian is larger without the scale than with it, and at D = 1024 it is 0.4 of it. A GPT
with heads of 128 learns worse without, 2.507 ± 0.012 for 2.399 ± 0.005 nats (GPT-2's initial
weights 2.359 ± 0.022 for 2.235 ± 0.010). With heads of 16 it learns about as well, 2.369 ± 0.009
for 2.346 ± 0.010 (whether worse depends on the run), with GPT-2's weights even better, 2.155 ±
0.011 for 2.204 ± 0.007. With these nothing is one-hot at first (5.8 bits of 6): scores grow while
it learns.
"""

import itertools

import torch

from attention import attention_weights, dot, scaled_dot
from experiments.shared import trials
from masks import full
from tools.shared import inspection

SCORES = {"scaled_dot": scaled_dot, "dot": dot}
T = 64  # tokens that a query sees
WIDTH = 128  # of the models
RANDOM_SIZES = 4, 8, 16, 32, 64, 128, 256, 512, 1024  # D of random vectors
SIZES = 16, 128  # D of the trained models
TITLES = {
    "variance": "variance of scores",
    "entropy": f"entropy of {T} weights (bits)",
    "slope": "norm of softmax's Jacobian",
}


def measure_softmax(D):
    """Return numbers about softmax over T keys of D numbers with variance 1, by each score."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 64, 1, T, D, dtype=torch.float64, generator=generator)
    found = {"D": D}
    for name, score in SCORES.items():
        weights = attention_weights(q, k, full, score)
        # The Jacobian of softmax, diag(w) - w w^T, has the squared Frobenius norm
        # sum(w²) - 2 sum(w³) + sum(w²)².
        square = weights.square().sum(-1)
        cube = weights.pow(3).sum(-1)
        norm = square - 2 * cube + square.square()
        slope = norm.clamp_min(0).sqrt()
        found[f"variance, {name}"] = score(q, k).var().item()
        found[f"entropy, {name}"] = inspection.entropy(weights).mean().item()
        found[f"slope, {name}"] = slope.mean().item()
    return found


def run(kind, config, seed):
    """Train a GPT with heads of size D; return its loss, and its entropy before training."""
    D, init, score = kind
    data = trials.load_text()
    model = trials.new_gpt(
        block_size=T,
        n_head=WIDTH // D,
        n_embd=WIDTH,
        position="rope",
        score=score,
        init=init,
        attention="masked_fill",
    )
    x, _ = trials.random_batch(data.val, 1, T, seed)
    maps, _ = inspection.attention_maps(model, x[0])
    of_last_token = inspection.entropy(maps[0])[:, -1]  # it sees all
    return {
        "validation loss": trials.fit_text(model, T, config, seed, 2e-3),
        "entropy before training (bits)": of_last_token.mean().item(),
    }


def draw(numbers):
    """Draw the numbers about softmax against D."""
    curves = {}
    for what, title in TITLES.items():
        curves[title] = {}
        for score in SCORES:
            curves[title][score] = [{row["D"]: row[f"{what}, {score}"] for row in numbers}]
    figure, (variance, _, slope) = trials.draw_curves(10, "D", curves)
    variance.set_yscale("log")
    slope.set_ylim(0)
    return figure


def main(config):
    # Softmax of random vectors.
    numbers = [measure_softmax(D) for D in RANDOM_SIZES]

    # The same GPT with and without the scale.
    kinds = [*itertools.product(SIZES, ("zero_out", "gpt2"), SCORES)]
    runs = trials.run_seeds(run, kinds, config)
    losses = trials.make_table("D, init, score", runs)
    tables = {"random queries and keys": numbers, "the same GPT, trained": losses}
    trials.write_result("scaling", config, tables, draw(numbers))


if __name__ == "__main__":
    trials.run_script(main, steps=200)
