"""What is seen of a wrong result, beside its numbers: see diagnosis.py."""

import torch
from torch.autograd.functional import jacobian

from exercises.shared.cases import called, is_float, limit, named, outcome, tensors
from exercises.shared.comparison import same, wrong


def traits(a, b, sizes):
    """Yield what is seen of a tensor a that should be b, of the same shape."""
    off, a, b = wrong(a, b), a.double(), b.double()
    for dim, size in enumerate(a.shape):
        dims = [name for name, n in sizes.items() if n == size]
        where = " or ".join(dims) or f"dimension {dim}"
        places = off.movedim(dim, 0).reshape(size, -1).any(-1).nonzero().flatten().tolist()
        if len(places) < min(size, 9):
            yield f"it is wrong only where {where} is {places}, of {size}"
        sums, right = a.sum(dim), b.sum(dim)
        for total in 0, 1:
            if wrong(sums, right * 0 + total).any() and not wrong(right, right * 0 + total).any():
                yield f"its sums over {where} are to be {total}, and are not"
    if a.isnan().any() > b.isnan().any():
        yield "some of it is NaN, as 0 / 0, 0 * ∞ and ∞ - ∞ are"
    times = (a / b)[b != 0].flatten()
    if len(times) and not wrong(times, times[:1].expand_as(times), 1e-9).any():
        yield f"it is the right one times {times[0]:.5g}"


def simple(theirs, exercise, label, call, *arguments):
    """Yield with which arguments of nothing but 0 or 1 theirs is right, as "q = 0"."""
    inputs = named(exercise, call, *arguments)
    for name, x in inputs.items():
        for value in [0, 1] if is_float(x) else []:
            case = label, call, *(inputs | {name: torch.full_like(x, value)}).values()
            with torch.no_grad(), limit(0.1):
                if same(*(outcome(who, exercise, *case)["values"] for who in (theirs, exercise))):
                    yield f"{name} = {value}"


def dependence(theirs, exercise, label, call, *arguments):
    """Yield what changes theirs in a case, and not the solution, and what does not change it.

    A derivative that is not 0 tells it. It is compared with the solution's, at one point.
    """
    inputs = named(exercise, call, *arguments)
    floats = {name: x for name, x in inputs.items() if is_float(x)}
    point = tuple(x + torch.randn_like(x) for x in floats.values())

    def slopes(module):  # of each result, by each argument
        def run(*values):
            changed = inputs | dict(zip(floats, values))
            return tuple(tensors(called(call, module, changed.values())))

        return jacobian(run, point)

    for n, (own, right) in enumerate(zip(slopes(theirs), slopes(exercise)), 1):
        for name, a, b in zip(floats, own, right):
            for verb, some, none in ("depends", a, b), ("does not depend", b, a):
                for at in ((some.abs() > 1e-9) & (none == 0)).nonzero()[:1].tolist():
                    rank = a.dim() - floats[name].dim()
                    yield f"result {n} at {at[:rank]} {verb} on {name} at {at[rank:]}"
