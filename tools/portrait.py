"""The self-portrait of attention.py: its masks, examples by hand, and all paths beside naive.

python attention.py                   all of it
python attention.py look-up           one example
python attention.py --device=cuda     does this machine compute attention right?
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from attention import ATTENTION, naive
from engine.common.checks import choose
from engine.common.errors import one_line_errors
from engine.common.hardware import measure_seconds, peak_bytes, pick_device
from engine.common.processes import progress_bar
from masks import VISIBLE, both, causal, full, mask_of, positions, same_document
from tools.shared import benchmark, machine_check, worked
from tools.shared.report import format_table

H = 3  # heads


def self_portrait(lengths=(256, 1024)):
    """Draw the masks, work the examples, compare all paths; returns whether they agree."""
    predicates = benchmark.mechanism_examples(VISIBLE, 3, H)
    predicates["causal, 2 documents"] = both(causal, same_document(torch.arange(120) // 5))
    predicates["full"] = full
    draw_masks(predicates)
    for name in worked.EXAMPLES:
        worked.show(name)
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
        parser = argparse.ArgumentParser(prog="python attention.py", allow_abbrev=False)
        parser.add_argument("example", nargs="*", help=", ".join(worked.EXAMPLES))
        parser.add_argument("--device", help="check attention on it: cpu, cuda, mps or auto")
        options = parser.parse_args()
        if options.device:
            sys.exit(not machine_check.check_machine(pick_device(options.device)))
        if not options.example:
            sys.exit(not self_portrait())
        for name in options.example:
            choose("example", name, worked.EXAMPLES)
            worked.show(name)
