"""What is said of wrong numbers: where they are wrong, what is seen there, and what explains it."""

import contextlib
import itertools

import torch
from torch.autograd.functional import jacobian

from exercises.shared.cases import called, is_float, sizes_in
from exercises.shared.causes import causes, limit
from exercises.shared.comparison import difference, differing, equal, wrong


def reasons(theirs, exercise, triples, source):
    """Yield what is known of the first wrong function, as lines: each time all that is known.

    triples: of each case the Case, and the outcomes of the learner's file and of the solution.
    """
    first = next(triple for triple in triples if differing(*triple[1:]))
    own = [triple for triple in triples if triple[0].names == first[0].names]
    lines = differences(*first)
    yield lines  # what follows may not come back
    yield [*lines, *symptoms(theirs, exercise, own)]
    if found := causes(exercise, own, theirs, source):
        yield lines + found


def differences(case, got, right):
    """Return how two outcomes of a case differ, as lines; with all numbers of the first, if few."""
    names = differing(got, right)
    how = [f"  {name}: {difference(got[name], right[name])}" for name in names[:3]]
    lines = [f"{case.names}, {case.label}:", "", *how]
    shown = case.inputs | {"expected": right[names[0]], "got": got[names[0]]}
    if sum(x.numel() for x in shown.values() if torch.is_tensor(x)) <= 150:
        for name, x in shown.items():
            text = str(getattr(x, "__name__", x)).replace("\n", "\n" + " " * 13)
            lines.append(f"  {name:10} {text}")
    return [*lines, ""]


def symptoms(theirs, exercise, own):
    """Yield what is seen of one function's wrong numbers, in the last case that shows something."""
    faults = [(differing(*outcomes), case, *outcomes) for case, *outcomes in own]
    if right := [case.label for names, case, *_ in faults if not names]:
        yield f"It is right in {len(right)} of {len(own)} cases: " + "; ".join(right[:4])
    if all(name.startswith("the gradient") for names, *_ in faults for name in names):
        yield "The values are right: a part is cut off from the gradient (detach, item, no_grad),"
        yield "or has none, as where NaN is replaced after it has come."
        return
    for names, case, got, right in reversed(faults):
        seen = []
        for name in names:
            seen += [f"{name}: {text}" for text in traits(got[name], right[name], case.label)]
        with contextlib.suppress(Exception), limit(0.3):  # it may not take other inputs
            seen += itertools.islice(dependence(theirs, exercise, case), 6)
        if seen:
            yield from [f"In {case.label}:", *(f"  {text}" for text in seen)]
            return


def traits(a, b, label):
    """Yield what is seen of a tensor a that should be b, in a case whose label has sizes."""
    if a.shape != b.shape:
        return
    off, a, b = wrong(a, b), a.double(), b.double()
    for dim, size in enumerate(a.shape):
        dims = [name for name, n in sizes_in(label).items() if n == size]
        where = " or ".join(dims) or f"dimension {dim}"
        places = sorted({at[dim] for at in off.nonzero().tolist()})
        if len(places) < min(size, 9):
            yield f"it is wrong only where {where} is {places}, of {size}"
        sums, right = a.sum(dim), b.sum(dim)
        for total in right * 0, right * 0 + 1:
            if equal(right, total) and not equal(sums, total):
                yield f"its sums over {where} are to be {total.flatten()[0]:.0f}, and are not"
    if a.isnan().any() > b.isnan().any():
        yield "some of it is NaN, as 0 / 0, 0 * ∞ and ∞ - ∞ are"
    times = (a / b)[b != 0]
    if len(times) and (times - times[0]).abs().max() < 1e-9:
        yield f"it is the right one times {times[0]:.10g}"


def dependence(theirs, exercise, case):
    """Yield what changes theirs in a case, and not the solution, and what does not change it.

    A derivative that is not 0 tells it. It is compared with the solution's, at one point.
    """
    floats = {name: x for name, x in case.inputs.items() if is_float(x)}
    point = tuple(x + torch.randn_like(x) for x in floats.values())

    def slopes(module):  # of each result, by each argument
        def run(*values):
            return tuple(called(module, case, case.inputs | dict(zip(floats, values))))

        return jacobian(run, point)

    for n, (own, right) in enumerate(zip(slopes(theirs), slopes(exercise)), 1):
        for name, a, b in zip(floats, own, right):
            if a.shape != b.shape:
                break
            for verb, some, none in ("depends", a, b), ("does not depend", b, a):
                for at in ((some.abs() > 1e-9) & (none == 0)).nonzero()[:1].tolist():
                    rank = a.dim() - floats[name].dim()
                    yield f"result {n} at {at[:rank]} {verb} on {name} at {at[rank:]}"
