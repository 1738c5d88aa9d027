"""The self-portrait of attention.py: its masks, an example worked by hand, and every path beside naive."""

import torch

from attention import ATTENTION, attention_weights, dot, masked_fill, naive, scaled_dot
from engine import benchmark
from engine.roofline import peak_bytes, seconds_of
from masks import VISIBLE, both, causal, full, mask_of, positions, same_document

H = 3  # heads, and also the number that predicates get, since one of them wants the number of heads
PREDICATES = benchmark.examples(VISIBLE, H) | {
    "causal, 2 documents": both(causal, same_document(torch.arange(120) // 5)), "full": full,
}


def self_portrait(lengths=(256, 1024, 4096)):
    """Draw the masks, work an example by hand, compare all paths; returns whether they agree."""
    draw_masks()
    work_by_hand()
    return compare_paths(lengths)


def picture(visible, T=10):
    """A predicate as lines of text: row i sees the columns j that are filled."""
    mask = mask_of(visible, *positions(T, T))[0]
    return ["".join("■ " if seen else "· " for seen in row) for row in mask.tolist()]


def draw_masks(columns=4):
    print("Who may look: row i is the query, column j the key.\n")
    pictures = [[name, *picture(visible)] for name, visible in PREDICATES.items()]
    for start in range(0, len(pictures), columns):
        for line in zip(*pictures[start : start + columns]):
            print("".join(f"{part:24}" for part in line).rstrip())
        print()


def work_by_hand():
    q = torch.tensor([[[[0.0, 0.0], [1.0, 0.0]]]])
    k, v = torch.tensor([[[[1.0, 0.0], [2.0, 0.0]]]]), torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    second = (0, 0, 1)  # batch, head, position
    scores, scaled, weights = dot(q, k)[second], scaled_dot(q, k)[second], attention_weights(q, k)[second]
    y = ", ".join(f"{value:.1f}" for value in masked_fill(q, k, v)[second])
    print("By hand, two tokens and D = 2: the second token sees both.")
    print(f"  scores q·k               {scores[0]:.2f}  {scores[1]:.2f}")
    print(f"  divided by sqrt(2)       {scaled[0]:.2f}  {scaled[1]:.2f}")
    print(f"  softmax                  {weights[0]:.2f}  {weights[1]:.2f}")
    print(f"  average of the values    {weights[0]:.2f} · [10, 0] + {weights[1]:.2f} · [0, 10] = [{y}]\n")


def largest_difference(path, visible):
    """Of path from naive in float64, (in value, in gradient), for shared key/value heads and fewer queries than keys."""
    torch.manual_seed(0)
    shapes = (1, H, 90, 8), (1, 1, 120, 8), (1, 1, 120, 8)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    results = []
    for function in (path, naive):
        y = function(*inputs, visible)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    value, *gradients = ((a - b).abs().max().item() for a, b in zip(*results))
    return value, max(gradients)


def compare_paths(lengths):
    """Print each path's largest difference from naive, time and memory; returns whether all differences are rounding."""
    device, agree = torch.device("cpu"), True
    print(f"{'path':12}  largest difference from naive       forward: seconds and MB at T = {', '.join(map(str, lengths))}")
    for name, path in ATTENTION.items():
        value, gradient = map(max, zip(*(largest_difference(path, visible) for visible in PREDICATES.values())))
        agree = agree and max(value, gradient) < 1e-12
        costs = []
        for T in lengths:
            x = torch.randn(1, 4, T, 32)

            def call():
                return path(x, x, x)

            costs.append(f"{seconds_of(call, device):8.4f} s {peak_bytes(call, device) / 1e6:7.1f} MB")
        print(f"{name:12}  value {value:.0e}, gradient {gradient:.0e}  {' '.join(costs)}")
    print("\nall agree" if agree else "\nTHEY DO NOT AGREE")
    return agree
