"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import inspect
import itertools

import torch

from exercises.shared import comparison
from exercises.shared.cases import outcomes
from exercises.shared.comparison import same, same_outcome
from exercises.shared.definition import functions, with_mistakes

DIMENSIONS = {2: "row column", 3: "text row column", 4: "text head row column"}


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
    values = [[x.nan_to_num(posinf=torch.inf) for x in case["values"]] for case in (got, wrong)]
    blind = any(x.isnan().any() for x in (*got["values"], *wrong["values"]))
    return same(*values, 1e-9) and (blind or same(got["gradients"], wrong["gradients"], 1e-9))


def properties(exercise, cases, got, expected):
    """Yield what wrong numbers of no known mistake have in common, and those of the last case."""
    right = [same_outcome(a, b) for a, b in zip(got, expected)]
    labels = [label for (label, *_), is_right in zip(cases, right) if is_right]
    if labels:
        yield "It is right for: " + "; ".join(labels)
    named = [named_floats(exercise, *case) for case in cases]
    lengths = [{name: x.shape[-2] for name, x in pairs if name in ("q", "k")} for pairs in named]
    if labels and right == [x.get("q", 0) >= x.get("k", 0) for x in lengths]:
        yield "It is wrong wherever Tq < Tk, and only there."
    if all(same(a["values"], b["values"]) for a, b in zip(got, expected)):
        wrong = []
        for pairs, a, b in zip(named, got, expected):
            differ = map(comparison.difference, a["gradients"], b["gradients"])
            wrong += [name for (name, _), text in zip(pairs, differ) if text]
        yield f"Only gradients are wrong: those of {', '.join(dict.fromkeys(wrong))}."
    last = max(n for n, is_right in enumerate(right) if not is_right)
    for a, b in zip(got[last]["values"], expected[last]["values"]):
        if a.shape == b.shape and a.dtype == b.dtype:
            yield from (f"In {cases[last][0]}, {text}." for text in traits(a, b))


def named_floats(exercise, label, call, *arguments):
    """Return [(name, tensor)] of the arguments of a case that take a gradient."""
    function = getattr(exercise, call) if isinstance(call, str) else call
    names = [*inspect.signature(function).parameters][not isinstance(call, str) :]
    pairs = itertools.zip_longest(names, arguments, fillvalue=names[-1])  # *parts
    return [(name, x) for name, x in pairs if torch.is_tensor(x) and x.is_floating_point()]


def traits(a, b):
    """Yield what is wrong with a tensor: in which rows, heads, texts; NaN; sums of rows."""
    wrong = ~comparison.close(a, b)
    for d, name in enumerate(DIMENSIONS.get(wrong.dim(), "").split()):
        hit = wrong.movedim(d, 0).flatten(1).any(1)
        if hit.any() and not hit.all():
            where = ", ".join(map(str, hit.nonzero().flatten().tolist()))
            yield f"all wrong numbers are in {name} {where}"
    if (a.isnan() & ~b.isnan()).any():
        yield f"{int(a.isnan().sum())} of {a.numel()} numbers are NaN"
    elif b.dim() and b.is_floating_point() and (b.sum(-1) - 1).abs().max() < 1e-9:
        if (a.sum(-1) - 1).abs().max() > 1e-9:
            yield "the rows do not sum to 1"
