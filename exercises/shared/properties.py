"""What a result depends on: no look at the future, at padding, at other texts and heads.

A derivative that is not 0 tells it. It is compared with the solution's, at one point.
"""

import torch
from torch.autograd.functional import jacobian

from exercises.shared.cases import called, is_float, named, tensors


def broken(theirs, exercise, label, call, *arguments):
    """Yield what changes theirs in a case, and not the solution, and what does not change it."""
    inputs = named(exercise, call, *arguments)
    floats = {name: x for name, x in inputs.items() if is_float(x)}
    if not 0 < sum(x.numel() for x in floats.values()) < 2000:
        return  # too many derivatives, or none
    point = tuple(x + torch.randn_like(x) for x in floats.values())

    def slopes(module):  # of each result, by each argument
        def run(*values):
            return tuple(
                tensors(called(call, module, (inputs | dict(zip(floats, values))).values()))
            )

        return jacobian(run, point)

    for n, (own, right) in enumerate(zip(slopes(theirs), slopes(exercise)), 1):
        for name, a, b in zip(floats, own, right):
            for verb, some, none in ("depends", a, b), ("does not depend", b, a):
                for at in ((some.abs() > 1e-9) & (none == 0)).nonzero()[:1].tolist():
                    rank = a.dim() - floats[name].dim()
                    yield f"In {label}, result {n} at {at[:rank]} {verb} on {name} at {at[rank:]}."
