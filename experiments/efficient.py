"""How attention grows with the length of a text, and what the cheap kinds give up for it.

    python -m experiments.efficient [--seeds=3]

Claim: softmax over all pairs takes O(n²) time and memory; FlashAttention O(n²) time and O(n) memory (Dao et al. 2022,
arXiv:2205.14135); sparse attention O(n·sqrt(n)) (Child et al. 2019, arXiv:1904.10509), a window O(n) (Longformer,
arXiv:2004.05150), and so do linear attention (Katharopoulos et al. 2020, arXiv:2006.16236), Performer (Choromanski et al. 2021,
arXiv:2009.14794) and Linformer (Wang et al. 2020, arXiv:2006.04768).

Exponents are slopes of a line through the logarithms of length and cost, fitted to the upper half of the lengths. A mask of
strides goes through a path that looks at all pairs and hides most of them: no time is won. The two heads that Child et al. have
for it are written out here, and so is Linformer, whose projections mix all positions: it is for encoders, and no language model
could be trained with it. Paths that compute the same function share one loss.

Found (n = 256 to 16,384, one head of 64 features, one thread, AMD EPYC; 3 seeds of 200 steps; efficient.json): time grows by
n^2.07 ± 0.07 for masked_fill, 1.90 ± 0.02 fused, 1.88 ± 0.06 tiled; 0.97 ± 0.07 for the window, 1.06 ± 0.05 linear, 1.03 ± 0.02
performer, 1.11 ± 0.06 Linformer. A query of strided sees 2·sqrt(n) keys, or pairs ~ n^1.46 ± 0.07 (the stride is a power of
two): as a mask it takes n^1.92 ± 0.01 and longer than tiled without it, as two heads n^1.30 ± 0.04.
Memory grows by n^2.00 for masked_fill (3.8 GB at 16,384), for all others by no more than n^1.11: fused 4.9 MB, tiled 9.3 MB.
The cheap need not be worse: losses are 2.436 ± 0.003 for strided, 2.456 ± 0.007 window, 2.467 ± 0.002 softmax over everything,
2.534 ± 0.003 linear, 2.557 ± 0.012 performer, after a short training on text, which asks for little recall.
"""

import functools
import math
import sys
from dataclasses import dataclass

import torch

from attention import FEATURE, fused, linear, masked_fill, tiled
from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.hardware import peak_bytes
from engine.common.settings import parse_settings
from experiments.shared import trials
from masks import causal, full, mean_keys, sliding_window, strided
from model import GPT, GPTConfig

D, WINDOW, RANK = (
    64,
    64,
    64,
)  # size of the head, of the window, and how many keys Linformer makes of all
SHORT = 256  # bytes of the texts of training, and the shortest length
QUALITY = {  # name -> settings of the GPT that is trained
    "softmax": {},
    "window": {"window": WINDOW},
    "strided": {"visible": f"strided:{math.isqrt(SHORT)}"},
    "linear": {"attention": "linear"},
    "performer": {"attention": "performer"},
}


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 200
    """Of training, for each model."""
    longest: int = 16384
    """The longest sequence; lengths double from 256 on."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps")
        at_least(4 * SHORT, self, "longest", most=2**20)


def stride(n):
    """The power of two that is nearest to sqrt(n), or as near as another."""
    return 2 ** (n.bit_length() // 2)


def two_heads(q, k, v):
    """Child et al.: one head looks at the last S positions, the other at every S-th, which is causal attention in columns."""
    n, S = q.shape[2], stride(q.shape[2])
    local = fused(q, k, v, sliding_window(S))
    columns = fused(
        *(x.unflatten(2, (n // S, S)).transpose(2, 3).flatten(1, 2) for x in (q, k, v))
    )  # (B, H·S, n/S, D)
    return local, columns.unflatten(1, (-1, S)).transpose(2, 3).flatten(2, 3)


def linformer(q, k, v, E, F):
    """Keys and values (B, G, n, D) become RANK mixtures of them, by learned matrices E and F (RANK, n)."""
    return fused(q, E @ k, F @ v, full)


def mechanisms(n):
    """name -> (function of q, k, v; how many keys, or features, a query is compared with; its model in QUALITY) for n."""
    window, strides, features = (
        sliding_window(WINDOW),
        strided(stride(n)),
        {name: make(D) for name, make in FEATURE.items()},
    )
    E, F = torch.randn(2, RANK, n, generator=torch.Generator().manual_seed(0)) / math.sqrt(n)
    return {
        **{
            path.__name__: (path, mean_keys(causal, n), "softmax")
            for path in (masked_fill, fused, tiled)
        },
        f"sliding window, {WINDOW}": (
            functools.partial(fused, visible=window),
            mean_keys(window, n),
            "window",
        ),
        "strided, as a mask": (
            functools.partial(tiled, visible=strides),
            mean_keys(strides, n),
            "strided",
        ),
        "strided, as two heads": (two_heads, mean_keys(strides, n), None),
        **{
            name: (
                functools.partial(linear, feature=feature),
                len(feature(torch.zeros(1, D))[0]),
                name,
            )
            for name, feature in features.items()
        },
        f"Linformer, {RANK}": (functools.partial(linformer, E=E, F=F), RANK, None),
    }


@torch.no_grad()
def costs(lengths):
    """name -> {what: its value at each length} for pairs, milliseconds and MB of a forward pass of one head, on one thread."""
    found = {}
    for n in lengths:
        q, k, v = torch.randn(3, 1, 1, n, D, generator=torch.Generator().manual_seed(n))
        for name, (path, keys, _) in mechanisms(n).items():
            size = peak_bytes(lambda: path(q, k, v), q.device)  # also warms up
            seconds = trials.seconds_alone(lambda: path(q, k, v))
            for what, value in ("pairs", n * keys), ("ms", 1000 * seconds), ("MB", size / 1e6):
                found.setdefault(name, {}).setdefault(what, []).append(value)
    return found


def exponent(lengths, values):
    """(p, its standard error) of values = c·lengths^p, by least squares of the logarithms of the upper half of them."""
    x, y = (
        torch.tensor(some[len(lengths) // 2 :], dtype=torch.float64).log()
        for some in (lengths, values)
    )
    x, y = x - x.mean(), y - y.mean()
    p = (x * y).sum() / x.square().sum()
    error = ((y - p * x).square().sum() / max(1, len(x) - 2) / x.square().sum()).sqrt()
    return p.item(), error.item()


def trained(name, config, seed):
    """The validation loss of a GPT."""
    torch.manual_seed(seed)
    data = trials.text()
    model = GPT(
        GPTConfig(
            block_size=SHORT,
            vocab_size=256,
            n_layer=2,
            n_head=1,
            n_embd=D,
            position="rope",
            norm="rmsnorm",
            mlp="relu2",
            qk_norm=True,
            bias=False,
            tie_weights=False,
            init="zero_out",
            **QUALITY[name],
        )
    )
    trials.fit(
        model,
        lambda n: model(*trials.batch(data.train, 8, SHORT, seed, n), only_loss=True)[1],
        config.steps,
        3e-3,
    )
    return trials.text_loss(model, data.val, SHORT, batches=8)


def main(config):
    lengths = [SHORT << n for n in range((config.longest // SHORT).bit_length())]
    [found] = trials.every(costs, [(lengths,)])  # before the other cores are busy
    trials.text()  # before several processes want to make it
    runs = trials.every(
        trained, [(name, config, seed) for name in QUALITY for seed in range(config.seeds)]
    )
    losses = trials.by_kind(QUALITY, runs)

    rows, longest = [], lengths[-1]
    for name, (_, _, model) in mechanisms(SHORT).items():
        row = {"attention": name}
        for what, values in found[name].items():
            p, error = exponent(lengths, values)
            row[f"{what} ~ n^"] = f"{p:.2f} ± {error:.2f}"
        row |= {f"{what}, n = {longest}": found[name][what][-1] for what in ("ms", "MB")}
        rows.append(row | {"validation loss": trials.plus_minus(losses[model]) if model else None})

    drawn, panels = trials.figure(13, 4, 1, 3)
    for n, (name, (_, _, model)) in enumerate(mechanisms(SHORT).items()):
        for panel, what in zip(panels, ("ms", "MB")):
            panel.plot(lengths, found[name][what], "o-", color=f"C{n}", markersize=4, label=name)
        if model:
            middle, error = trials.mean(losses[model])
            panels[2].errorbar(
                found[name]["ms"][-1], middle, error, fmt="o", color=f"C{n}", capsize=2
            )
    for panel, what, title in zip(
        panels, ("ms", "MB"), ("time of a forward pass of one head (ms)", "its peak memory (MB)")
    ):
        panel.set(xscale="log", yscale="log", xlabel="length n", title=title)
        panel.set_xticks(lengths, lengths, fontsize=8)
        panel.minorticks_off()
        floor = min(values[what][0] for values in found.values()) / 2
        for p, text in (1, "n"), (1.5, "n·√n"), (2, "n²"):
            panel.plot(
                lengths,
                [floor * (n / SHORT) ** p for n in lengths],
                ":",
                color="#9a978f",
                linewidth=1,
            )
            panel.text(
                1.1 * longest,
                floor * (longest / SHORT) ** p,
                text,
                color="#77746c",
                fontsize=8,
                va="center",
            )
    panels[1].legend(frameon=False, fontsize=8)
    panels[2].set(
        xscale="log",
        xlabel=f"ms for n = {longest}",
        title=f"validation loss, texts of {SHORT} bytes",
    )
    trials.write_result(
        config,
        {"how cost grows, and what is learned": rows},
        drawn,
        lengths=lengths,
        costs=found,
        losses=losses,
    )


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
