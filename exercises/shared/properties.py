"""Properties that a solution keeps: no look at the future, and each text and head by itself.

A case's label tells what the axes are: with B=2 and T=5, those of 2 are texts, those of 5 tokens.
A function is called again, with other inputs; so is the solution, which must keep what is asked.
"""

import torch

from exercises.shared.cases import called, is_float, leaf, named, sizes_in, tensors
from exercises.shared.comparison import close


def broken(theirs, exercise, label, call, *arguments):
    """Yield the properties that the solution keeps in a case, and theirs does not."""
    sizes = sizes_in(label)
    if len({*sizes.values()}) < len(sizes):
        return  # axes of one size are not told apart
    inputs = named(exercise, call, *arguments)
    parts = {name: x for name, x in inputs.items() if torch.is_tensor(x)}

    def results(module, changed):  # each of them, and what it becomes with changed inputs
        runs = [called(call, module, map(leaf, x.values())) for x in (inputs, inputs | changed)]
        return zip(*map(tensors, runs))

    def breaks(names, axes=(), n=0, turned=()):
        """Do other numbers in the last n of axes, or axes turned around, change what is left?"""
        changed = {name: turn(other_last(parts[name], axes, n), turned) for name in names}

        def keeps(a, b):
            return (close(turn(b, turned), a, 1e-5) | is_last(a, axes, n)).all()

        both = zip(results(exercise, changed), results(theirs, changed))
        return any(keeps(*a) and a[0].shape == b[0].shape and not keeps(*b) for a, b in both)

    if breaks(()):
        yield "two calls with the same inputs give different numbers"
        return
    for letter, word in ("B", "text"), ("H", "head"):
        size = sizes.get(letter, 1)
        if breaks(parts, turned=[size]):
            yield f"with the {word}s in reverse order, the result is not in reverse order"
        if breaks(parts, [size], size - 1):
            yield f"{word} 0 gets other numbers when only the other {word}s change"
    tokens = [size for name, size in sizes.items() if name[0] == "T"]
    for n in range(min(tokens, default=1) - 1, 0, -1):
        if late := ", ".join(name for name in parts if breaks([name], tokens, n)):
            yield f"up to token {max(tokens) - n - 1} it changes when only later {late} change"
            return


def turn(x, sizes):
    return x.flip([d for d, size in enumerate(x.shape) if size in sizes])


def is_last(x, sizes, n):
    """Where x is among the last n of an axis of these sizes."""
    where = torch.zeros_like(x, dtype=torch.bool)
    for d, size in enumerate(x.shape):
        if size in sizes:
            where.narrow(d, size - n, n).fill_(True)
    return where


def other_last(x, sizes, n):
    """Other numbers: their cube, which no norm undoes."""
    return torch.where(is_last(x, sizes, n), x**3 + 1, x) if is_float(x) else x
