"""Does this machine compute attention right? Every path, beside float64 on the CPU.

The numbers that go in are multiples of 1/32, which every dtype holds: what differs is computed.
The error of a row is the length of the difference, relative to that of the row, or of a typical row
of its tensor where that is longer.
"""

import math
import platform

import torch

from attention import ATTENTION, causal, masked_fill, naive, scaled_dot
from engine.parallel import progress_bar
from masks import VISIBLE, full
from tools.shared.benchmark import mechanism_examples
from tools.shared.report import device_name, format_table

H, G, D = 4, 2, 32
# How many eps of a dtype rounding explains. Scores, weights, sums and outputs are all rounded, sums
# of half precision mostly to float32. The largest on a CPU were 14 in float32, and 6.
ROUNDING = {"float64": 32, "float32": 32, "float16": 12, "bfloat16": 12}
DTYPES = [*ROUNDING][1:]  # in which models compute
LONG = 100  # queries: more of them take naive seconds
THREADS = torch.get_num_threads()
PARTS = ("value", "gradient of q", "gradient of k", "gradient of v")


def documents(i, j):
    return (j <= i) & (i // 16 == j // 16)


def numbers(Tq, Tk=40, B=1):
    """Random q, k, v, and dy, the gradient of the output; float64."""
    shapes = (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, D), (B, H, Tq, D)
    return [(32 * torch.randn(shape)).round().clamp(-255, 255).double() / 32 for shape in shapes]


def cases():
    """Yield (label, visible, [q, k, v, dy])."""
    torch.manual_seed(0)
    masks = mechanism_examples(VISIBLE, 3, H) | {"documents": documents, "full": full}
    for name, visible in masks.items():
        yield f"{name}, Tq = Tk", visible, numbers(40)
        yield f"{name}, Tq < Tk", visible, numbers(13)
    yield "one query", causal, numbers(1)
    yield "a long text", causal, numbers(600, 600)
    yield "the end of a long text", causal, numbers(5, 600)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in numbers(13, B=2)]
    yield "two texts, not contiguous", causal, turned
    # Each token finds itself by a score of 23,170, and others by thousands less.
    q, k, v, dy = numbers(40)
    codes = torch.where(k < 0, -64.0, 64.0).double()
    yield "large scores", causal, [codes.repeat_interleave(H // G, dim=1), codes, v, dy]


def computed(path, visible, q, k, v, dy):
    """The value of a path, and the gradients of q, k and v."""
    # Threads that share small operations mostly wait for each other.
    torch.set_num_threads(THREADS if q.shape[2] > LONG else 1)
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    y = path(*inputs, visible)
    return y.detach(), *torch.autograd.grad(y, inputs, dy)


def error_of(found, expected):
    """The largest error of a row; infinite for NaN. Where all should be 0, it is 0 if finite."""
    found = found.cpu().double()
    sizes = expected.norm(dim=-1)
    typical = sizes.square().mean().sqrt()
    if not found.isfinite().all():
        return math.inf
    if not typical:
        return 0.0
    return ((found - expected).norm(dim=-1) / sizes.clamp_min(typical)).max().item()


def explained(dtype, q, k):
    """The error that rounding explains.

    A backward pass that computes the scores again may round them in another way, in float32.
    """
    scores = scaled_dot(q, k.repeat_interleave(H // G, dim=1)).abs().max().item()
    eps = torch.finfo(getattr(torch, dtype)).eps
    again = 2 * min(eps, torch.finfo(torch.float32).eps)
    return ROUNDING[dtype] * eps + again * scores


def measure(device, dtypes):
    """Yield (path, dtype, case, part, error, what rounding explains); part: why it fails."""
    for label, visible, inputs in progress_bar([*cases()], f"all paths on {device}"):
        is_long = inputs[0].shape[2] > LONG
        expected = computed(masked_fill if is_long else naive, visible, *inputs)
        for name, path in ATTENTION.items():
            for dtype in dtypes if not (is_long and name == "naive") else ():
                limit = explained(dtype, *inputs[:2])
                try:
                    typed = [x.to(device, getattr(torch, dtype)) for x in inputs]
                    found = computed(path, visible, *typed)
                except (RuntimeError, TypeError) as error:
                    yield name, dtype, label, str(error).splitlines()[0], math.inf, limit
                    continue
                for part, a, b in zip(PARTS, found, expected):
                    yield name, dtype, label, part, error_of(a, b), limit
    torch.set_num_threads(THREADS)


def check_machine(device):
    """Print the largest errors, and a verdict; returns whether rounding explains them all."""
    found = [*measure(device, DTYPES)]
    rows = []
    for name in ATTENTION:
        row = {"path": name}
        for dtype in DTYPES:
            errors = [line[4:] for line in found if line[:2] == (name, dtype)]
            error, limit = max(errors, key=lambda pair: pair[0] / pair[1])
            row[dtype] = f"{error:.1e} of {limit:.1e}"
        rows.append(row)
    print(f"Largest errors beside what rounding explains, in {len(found)} comparisons:\n")
    print(format_table(rows))
    wrong = [line for line in found if line[4] > line[5]]
    for name, dtype, label, part, error, limit in wrong[:20]:
        print(f"{name} in {dtype}, {label}: {part}: {error:.1e} of {limit:.1e}")
    print(f"\n{'THIS MACHINE IS WRONG' if wrong else 'This machine computes attention right'}:")
    print(
        f"{device_name(device)}; torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.platform()}"
    )
    return not wrong
