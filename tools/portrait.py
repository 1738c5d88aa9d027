"""The self-portrait of attention.py: its masks, examples by hand, and all paths beside naive.

python attention.py                   all of it
python attention.py look-up           one example
python attention.py --device=cuda     does this machine compute attention right?
"""

import argparse
import sys

import torch

from attention import ATTENTION
from engine.errors import one_line_errors
from engine.machine import pick_device
from masks import VISIBLE, both, causal, full, mask_of, positions, same_document
from tools.shared import benchmark, machine_check, worked
from tools.shared.measure import measure_seconds, peak_bytes
from tools.shared.report import format_table


def self_portrait(lengths=(256, 1024)):
    """Draw the masks, work the examples, compare all paths; returns whether they agree."""
    predicates = benchmark.mechanism_examples(VISIBLE, 3, 3)
    predicates["causal, 2 documents"] = both(causal, same_document(torch.arange(10) // 5))
    predicates["full"] = full
    draw_masks(predicates)
    for name in worked.EXAMPLES:
        worked.show(name)
    return compare_paths(lengths)


def draw_masks(predicates):
    """Print the masks of ten positions, four side by side."""
    print("Who may look: row i is the query, column j the key.")
    pictures = []
    for name, visible in predicates.items():
        mask = mask_of(visible, *positions(10, 10))[0]
        lines = [" ".join("·■"[seen] for seen in row) for row in mask.tolist()]
        pictures.append([name, *lines])
    for start in range(0, len(pictures), 4):
        print()
        for line in zip(*pictures[start : start + 4]):
            print("".join(f"{part:24}" for part in line).rstrip())


def compare_paths(lengths):
    """Print the difference from naive in float64, time and memory of each path.

    Returns whether rounding explains all differences.
    """
    device = torch.device("cpu")
    found = machine_check.measure(device, ["float64"])
    found = [line for line in found if line[2] != "large scores"]  # whose rounding is larger, too
    agree = all(error <= limit for *_, error, limit in found)
    rows = []
    for name, path in ATTENTION.items():
        errors = [error for who, *_, error, _ in found if who == name]
        row = {"path": name, "largest difference from naive": max(errors)}
        for T in lengths:
            x = torch.randn(1, 4, T, 32)
            seconds = measure_seconds(lambda: path(x, x, x), device)
            size = peak_bytes(lambda: path(x, x, x), device)
            row[f"forward, T = {T}"] = f"{seconds:.4f} s, {size / 1e6:.1f} MB"
        rows.append(row)
    print(f"\n{format_table(rows)}\n\n{'all agree' if agree else 'THEY DO NOT AGREE'}")
    return agree


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
            worked.show(name)
