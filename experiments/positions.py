"""Where tokens are: attention alone has no order.

    python -m experiments.positions [--seeds=5]

Claim: attention is a weighted mean, which is the same in any order of its keys (Vaswani et al.
2017, arXiv:1706.03762, section 3.5), so that positions must be written into it: as fixed or learned
vectors, by rotation (RoPE, Su et al. 2021, arXiv:2104.09864), or as a bias that falls with the
distance (ALiBi, Press et al. 2021, arXiv:2108.12409), and only the last reads texts much longer
than those it was trained on. But a causal mask alone tells the order, too, and a GPT without
positions learns (Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466).

Models that are trained on T bytes read 8·T. The rows of `learned` beyond T are as they were
initialized.

Found (T = 64, 500 steps, 5 seeds): without a mask, 16 tokens in another order change nothing; with
a causal one they do, by up to 2.0. The loss up to T is 2.159 ± 0.009 for alibi, 2.187 ± 0.010 for
rope, 2.263 ± 0.008 for sinusoidal, 2.315 ± 0.004 for learned and 2.330 ± 0.005 for none: to be told
the order is worth 0.17 nats to alibi and 0.14 to rope, but only 0.015 to learned positions. (That
depends on the scale of the embeddings, 1 here.) From 4T to 8T alibi has 2.203 ± 0.008, no more than
just beyond T. All others lose: none 2.514 ± 0.006, learned 2.531 ± 0.011, rope 2.655 ± 0.034,
sinusoidal 2.807 ± 0.025.
"""

import torch
import torch.nn.functional as F

from attention import causal, full, masked_fill
from experiments.shared import trials
from model import MODERN, POSITION

T = 64  # bytes of the texts of training
LONGER = 8  # times as long are those of the test
H = 4  # heads
KINDS = {name: {"position": name} for name in POSITION}
KINDS["alibi"] = {"position": "none", "visible": f"alibi:{H}"}


def disorder(visible):
    """Return the largest change of attention's output if 16 tokens come in another order.

    The output is put into the first order again before it is compared.
    """
    random = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 1, 1, 16, 8, dtype=torch.float64, generator=random)
    order = torch.randperm(16, generator=random)
    y = masked_fill(*qkv, visible)
    other = masked_fill(*qkv[:, :, :, order], visible)
    difference = y[:, :, order] - other
    return difference.abs().max().item()


def span_ends():
    """Return the ends of spans of positions that grow by a factor of sqrt(2), up to LONGER·T."""
    return [round(LONGER * T * 2 ** (n / 2)) for n in range(-12, 1)]


def run(kind, config, seed):
    """Train a GPT; return its mean losses at positions of texts LONGER times as long."""
    settings = MODERN | KINDS[kind]
    model = trials.new_gpt(block_size=LONGER * T, n_head=H, n_embd=64, **settings)
    trials.fit_text(model, T, config, seed, 3e-3)
    text = trials.load_text().val
    losses = []
    for n in range(12):
        x, y = trials.random_batch(text, 8, LONGER * T, n)
        logits, _ = model(x, y)
        loss = F.cross_entropy(logits.mT, y, reduction="none")
        losses.append(loss)  # (8, LONGER·T)
    losses = torch.cat(losses).mean(0)
    spans = zip(span_ends(), losses.tensor_split(span_ends()[:-1]))
    return {
        f"up to T={T}": losses[:T].mean().item(),
        "to 2T": losses[T : 2 * T].mean().item(),
        "to 4T": losses[2 * T : 4 * T].mean().item(),
        "to 8T": losses[4 * T :].mean().item(),
        "spans": {end: span.mean().item() for end, span in spans},
    }


def main(config):
    masks = [
        {"mask": visible.__name__, "largest difference": disorder(visible)}
        for visible in (full, causal)
    ]
    runs = trials.run_seeds(run, KINDS, config)
    losses = trials.make_table("position", runs)
    tables = {"16 tokens in another order": masks, "validation loss by position": losses}
    curves = {f"in texts of {LONGER}T bytes": trials.select(runs, "spans")}
    figure, [panel] = trials.draw_curves(6, f"up to this position (dotted: T = {T})", curves)
    panel.axvline(T, color="grey", linestyle=":")
    panel.set_ylabel("validation loss (nats per byte)")
    trials.write_result("positions", config, tables, figure, runs=runs)


if __name__ == "__main__":
    trials.run_script(main, steps=500)
