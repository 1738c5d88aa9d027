"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import itertools

import torch

from exercises.shared.cases import is_float, named, outcomes
from exercises.shared.comparison import beside, same, same_outcome, traits
from exercises.shared.definition import with_mistakes


def expected_outcomes(exercise, *mistakes):
    """What the solution gives, or what one gets with mistakes (None if they do not run)."""
    torch.manual_seed(0)
    try:
        return [*outcomes(with_mistakes(exercise, *mistakes), exercise)]
    except (AttributeError, RuntimeError, ValueError, TypeError, LookupError, SyntaxError):
        if not mistakes:
            raise


def diagnose(exercise, got):
    """Return what is wrong with a learner's outcomes, as lines; none if all is right."""
    expected = expected_outcomes(exercise)
    pairs = zip(exercise.cases(), got, expected)
    wrong = [pair for pair in pairs if not same_outcome(*pair[1:])]
    if not wrong:
        return []
    case, a, b = wrong[0]
    name = b["name"]
    lines = [f"{name}, {b['label']}:", ""]
    inputs = named(exercise, *case[1:])
    if same(a["values"], b["values"]):
        floats = [name for name, x in inputs.items() if is_float(x)]
        names = [f"the values are right, the gradient of {name}" for name in floats]
        lines += beside(inputs, names, a["gradients"], b["gradients"])
    else:
        lines += beside(inputs, numbered(b["values"]), a["values"], b["values"])
    if known := known_mistakes(exercise, name, got):
        return [*lines, "", "These are the numbers that one gets if", "  " + " and\n  ".join(known)]
    return [*lines, "", *properties(name, [*zip(got, expected)])]


def numbered(results):
    return [f"result {n}" for n in range(1, len(results) + 1)] if results[1:] else ["result"]


def known_mistakes(exercise, name, got):
    """Return the known mistake, or two, that give a function's numbers; () if none does."""
    own = [n for n, case in enumerate(got) if case["name"] == name]
    for count in 1, 2:
        for sentences in itertools.combinations(exercise.MISTAKES, count):
            wrong = expected_outcomes(exercise, *sentences)
            if wrong and all(alike(got[n], wrong[n]) for n in own):
                return sentences
    return ()


def alike(got, wrong):
    """Whether a case gives the same. What sees nothing is NaN or 0, which have no one gradient."""
    if not any(x.isnan().any() for x in wrong["values"]):
        return same_outcome(got, wrong)
    zeros = [x.masked_fill(x.isnan(), 0) for x in wrong["values"]]
    replaced = any(x.any() for x in zeros) and same(got["values"], zeros)
    return replaced or same(got["values"], wrong["values"])


def properties(name, pairs):
    """Yield what one function's wrong numbers have in common, and those of its last case."""
    own = [pair for pair in pairs if pair[1]["name"] == name]
    if right := [b["label"] for a, b in own if same_outcome(a, b)]:
        yield "It is right for: " + "; ".join(right)
    got, expected = [pair for pair in own if not same_outcome(*pair)][-1]
    told = {}  # of the first result that has it
    for result, a, b in zip(numbered(got["values"]), got["values"], expected["values"]):
        if a.shape == b.shape and a.dtype == b.dtype:
            told = dict.fromkeys(traits(a, b), result) | told
    yield from (f"In {expected['label']}, {result}: {text}." for text, result in told.items())
    yield from next((a["broken"] for a, _ in reversed(own) if a.get("broken")), ())
