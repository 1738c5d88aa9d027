"""Where tokens are: attention alone has no order.

    python -m experiments.positions [--seeds=3]

Claim: attention is a weighted mean, which is the same in any order of its keys (Vaswani et al.
2017, arXiv:1706.03762, section 3.5), so that positions must be written into it: as fixed or learned
vectors, by rotation (RoPE, Su et al. 2021, arXiv:2104.09864), or as a bias that falls with the
distance (ALiBi, Press et al. 2021, arXiv:2108.12409), and only the last reads texts much longer
than those it was trained on. But a causal mask alone tells the order, too, and a GPT without
positions learns (Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466).

Models that are trained on T bytes read 8·T. The rows of `learned` beyond T are as they were
initialized.

Found (T = 64, 500 steps, 3 seeds): without a mask, 16 tokens in another order change nothing
(7e-16); with a causal one they do (2.0). The loss up to T is 2.146 ± 0.008 for alibi, 2.188 ± 0.014
for rope, 2.256 ± 0.012 for sinusoidal, 2.310 ± 0.005 for learned and 2.325 ± 0.005 for none, which
is the worst, but by little: learned is hardly better. That depends on the scale of the embeddings,
1 here; with init="gpt2" it is 0.02, and sinusoidal the worst (one seed: learned 2.224, none 2.266,
sinusoidal 2.455). From 4T to 8T alibi has 2.193 ± 0.008, no more than just beyond T. All others
lose: none 2.522 ± 0.006, learned 2.527 ± 0.017, rope 2.605 ± 0.016, sinusoidal 2.790 ± 0.033.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attention import causal, full, masked_fill
from engine.common.checks import at_least
from experiments.shared import trials
from experiments.shared.trials import mean_and_error
from model import POSITION

H, LONGER = 4, 8  # heads; how many times longer the texts of the test are
KINDS = {name: {"position": name} for name in POSITION}
KINDS["alibi"] = {"position": "none", "visible": f"alibi:{H}"}


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 500
    T: int = 64
    """Bytes of the texts of training."""

    def __post_init__(self):
        super().__post_init__()
        at_least(16, self, "T", most=2**16)


def disorder(visible):
    """Return the largest change of attention's output if 16 tokens come in another order.

    The output is put into the first order again before it is compared.
    """
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 16, 8, dtype=torch.float64, generator=random)
    order = torch.randperm(16, generator=random)
    y = masked_fill(q, k, v, visible)
    other = masked_fill(q[:, :, order], k[:, :, order], v[:, :, order], visible)
    return (y[:, :, order] - other).abs().max().item()


def run(kind, config, seed):
    """Train a GPT; return its mean loss at each position of texts LONGER times as long."""
    torch.manual_seed(seed)
    data = trials.load_text()
    model = trials.new_gpt(
        block_size=LONGER * config.T,
        n_head=H,
        n_embd=64,
        mlp="relu2",
        qk_norm=True,
        init="zero_out",
        **KINDS[kind],
    )
    trials.fit_text(model, data.train, config.T, config, seed, 3e-3)
    losses = []
    for n in range(12):
        x, y = trials.random_batch(data.val, 8, LONGER * config.T, n)
        with torch.no_grad():
            logits, _ = model(x, y)
        losses.append(F.cross_entropy(logits.mT, y, reduction="none"))  # (8, LONGER·T)
    return torch.cat(losses).mean(0).tolist()


def average(runs, start, stop):
    """Return {kind: the mean loss of each run over these positions}."""
    means = {}
    for kind, losses in runs.items():
        means[kind] = torch.tensor(losses)[:, start:stop].mean(1).tolist()
    return means


def draw(T, ends, spans, trained):
    """Draw the losses up to T, and those of spans of positions that have these ends."""
    figure, (left, right) = trials.make_figure(10, 3.8, 1, 2, width_ratios=(2, 3))
    for n, (kind, losses) in enumerate(spans.items()):
        color = f"C{n}"
        left.errorbar(n, *mean_and_error(trained[kind]), fmt="o", color=color, capsize=3)
        middle, error = torch.tensor([mean_and_error(values) for values in losses]).T
        right.plot(ends, middle, "o-", color=color, label=kind, markersize=3)
        band = middle - error, middle + error
        right.fill_between(ends, *band, color=color, alpha=0.2, linewidth=0)
    left.set_xticks(range(len(spans)), spans, fontsize=9)
    left.set(ylabel="validation loss (nats per byte)", title=f"up to T = {T} bytes, as trained")
    right.axvline(T, color="grey", linestyle=":", linewidth=1)
    trials.log_axis(right, f"up to this position (dotted: T = {T})", ends[::2])
    right.set(title=f"in texts of {LONGER}T bytes")
    right.legend(frameon=False, fontsize=8)
    return figure


def main(config):
    T = config.T

    # Another order of the tokens.
    masks = []
    for name, visible in ("full", full), ("causal", causal):
        change = disorder(visible)
        row = {"mask": name, "largest difference": change}
        masks.append(row | {"the same in any order": change < 1e-12})

    # Texts that are longer than those of training.
    trials.load_text()  # before several processes make it
    runs = trials.run_seeds(run, KINDS, config)
    parts = {
        f"up to T={T}": average(runs, 0, T),
        "to 2T": average(runs, T, 2 * T),
        "to 4T": average(runs, 2 * T, 4 * T),
        "to 8T": average(runs, 4 * T, 8 * T),
    }
    losses = []
    for kind in runs:
        row = {"position": kind}
        for part, means in parts.items():
            row[part] = trials.plus_minus(means[kind])
        losses.append(row)

    # The curves: mean losses of spans that grow with the position.
    ends = [0, *(round(LONGER * T * 2 ** (n / 2)) for n in range(-12, 1))]
    averages = [average(runs, start, stop) for start, stop in zip(ends, ends[1:])]
    spans = {kind: [means[kind] for means in averages] for kind in runs}
    figure = draw(T, ends[1:], spans, parts[f"up to T={T}"])
    tables = {"16 tokens in another order": masks, "validation loss by position": losses}
    trials.write_result("positions", config, tables, figure, spans=ends, losses=spans)


if __name__ == "__main__":
    trials.run_script(main, Settings)
