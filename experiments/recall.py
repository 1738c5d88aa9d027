"""What a fixed memory forgets: recall against cost.

    python -m experiments.recall [--seeds=3]

Claim (Zoology, Arora et al. 2023, arXiv:2312.04927; Based, Arora et al. 2024, arXiv:2402.18668): linear and windowed attention
trade recall for cost. Their task is multi-query associative recall: pairs of a key and a value, then all of the keys in
another order, each to be answered with its value. Softmax keeps every pair, in memory that grows; a window keeps the last
ones, and linear attention a sum of constant size, in which pairs overlap.

Every model is trained on all lengths in turn, with the same settings. What reads a pair, before attention, is the same for
all, as there, where every attention stands behind a short convolution: here each token gets the features of the one before.

Found (400 steps, 3 seeds): softmax answers everything, 1.000 ± 0.000 with up to 64 pairs. linear has 0.857 ± 0.012 of 4 pairs,
0.672 ± 0.012 of 8 and 0.104 ± 0.002 of 64; performer, whose sum is four times as large, 0.191 ± 0.070 of 64; a window of 32 all
of 8 pairs and 0.079 ± 0.001 of 64, and with half of it for the first positions 0.151 ± 0.001. Part of the difference is that
sums are learned slowly: with 1,600 steps linear has 0.997 of 8 pairs, 0.478 of 64; with 1,200 the slowest seed of performer has
0.811 and 0.342. To read 1,024 pairs takes softmax 25 to 28 ms on one thread (AMD EPYC, three runs), performer 25 to 35, linear
and the windows 9 to 17; up to 128 pairs nothing is clearly faster than softmax. So cost is traded for recall, but what is won
shows only in long texts.
"""

import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from experiments.shared import trials
from model import GPT, GPTConfig, NoPosition

D = 64  # width of the models, and size of their one head
MECHANISMS = {
    "softmax": {},
    "linear": {"attention": "linear"},
    "performer": {"attention": "performer"},
    **{visible: {"visible": visible} for visible in ("sliding_window:32", "local_global:16,16")},
}


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 400
    """Of training, for each model."""
    most_pairs: int = 64
    """Pairs of the longest sequences; the others have 4, 8, 16, ... of them."""
    most_timed: int = 1024
    """Pairs of the longest sequence of which the time is measured."""
    keys: int = 64
    """Different keys, and as many values: 1/keys of the answers are right by chance."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps")
        at_least(4, self, "most_pairs")
        at_least(self.most_pairs, self, "keys", "most_timed", most=2**20)


class Shift(NoPosition):
    """Adds to each token the one before it, with the two halves of its features exchanged, which tells them apart."""

    def add(self, x, index):
        return x + F.pad(x, (0, 0, 1, -1)).roll(D // 2, -1)


def doubled(most):
    """4, 8, 16, ... up to most."""
    return [4 << n for n in range((most // 4).bit_length())]


def sequences(pairs, count, keys, seed):
    """Inputs and targets (count, 3·pairs): key, value, key, value, ..., then the keys in another order; -1: no question."""
    random = torch.Generator().manual_seed(seed)
    key = torch.rand(count, keys, generator=random).argsort(1)[:, :pairs]
    value = torch.randint(keys, 2 * keys, (count, pairs), generator=random)
    order = torch.rand(count, pairs, generator=random).argsort(1)
    shown = torch.stack([key, value], dim=2).flatten(1)  # (count, 2·pairs)
    return (
        torch.cat([shown, key.gather(1, order)], dim=1),
        torch.cat([torch.full_like(shown, -1), value.gather(1, order)], dim=1),
    )


def build(name, config, pairs):
    model = GPT(
        GPTConfig(
            block_size=3 * pairs,
            vocab_size=2 * config.keys,
            n_layer=1,
            n_head=1,
            n_embd=D,
            position="none",
            norm="rmsnorm",
            mlp="relu2",
            qk_norm=True,
            bias=False,
            init="zero_out",
            **MECHANISMS[name],
        )
    )
    model.transformer["wpe"] = (
        Shift()
    )  # not in POSITION: with a cache, it would have to remember the last token
    return model


def trained(name, config, seed):
    """The share of right answers of a trained model, by the number of pairs."""
    torch.manual_seed(seed)
    model, sizes = build(name, config, config.most_pairs), doubled(config.most_pairs)

    def loss(step):
        pairs = sizes[step % len(sizes)]
        return model(
            *sequences(pairs, max(1, 1536 // (3 * pairs)), config.keys, seed << 32 | step),
            only_loss=True,
        )[1]

    trials.fit(model, loss, config.steps, 1e-2)
    found = {}
    for pairs in sizes:
        x, y = sequences(pairs, max(1, 4096 // pairs), config.keys, seed << 32 | config.steps)
        with torch.no_grad():
            found[pairs] = (model(x, y)[0].argmax(-1) == y)[y >= 0].float().mean().item()
    return found


@torch.no_grad()
def milliseconds(config):
    """Of reading one sequence on one thread, by the number of pairs and the mechanism."""
    found = {}
    for pairs in doubled(config.most_timed):
        x = torch.zeros(
            1, 3 * pairs, dtype=torch.long
        )  # what is read makes no difference to the time
        for name in MECHANISMS:
            model = build(name, config, pairs)
            model(x)  # warms up
            found.setdefault(pairs, {})[name] = 1000 * trials.seconds_alone(lambda: model(x))
    return found


def memory(name, pairs):
    """How many numbers a head keeps of a sequence, to answer the next question."""
    block = build(name, Settings(), pairs).transformer.h[0].attn
    if block.feature:
        return len(block.feature(torch.zeros(1, D))[0]) * (D + 1)
    reach = getattr(block.visible, "window", 3 * pairs) + getattr(block.visible, "n_global", 0)
    return 2 * D * min(3 * pairs, reach)


def main(config):
    [times] = trials.every(milliseconds, [(config,)])  # before the other cores are busy
    runs = trials.every(
        trained, [(name, config, seed) for name in MECHANISMS for seed in range(config.seeds)]
    )
    runs = trials.by_kind(MECHANISMS, runs)
    sizes, longest = doubled(config.most_pairs), max(times)
    recall = [
        {
            "recall of": name,
            **{f"{pairs} pairs": trials.plus_minus(run[pairs] for run in found) for pairs in sizes},
        }
        for name, found in runs.items()
    ]
    costs = [
        {
            "a sequence read by": name,
            "numbers kept, 64 pairs": memory(name, 64),
            f"{longest} pairs": memory(name, longest),
            **{
                f"ms, {pairs} pairs": times[pairs][name]
                for pairs in times
                if pairs >= longest // 16
            },
        }
        for name in MECHANISMS
    ]

    drawn, (left, right) = trials.figure(10, 3.8, 1, 2)
    for n, (name, found) in enumerate(runs.items()):
        means, errors = zip(*(trials.mean(run[pairs] for run in found) for pairs in sizes))
        left.errorbar(sizes, means, errors, fmt="o-", color=f"C{n}", markersize=4, capsize=2)
        right.plot(
            [*times],
            [times[pairs][name] for pairs in times],
            "o-",
            color=f"C{n}",
            markersize=4,
            label=name,
        )
    left.set(ylabel="share of right answers", ylim=(0, 1.03), title="recall")
    right.set(ylabel="ms", yscale="log", title="time to read one sequence")
    for panel, ticks in (left, sizes), (right, [*times]):
        panel.set(xscale="log", xlabel="pairs of a key and a value")
        panel.set_xticks(ticks, ticks)
        panel.minorticks_off()
    right.legend(frameon=False, fontsize=8)
    trials.write_result(
        config,
        {"share of right answers": recall, "what it costs": costs},
        drawn,
        runs=runs,
        milliseconds=times,
    )


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
