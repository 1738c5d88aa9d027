"""What a fixed memory forgets: recall against cost.

    python -m experiments.recall [--seeds=5]

Claim (Zoology, Arora et al. 2023, arXiv:2312.04927; Based, Arora et al. 2024, arXiv:2402.18668):
linear and windowed attention trade recall for cost. Their task is multi-query associative recall:
pairs of a key and a value, then all of the keys in another order, each to be answered with its
value. Softmax keeps every pair, in memory that grows; a window keeps the last ones, and linear
attention a sum of constant size, in which pairs overlap.

Every model is trained on all lengths in turn, with the same settings. What reads a pair, before
attention, is the same for all, as there, where every attention stands behind a short convolution:
here each token gets the features of the one before.

Found (400 steps, 5 seeds): softmax answers everything, 1.000 ± 0.000 of 256 pairs, which fill its
context. linear has 0.379 ± 0.029 of 4 pairs, 0.054 ± 0.004 of 16, 0.017 ± 0.001 of 64 and 0.008 ±
0.001 of 256; a window of 32 has 1.000 ± 0.000 of 4, 0.748 ± 0.000 of 16, 0.066 ± 0.000 of 64 and
0.008 ± 0.000 of 256. (All five runs learned to use the window; whether a run does in so few steps
depends on it.) Part of the difference is that sums are learned slowly (--steps=1600). For that
softmax keeps 98,304 numbers of 256 pairs, linear 4,160 of any, the window 4,096; what they cost in
time is in efficient.py.
"""

import torch
import torch.nn.functional as F

from experiments.shared import trials
from model import MODERN, NoPosition

D = 64  # width of the models, and size of their one head
KEYS = 256  # different keys, and as many values
PAIRS = [4, 16, 64, 256]  # of the sequences of training and test; the last fill the context
MECHANISMS = {
    "softmax": {},
    "linear": {"attention": "linear"},
    "sliding_window:32": {"visible": "sliding_window:32"},
}


class Shift(NoPosition):
    """Adds to each token the one before it, whose features are rolled by half of them.

    So the sum tells which of the two came first.
    """

    def add(self, x, index):
        before = F.pad(x, (0, 0, 1, -1))
        return x + before.roll(D // 2, -1)


def sequences(pairs, count, seed):
    """Return inputs and targets (count, 3·pairs) of a key, its value, the next key, its value, ...

    Then all keys come again in another order; their targets are their values. Other targets are -1.
    """
    random = torch.Generator().manual_seed(seed)
    every_key = torch.rand(count, KEYS, generator=random).argsort(1)
    key = every_key[:, :pairs]
    value = torch.randint(KEYS, 2 * KEYS, (count, pairs), generator=random)
    order = torch.rand(count, pairs, generator=random).argsort(1)
    shown = torch.stack([key, value], dim=2).flatten(1)  # (count, 2·pairs)
    questions = key.gather(1, order)
    answers = value.gather(1, order)
    no_question = torch.full_like(shown, -1)
    inputs = torch.cat([shown, questions], dim=1)
    targets = torch.cat([no_question, answers], dim=1)
    return inputs, targets


def new_model(name, pairs):
    settings = MODERN | dict(position="none", tie_weights=True) | MECHANISMS[name]
    model = trials.new_gpt(
        block_size=3 * pairs, vocab_size=2 * KEYS, n_layer=1, n_head=1, n_embd=D, **settings
    )
    model.transformer["wpe"] = Shift()
    return model


def run(name, config, seed):
    """Train a model on all lengths in turn; return {pairs: its share of right answers}."""
    model = new_model(name, PAIRS[-1])

    def loss(step):
        pairs = PAIRS[step % len(PAIRS)]
        count = max(1, 512 // pairs)
        x, y = sequences(pairs, count, seed << 32 | step)
        return model(x, y, only_loss=True)[1]

    trials.fit(model, loss, config.steps, 1e-2)
    found = {}
    for pairs in PAIRS:
        count = max(1, 4096 // pairs)
        x, y = sequences(pairs, count, seed << 32 | config.steps)
        asked = y >= 0
        logits, _ = model(x, y)
        found[pairs] = trials.accuracy(logits[asked], y[asked])
    return found


def memory(name, pairs):
    """Return how many numbers a head keeps of a sequence, to answer the next question."""
    attn = new_model(name, pairs).transformer.h[0].attn
    if attn.feature:
        features = attn.feature(torch.zeros(1, D))
        return features.numel() * (D + 1)
    length = 3 * pairs
    return 2 * D * min(length, getattr(attn.visible, "window", length))


def main(config):
    curves = {"share of right answers": trials.run_seeds(run, MECHANISMS, config)}
    tables = trials.make_tables("pairs", curves)
    for row in tables["share of right answers"]:
        for pairs in PAIRS[0], PAIRS[-1]:
            row[f"numbers kept, {pairs} pairs"] = memory(row["pairs"], pairs)
    figure, [panel] = trials.draw_curves(6, "pairs of a key and a value", curves)
    panel.set_ylim(0, 1.03)
    trials.write_result("recall", config, tables, figure, runs=curves)


if __name__ == "__main__":
    trials.run_script(main)
