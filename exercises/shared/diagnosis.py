"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import torch

from exercises.shared.cases import is_float, named, outcomes
from exercises.shared.causes import causes
from exercises.shared.comparison import beside, same, same_outcome, traits
from exercises.shared.definition import module, with_mistakes


def expected_outcomes(exercise, *mistakes):
    """What the solution gives, or what one gets with mistakes."""
    torch.manual_seed(0)
    theirs = module(with_mistakes(exercise, *mistakes)) if mistakes else exercise
    return [*outcomes(theirs, exercise)]


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
    own = [x for x in zip(exercise.cases(), got, expected) if x[2]["name"] == name]
    if known := causes(exercise, own):
        return [*lines, "", "These are the numbers that one gets if", *(f"  {x}" for x in known)]
    return [*lines, "", *properties(name, [*zip(got, expected)])]


def numbered(results):
    return [f"result {n}" for n in range(1, len(results) + 1)] if results[1:] else ["result"]


def properties(name, pairs):
    """Yield what one function's wrong numbers have in common, and those of its last case."""
    own = [pair for pair in pairs if pair[1]["name"] == name]
    if right := [b["label"] for a, b in own if same_outcome(a, b)]:
        yield "It is right for: " + "; ".join(right)
    if all(same(a["values"], b["values"]) for a, b in own):
        yield "The values are right: a part is cut off from the gradient (detach, item, no_grad),"
        yield "or has none, as where NaN is replaced after it has come."
    got, expected = [pair for pair in own if not same_outcome(*pair)][-1]
    told = {}  # of the first result that has it
    for result, a, b in zip(numbered(got["values"]), got["values"], expected["values"]):
        if a.shape == b.shape and a.dtype == b.dtype:
            told = dict.fromkeys(traits(a, b), result) | told
    yield from (f"In {expected['label']}, {result}: {text}." for text, result in told.items())
    yield from next((a["broken"] for a, _ in reversed(own) if a.get("broken")), ())
