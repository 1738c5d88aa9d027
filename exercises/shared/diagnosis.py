"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import functools
import inspect
import itertools

import torch

from exercises.shared import comparison
from exercises.shared.cases import is_float, outcomes, sizes_of
from exercises.shared.comparison import same, same_outcome
from exercises.shared.definition import functions, with_mistakes

DIMENSIONS = {2: ("row",), 3: ("text", "row"), 4: ("text", "head", "row")}


def expected_outcomes(exercise, *mistakes):
    """What the solution gives, or what one gets with mistakes; None if they do not even run."""
    torch.manual_seed(0)
    try:
        return [*outcomes(with_mistakes(exercise, *mistakes), exercise)]
    except (AttributeError, RuntimeError, ValueError, TypeError, LookupError, SyntaxError):
        return None


def diagnose(exercise, got):
    """Return what is wrong with a learner's outcomes, as lines; none if all is right."""
    expected = expected_outcomes(exercise)
    cases = [*exercise.cases()]
    for (label, call, *arguments), a, b in zip(cases, got, expected):
        if a["changed"] or not same_outcome(a, b):
            break
    else:
        return []
    name = call if isinstance(call, str) else ", ".join(functions(exercise))
    lines = [f"{name}, {label}:", ""]
    if same_outcome(a, b):
        return [*lines, "  it changes its arguments: what calls it may still need them"]
    what = "gradients" if same(a["values"], b["values"]) else "values"
    if what == "gradients":
        lines.insert(1, "the values are right, the gradients of its arguments are not:")
    lines += [*comparison.beside(arguments, a[what], b[what]), ""]
    if names := known_mistakes(exercise, got):
        return [*lines, "These are the numbers that one gets if", *(f"  {name}" for name in names)]
    return [*lines, *properties(exercise, cases, got, expected)]


def known_mistakes(exercise, got):
    """Return the known mistake that gives these numbers, or two of them; () if none does."""
    for count in 1, 2:
        for names in itertools.combinations(exercise.MISTAKES, count):
            wrong = expected_outcomes(exercise, *names)
            if wrong and all(map(alike, got, wrong)):
                return names
    return ()


def alike(got, wrong):
    """Whether a case gives the same. What sees nothing is NaN or 0, which have no one gradient."""
    a, b = ([x.nan_to_num(posinf=torch.inf) for x in case["values"]] for case in (got, wrong))
    blind = any(x.isnan().any() for x in wrong["values"])
    return same(a, b, 1e-9) and (blind or same(got["gradients"], wrong["gradients"], 1e-9))


def properties(exercise, cases, got, expected):
    """Yield what wrong numbers of no known mistake have in common, and those of the last case."""
    right, square, gradients = [], [], {}
    for (label, *call), a, b in zip(cases, got, expected):
        size = sizes_of(label)
        if size.get("Tq", 0) >= size.get("Tk", 0):
            square.append(label)
        if same_outcome(a, b):
            right.append(label)
            continue
        last = label, zip(a["values"], b["values"])
        for name, *pair in zip(float_names(exercise, *call), a["gradients"], b["gradients"]):
            if comparison.difference(*pair):
                gradients[name] = True
    if right:
        yield "It is right for: " + "; ".join(right)
    if right and right == square:
        yield "It is wrong wherever Tq < Tk, and only there."
    if all(same(a["values"], b["values"]) for a, b in zip(got, expected)):
        yield f"Only gradients are wrong: those of {', '.join(gradients)}."
    label, pairs = last
    for a, b in pairs:
        if a.shape == b.shape and a.dtype == b.dtype:
            yield from (f"In {label}, {text}." for text in traits(a, b))


def float_names(exercise, call, *arguments):
    """The names of the arguments of a case that take a gradient."""
    if isinstance(call, str):
        function = getattr(exercise, call)
    else:
        function = functools.partial(call, exercise)
    names = inspect.signature(function).parameters
    return [name for name, x in zip(names, arguments) if is_float(x)]


def traits(a, b):
    """Yield what is wrong with a tensor: in which rows, heads, texts; NaN; sums of rows."""
    wrong = ~comparison.close(a, b)
    for d, name in enumerate(DIMENSIONS.get(wrong.dim(), ())):
        hit = wrong.movedim(d, 0).flatten(1).any(1)
        if hit.any() and not hit.all():
            where = hit.nonzero().flatten().tolist()
            yield f"all wrong numbers are in {name} {str(where)[1:-1]}"
    if (a.isnan() & ~b.isnan()).any():
        yield f"{int(a.isnan().sum())} of {a.numel()} numbers are NaN"
    elif b.dim() > 1 and sum_to_one(b) and not sum_to_one(a):
        yield "the rows do not sum to 1"


def sum_to_one(x):
    error = x.double().sum(-1) - 1
    return error.abs().max() < 1e-9
