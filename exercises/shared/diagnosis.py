"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import contextlib
import itertools

import torch

from exercises.shared.cases import called, is_float, leaf, named, outcome, outcomes, tensors
from exercises.shared.comparison import beside, difference, same, same_outcome, traits
from exercises.shared.definition import module, with_mistakes
from exercises.shared.probes import changed, changes, evaluated, read_weights


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
    if known := causes(exercise, name, got, expected):
        return [*lines, "", "These are the numbers that one gets if", "  " + " and\n  ".join(known)]
    return [*lines, "", *properties(name, [*zip(got, expected)])]


def numbered(results):
    return [f"result {n}" for n in range(1, len(results) + 1)] if results[1:] else ["result"]


def causes(exercise, name, got, expected):
    """Return what, or which two things, give a function's numbers in all its cases; () if none."""
    own = [x for x in zip(exercise.cases(), got, expected) if x[1]["name"] == name]
    label, call, *arguments = own[-1][0]
    results = [
        n
        for _, a, b in own
        for n, x in enumerate(b["values"])
        if not same(a["values"][n : n + 1], [x])
    ]
    wrong = sorted({*results})[:3]
    mistakes = [(x, with_mistakes(exercise, *x), None, None) for x in pairs_of(exercise.MISTAKES)]
    inputs = named(exercise, call, *arguments)
    probes = [((x,), *change) for x, *change in changes(exercise, label, inputs, wrong)]
    probes = probes if wrong else []  # else it is the gradient
    large = any(not same(a["values"], b["values"], 1e-3) for _, a, b in own)
    error = 1e-5 if large else 1e-12  # beside it, an epsilon of theirs does not count
    singles = [x for x in mistakes if not x[0][1:]]
    both = [
        (said + more, text, *change)
        for (said, text, *_), (more, _, *change) in itertools.product(singles, probes)
        if change[0] is not None
    ]
    for few in singles + probes, mistakes + both:
        for case, a, _ in own:
            few = [
                some for some in few if gives(exercise, case, a, error if wrong else 0, *some[1:])
            ]
        if few:
            return few[0][0]
    return ()


def pairs_of(names):
    return [*zip(names), *itertools.combinations(names, 2)]


def gives(exercise, case, got, error, text, target, expression):
    """Whether a case of a text, and with something changed, gives what the learner got."""
    label, call, *arguments = case
    try:
        if not error:
            return same_outcome(got, outcome(module(text), exercise, *case))
        inputs = named(exercise, call, *arguments)
        if isinstance(target, str):
            with contextlib.suppress(NameError):  # a size that this label has not
                changed(label, inputs, target, expression)
        values = tensors(called(call, module(text), map(leaf, inputs.values())))
        if isinstance(target, int):
            values[target] = evaluated(label, inputs | {"x": values[target]}, expression)
        values = tensors(values)
    except Exception:  # it does not run
        return False
    zeros = [x.masked_fill(x.isnan(), 0) for x in values]  # what sees nothing is NaN or 0
    replaced = any(x.any() for x in zeros) and same(got["values"], zeros, error)
    return replaced or same(got["values"], values, error)


def properties(name, pairs):
    """Yield what one function's wrong numbers have in common, and those of its last case."""
    own = [pair for pair in pairs if pair[1]["name"] == name]
    if right := [b["label"] for a, b in own if same_outcome(a, b)]:
        yield "It is right for: " + "; ".join(right)
    if all(same(a["values"], b["values"]) for a, b in own):
        yield "The values are right: a part is cut off from the gradient (detach, item, no_grad),"
        yield "or has none, as where NaN is replaced after it has come."
    for got, expected in own:
        if "weights" in expected["label"] and got["values"][0].shape == expected["values"][0].shape:
            yield from read_weights(got["values"][0], expected["values"][0])
    got, expected = [pair for pair in own if not same_outcome(*pair)][-1]
    told = {}  # of the first result that has it
    for result, a, b in zip(numbered(got["values"]), got["values"], expected["values"]):
        if a.shape == b.shape and a.dtype == b.dtype:
            told = dict.fromkeys(traits(a, b), result) | told
    yield from (f"In {expected['label']}, {result}: {text}." for text, result in told.items())
    yield from next((a["broken"] for a, _ in reversed(own) if a.get("broken")), ())
