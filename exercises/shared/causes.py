"""What gives exactly a learner's numbers: a known mistake, a probe, or two of these."""

import contextlib
import itertools

from exercises.shared.cases import called, leaf, named, outcome, tensors
from exercises.shared.comparison import same, same_outcome
from exercises.shared.definition import module, with_mistakes
from exercises.shared.probes import changed, changes, evaluated


def causes(exercise, name, got, expected):
    """Return what, or which two things, give a function's numbers in all its cases; () if none."""
    own = [x for x in zip(exercise.cases(), got, expected) if x[1]["name"] == name]
    label, call, *arguments = own[-1][0]
    results = [
        n for _, *x in own for n, (a, b) in enumerate(zip(*map(values_of, x))) if not same([a], [b])
    ]
    wrong = sorted({*results})[:3]  # the first results of those that differ

    def mistaken(*sentences):
        return sentences, with_mistakes(exercise, *sentences), None, None

    one = [mistaken(sentence) for sentence in exercise.MISTAKES]
    two = [mistaken(*pair) for pair in itertools.combinations(exercise.MISTAKES, 2)]
    error = None  # the gradient alone is wrong
    if wrong:
        probes = [*changes(exercise, label, named(exercise, call, *arguments), wrong)]
        pairs = itertools.product(one, [probe for probe in probes if probe[2] is not None])
        two += [((*said, x), text, *change) for (said, text, *_), (x, _, *change) in pairs]
        one += [((sentence,), *change) for sentence, *change in probes]
        large = any(not same(a["values"], b["values"], 1e-3) for _, a, b in own)
        error = 1e-5 if large else 1e-12  # beside it, an epsilon of theirs does not count
    for few in one, two:
        for case, a, _ in own:
            few = [some for some in few if gives(exercise, case, a, error, *some[1:])]
        if few:
            return few[0][0]
    return ()


def values_of(outcome):
    return outcome["values"]


def gives(exercise, case, got, error, text, target, expression):
    """Whether a case of a text, and with something changed, gives what the learner got."""
    label, call, *arguments = case
    try:
        if error is None:
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
