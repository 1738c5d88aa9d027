"""The self-portrait of attention.py: its masks, an example worked by hand, and every path beside naive."""

import sys

import torch

from attention import ATTENTION, attention_weights, dot, masked_fill, naive, scaled_dot
from engine.common import tables
from engine.common.errors import one_line_errors
from engine.common.hardware import measure_seconds, peak_bytes
from masks import VISIBLE, both, causal, full, mask_of, positions, same_document
from tools.shared import benchmark

H = 3  # heads


def self_portrait(lengths=(256, 1024, 4096)):
    """Draw the masks, four side by side, work an example, compare all paths; returns whether they agree."""
    predicates = benchmark.mechanism_examples(VISIBLE, 3, H) | {
        "causal, 2 documents": both(causal, same_document(torch.arange(120) // 5)),
        "full": full,
    }
    print("Who may look: row i is the query, column j the key.")
    pictures, signs = [], "·■" if "utf" in (sys.stdout.encoding or "utf").lower() else ".#"
    for name, visible in predicates.items():
        mask = mask_of(visible, *positions(10, 10))[0].tolist()
        pictures.append([name, *(" ".join(signs[bool(seen)] for seen in row) for row in mask)])
    for start in range(0, len(pictures), 4):
        print()
        for line in zip(*pictures[start : start + 4]):
            print("".join(f"{part:24}" for part in line).rstrip())
    work_by_hand()
    return compare_paths(predicates, lengths)


def work_by_hand():
    """Print each step of attention for two tokens."""
    q, k = torch.tensor([[[[0.0, 0.0], [1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [2.0, 0.0]]]])
    v = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    steps = {
        "scores q·k": dot(q, k),
        "divided by sqrt(2)": scaled_dot(q, k),
        "softmax": attention_weights(q, k),
    }
    print("\nBy hand, two tokens and D = 2: the second token sees both.")
    for name, values in [*steps.items(), ("average of the values", masked_fill(q, k, v))]:
        first, second = values[0, 0, 1].tolist()  # batch, head, position
        print(f"  {name:24} {first:.2f}  {second:.2f}")


def largest_difference(path, visible, Tq=90, Tk=120):
    """Of path from naive in float64, in value or gradient, for shared key/value heads and fewer queries than keys."""
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, T, 8).double().requires_grad_()
        for heads, T in ((H, Tq), (1, Tk), (1, Tk))
    )
    results = []
    for function in (path, naive):
        y = function(q, k, v, visible)
        results.append((y, *torch.autograd.grad(y.square().sum(), (q, k, v))))
    return max((ours - theirs).abs().max().item() for ours, theirs in zip(*results))


def compare_paths(predicates, lengths):
    """Print each path's largest difference from naive, time and memory; returns whether all differences are rounding."""
    device, agree = torch.device("cpu"), True
    rows = []
    for name, path in ATTENTION.items():
        difference = max(largest_difference(path, visible) for visible in predicates.values())
        difference = max(difference, largest_difference(path, causal, 600, 1100))
        agree = agree and difference < 1e-12
        rows.append({"path": name, "largest difference from naive": difference})
        for T in lengths:
            x = torch.randn(1, 4, T, 32)
            seconds, size = (
                measure(lambda: path(x, x, x), device) for measure in (measure_seconds, peak_bytes)
            )
            rows[-1][f"forward, T = {T}"] = f"{seconds:.4f} s, {size / 1e6:.1f} MB"
    print(f"\n{tables.format_table(rows)}\n\n{'all agree' if agree else 'THEY DO NOT AGREE'}")
    return agree


if __name__ == "__main__":
    with one_line_errors():
        if sys.argv[1:]:
            raise ValueError(
                f"{sys.argv[1]}: attention.py takes no settings; run as it is, it compares its paths"
            )
        sys.exit(not self_portrait())
