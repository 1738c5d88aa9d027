"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import contextlib
import itertools

import torch

from exercises.shared.cases import called, is_float, named, outcome, outcomes, tensors
from exercises.shared.comparison import beside, difference, same, same_outcome, traits
from exercises.shared.definition import module, with_mistakes
from exercises.shared.probes import changed, changes, evaluated, read_weights


def expected_outcomes(exercise, *mistakes):
    """What the solution gives, or what one gets with mistakes (None if they do not run)."""
    torch.manual_seed(0)
    try:
        return [*outcomes(module(with_mistakes(exercise, *mistakes)) if mistakes else exercise, exercise)]
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
    if known := causes(exercise, name, got, expected):
        return [*lines, "", "These are the numbers that one gets if", "  " + " and\n  ".join(known)]
    return [*lines, "", *properties(name, [*zip(got, expected)])]


def numbered(results):
    return [f"result {n}" for n in range(1, len(results) + 1)] if results[1:] else ["result"]


def causes(exercise, name, got, expected):
    """Return what, or which two things, give a function's numbers in all its cases; () if none."""
    own = [x for x in zip(exercise.cases(), got, expected) if x[1]["name"] == name]
    mistakes = [*exercise.MISTAKES]
    probes = []
    if bad := {n for _, a, b in own for n, pair in enumerate(zip(a["values"], b["values"])) if difference(*pair)}:
        label, call, *arguments = own[-1][0]
        probes = [*changes(exercise, label, named(exercise, call, *arguments), sorted(bad)[:3])]
    pairs = itertools.product(mistakes, [probe for probe in probes if probe[1] is not None])
    for few in [(x,) for x in mistakes + probes], [*itertools.combinations(mistakes, 2), *pairs]:
        for case, a, b in own:
            few = [some for some in few if gives(exercise, case, some, a)]
        if few:
            return [x if isinstance(x, str) else x[0] for x in few[0]]
    return ()


def gives(exercise, case, changes, got):
    """Whether a case of the solution with these changes gives what the learner got."""
    label, call, *arguments = case
    mistakes = [x for x in changes if isinstance(x, str)]
    try:
        text = with_mistakes(exercise, *mistakes)
        if len(mistakes) == len(changes):
            return alike(got, outcome(module(text), exercise, *case))
        _, target, expression = changes[-1]
        inputs = named(exercise, call, *arguments)
        if target is None:
            text = expression
        elif isinstance(target, str):
            with contextlib.suppress(NameError):  # a size that this label has not
                changed(label, inputs, target, expression)
        values = tensors(called(call, module(text), inputs.values()))
        if isinstance(target, int):
            values[target] = evaluated(label, inputs | {"x": values[target]}, expression)
        return same(got["values"], values)
    except Exception:  # it does not run
        return False


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
