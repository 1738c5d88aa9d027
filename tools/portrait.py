"""The self-portrait of attention.py: its masks, an example by hand, and all paths beside naive."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from attention import ATTENTION, attention_weights, dot, masked_fill, naive, scaled_dot
from engine.common.errors import one_line_errors
from engine.common.hardware import measure_seconds, peak_bytes
from engine.common.processes import progress_bar
from engine.common.tables import format_table
from masks import VISIBLE, both, causal, full, mask_of, positions, same_document
from tools.shared import benchmark

H = 3  # heads


def self_portrait(lengths=(256, 1024)):
    """Draw the masks, work an example, compare all paths; returns whether they agree."""
    predicates = benchmark.mechanism_examples(VISIBLE, 3, H)
    predicates["causal, 2 documents"] = both(causal, same_document(torch.arange(120) // 5))
    predicates["full"] = full
    draw_masks(predicates)
    work_by_hand()
    return compare_paths(predicates, lengths)


def draw_masks(predicates):
    """Print the masks of ten positions, four side by side."""
    print("Who may look: row i is the query, column j the key.")
    pictures = []
    for name, visible in predicates.items():
        mask = mask_of(visible, *positions(10, 10))[0]
        picture = [name]
        for row in mask.tolist():
            picture.append(" ".join("·■"[seen] for seen in row))
        pictures.append(picture)
    for start in range(0, len(pictures), 4):
        print()
        for line in zip(*pictures[start : start + 4]):
            print("".join(f"{part:24}" for part in line).rstrip())


def work_by_hand():
    """Print each step of attention for the second of two tokens."""
    q = torch.tensor([[[[0.0, 0.0], [1.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 0.0], [2.0, 0.0]]]])
    v = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    steps = {
        "scores q·k": dot(q, k),
        "divided by sqrt(2)": scaled_dot(q, k),
        "softmax": attention_weights(q, k),
        "average of the values": masked_fill(q, k, v),
    }
    print("\nBy hand, two tokens and D = 2: the second token sees both.")
    for name, values in steps.items():
        first, second = values[0, 0, 1].tolist()  # batch, head, position
        print(f"  {name:24} {first:.2f}  {second:.2f}")


def compare_paths(predicates, lengths):
    """Print the difference from naive, time and memory of each path.

    Returns whether all differences are rounding.
    """
    device = torch.device("cpu")
    cases = [(visible, 90, 120) for visible in predicates.values()]
    cases.append((causal, 600, 1100))
    by_naive = progress_bar(cases, "naive, one query after another")
    expected = [value_and_gradients(naive, *case) for case in by_naive]
    rows = []
    for name, path in progress_bar(ATTENTION.items(), "comparing the paths"):
        found = [value_and_gradients(path, *case) for case in cases]
        difference = torch.stack([*map(largest_difference, found, expected)]).max().item()
        row = {"path": name, "largest difference from naive": difference}
        for T in lengths:
            x = torch.randn(1, 4, T, 32)
            seconds = measure_seconds(lambda: path(x, x, x), device)
            size = peak_bytes(lambda: path(x, x, x), device)
            row[f"forward, T = {T}"] = f"{seconds:.4f} s, {size / 1e6:.1f} MB"
        rows.append(row)
    agree = all(row["largest difference from naive"] < 1e-12 for row in rows)
    verdict = "all agree" if agree else "THEY DO NOT AGREE"
    print(f"\n{format_table(rows)}\n\n{verdict}")
    return agree


def value_and_gradients(path, visible, Tq, Tk):
    """What a path computes in float64, with shared keys: its value and three gradients."""
    torch.manual_seed(0)
    shapes = (1, H, Tq, 8), (1, 1, Tk, 8), (1, 1, Tk, 8)
    inputs = [torch.randn(shape).double().requires_grad_() for shape in shapes]
    y = path(*inputs, visible)
    return y, *torch.autograd.grad(y.square().sum(), inputs)


def largest_difference(found, expected):
    """The largest difference between two lists of tensors; NaN if one has a NaN."""
    return torch.stack([(a - b).abs().max() for a, b in zip(found, expected)]).max()


if __name__ == "__main__":
    with one_line_errors():
        if sys.argv[1:]:
            raise ValueError(f"{sys.argv[1]}: attention.py takes no settings")
        sys.exit(not self_portrait())
