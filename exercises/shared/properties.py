"""What is seen of a wrong result, beside its numbers: see diagnosis.py."""

import torch
from torch.autograd.functional import jacobian

from exercises.shared.cases import called, is_float, named, tensors
from exercises.shared.comparison import equal, wrong

CHANGES = {
    "2 times as large": lambda x: 2 * x,
    "of the other sign": lambda x: -x,
    "larger by 1": lambda x: x + 1,
}


def traits(a, b, sizes):
    """Yield what is seen of a tensor a that should be b, of the same shape."""
    off = wrong(a, b)
    if b.dtype == torch.bool:
        yield f"{int((a & ~b).sum())} should not be True, {int((b & ~a).sum())} should be"
    for dim, size in enumerate(a.shape):
        places = off.movedim(dim, 0).reshape(size, -1).any(-1).nonzero().flatten().tolist()
        if len(places) < size:
            dims = [name for name, n in sizes.items() if n == size] or [f"dimension {dim}"]
            yield f"it is wrong only where {' or '.join(dims)} is {places}, of {size}"
    a, b = a.double(), b.double()
    one = torch.ones_like(b.sum(-1))
    if wrong(a.sum(-1), one).any() and not wrong(b.sum(-1), one).any():
        yield "the rows do not sum to 1"
    if a.isnan().any() > b.isnan().any():
        yield "some of it is NaN, as 0 / 0, 0 * ∞ and ∞ - ∞ are"
    if not wrong(a.flatten().sort()[0], b.flatten().sort()[0]).any():
        yield "the numbers are right, in another order"
    if not wrong(a.abs(), b.abs()).any():
        yield "the numbers are right, but for signs"
    for verb, parts in ("times", a / b), ("plus", a - b):
        c = parts[parts.isfinite()]
        if len(c) > 1 and not wrong(c, c[:1].expand_as(c), 1e-9).any():
            yield f"it is the right one {verb} {c[0]:.5g}"


def behaviour(theirs, exercise, label, call, *arguments):
    """Yield what a change of an argument does to theirs in a case, and not to the solution."""
    inputs = named(exercise, call, *arguments)
    floats = {name: x for name, x in inputs.items() if is_float(x)}
    if not 0 < sum(x.numel() for x in floats.values()) < 2000:
        return  # too many derivatives, or none
    point = {name: x + torch.randn_like(x) for name, x in floats.items()}

    def run(module, changed):
        return tuple(tensors(called(call, module, (inputs | point | changed).values())))

    def facts(module):
        results = run(module, {})
        for name, x in point.items():
            for to, change in CHANGES.items():
                for n, after in enumerate(run(module, {name: change(x)})):
                    for becomes, change in {"as before": lambda x: x, **CHANGES}.items():
                        if results[n].abs().sum() > 0 and equal(
                            after, change(results[n].double()), 1e-9
                        ):
                            yield f"with {name} {to}, result {n + 1} is {becomes}"

    def slopes(module):  # of each result, by each argument
        return jacobian(lambda *x: run(module, dict(zip(point, x))), tuple(point.values()))

    own, right = ([*facts(module)] for module in (theirs, exercise))
    yield from (f"{fact}, and should not be" for fact in own if fact not in right)
    yield from (f"not so, and should be: {fact}" for fact in right if fact not in own)
    for n, (own, right) in enumerate(zip(slopes(theirs), slopes(exercise)), 1):
        for name, a, b in zip(point, own, right):
            for verb, some, none in ("depends", a, b), ("does not depend", b, a):
                for at in ((some.abs() > 1e-9) & (none == 0)).nonzero()[:1].tolist():
                    rank = a.dim() - point[name].dim()
                    yield f"result {n} at {at[:rank]} {verb} on {name} at {at[rank:]}"
