"""Where tokens are: attention alone has no order.

    python -m experiments.positions [--seeds=3]

Claim: attention is a weighted mean, which is the same in any order of its keys (Vaswani et al. 2017, arXiv:1706.03762, section
3.5), so that positions must be written into it: as fixed or learned vectors, by rotation (RoPE, Su et al. 2021,
arXiv:2104.09864), or as a bias that falls with the distance (ALiBi, Press et al. 2021, arXiv:2108.12409), and only the last
reads texts much longer than those it was trained on. But a causal mask alone tells the order, too, and a GPT without positions
learns (Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466).

Models that are trained on T bytes read 8·T. The rows of `learned` beyond T are as they were initialized.

Found (T = 64, 500 steps, 3 seeds): without a mask, 16 tokens in another order change nothing (7e-16); with a causal one they do
(2.0). The loss up to T is 2.146 ± 0.008 for alibi, 2.188 ± 0.014 for rope, 2.256 ± 0.012 for sinusoidal, 2.310 ± 0.005 for
learned and 2.325 ± 0.005 for none, which is the worst, but by little: learned is hardly better. That depends on the scale of
the embeddings, 1 here; with init="gpt2" it is 0.02, and sinusoidal the worst (one seed: learned 2.224, none 2.266, sinusoidal
2.455). From 4T to 8T alibi has 2.193 ± 0.008, no more than just beyond T. All others lose: none 2.522 ± 0.006, learned 2.527 ±
0.017, rope 2.605 ± 0.016, sinusoidal 2.790 ± 0.033.
"""

import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attention import causal, full, masked_fill
from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from experiments.shared import trials
from model import GPT, POSITION, GPTConfig

H, LONGER = 4, 8  # heads; how many times longer the text that is read is than those of training
KINDS = {name: {"position": name} for name in POSITION} | {
    "alibi": {"position": "none", "visible": f"alibi:{H}"}
}


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 500
    """Of training, for each model."""
    T: int = 64
    """Bytes of the texts of training."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps")
        at_least(16, self, "T", most=2**16)


def disorder(visible, seed=0):
    """The largest change of what attention gives for 16 tokens in another order, once that is put in the first order again."""
    random = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 1, 1, 16, 8, dtype=torch.float64, generator=random)
    order = torch.randperm(16, generator=random)
    y, other = (
        masked_fill(q, k, v, visible),
        masked_fill(*(x[:, :, order] for x in (q, k, v)), visible),
    )
    return (y[:, :, order] - other).abs().max().item()


def trained(kind, config, seed):
    """The mean loss of a trained GPT at each position of texts that are LONGER times as long as those of its training."""
    torch.manual_seed(seed)
    data, T = trials.text(), config.T
    model = GPT(
        GPTConfig(
            block_size=LONGER * T,
            vocab_size=256,
            n_layer=2,
            n_head=H,
            n_embd=64,
            norm="rmsnorm",
            mlp="relu2",
            qk_norm=True,
            bias=False,
            tie_weights=False,
            init="zero_out",
            **KINDS[kind],
        )
    )
    trials.fit(
        model,
        lambda step: model(*trials.batch(data.train, 16, T, seed, step), only_loss=True)[1],
        config.steps,
        3e-3,
    )
    with torch.no_grad():
        texts = [trials.batch(data.val, 8, LONGER * T, n) for n in range(12)]
        losses = [
            F.cross_entropy(model(x, y)[0].mT, y, reduction="none") for x, y in texts
        ]  # each (8, LONGER·T)
    return torch.cat(losses).mean(0).tolist()


def main(config):
    masks = [
        {
            "mask": name,
            "largest difference": disorder(visible),
            "the same in any order": disorder(visible) < 1e-12,
        }
        for name, visible in (("full", full), ("causal", causal))
    ]

    trials.text()  # before several processes want to make it
    runs = trials.every(
        trained, [(kind, config, seed) for kind in KINDS for seed in range(config.seeds)]
    )
    runs = {kind: torch.tensor(found) for kind, found in trials.by_kind(KINDS, runs).items()}
    T = config.T
    parts = {
        f"up to T={T}": slice(T),
        "to 2T": slice(T, 2 * T),
        "to 4T": slice(2 * T, 4 * T),
        "to 8T": slice(4 * T, 8 * T),
    }
    losses = [
        {
            "position": kind,
            **{
                name: trials.plus_minus(found[:, part].mean(1).tolist())
                for name, part in parts.items()
            },
        }
        for kind, found in runs.items()
    ]

    drawn, (left, right) = trials.figure(10, 3.8, 1, 2, width_ratios=(2, 3))
    ends = [
        0,
        *(round(LONGER * T * 2 ** (n / 2)) for n in range(-12, 1)),
    ]  # of spans, over which the loss is averaged
    spans = {
        kind: [found[:, a:b].mean(1).tolist() for a, b in zip(ends, ends[1:])]
        for kind, found in runs.items()
    }
    for n, (kind, found) in enumerate(runs.items()):
        left.errorbar(
            n, *trials.mean(found[:, :T].mean(1).tolist()), fmt="o", color=f"C{n}", capsize=3
        )
        middle, error = torch.tensor([trials.mean(losses) for losses in spans[kind]]).T
        right.plot(ends[1:], middle, "o-", color=f"C{n}", label=kind, markersize=3)
        right.fill_between(
            ends[1:], middle - error, middle + error, color=f"C{n}", alpha=0.2, linewidth=0
        )
    left.set_xticks(range(len(runs)), runs, fontsize=9)
    left.set(ylabel="validation loss (nats per byte)", title=f"up to T = {T} bytes, as trained")
    right.axvline(T, color="#9a978f", linestyle=":", linewidth=1)
    right.set(
        xscale="log",
        xlabel=f"up to this position (dotted: T = {T})",
        title=f"in texts of {LONGER}T bytes",
    )
    right.set_xticks(ends[1::2], ends[1::2])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=8)
    trials.write_result(
        config,
        {"16 tokens in another order": masks, "validation loss by position": losses},
        drawn,
        spans=ends,
        losses=spans,
    )  # of each seed


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
