"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import itertools

from exercises.shared.cases import is_float, limit, named, sizes_in
from exercises.shared.causes import causes
from exercises.shared.comparison import beside, same, same_outcome
from exercises.shared.properties import dependence, simple, traits


def first_wrong(triples):
    """Return the first case that is wrong, what was got there and what is right; None if none is.

    triples: such three, for all cases.
    """
    return next((triple for triple in triples if not same_outcome(*triple[1:])), None)


def differences(exercise, case, a, b):
    """Return how a case's outcomes a and b differ, as lines."""
    inputs = named(exercise, *case[1:])
    what, names = "values", [f"result {n}" for n in range(1, len(b["values"]) + 1)]
    if same(a["values"], b["values"]):
        floats = [name for name, x in inputs.items() if is_float(x)]
        what, names = "gradients", [f"the values are right, the gradient of {x}" for x in floats]
    return [f"{b['name']}, {b['label']}:", "", *beside(inputs, names, a[what], b[what]), ""]


def reasons(theirs, exercise, triples, source=""):
    """Yield what is known of the first wrong function, as lines: each time all that is known."""
    first = first_wrong(triples)
    own = [triple for triple in triples if triple[2]["name"] == first[2]["name"]]
    lines = differences(exercise, *first)
    yield lines  # what follows may not come back
    yield [*lines, *symptoms(theirs, exercise, own)]
    if found := causes(exercise, own, vars(theirs), source):
        yield lines + found


def symptoms(theirs, exercise, own):
    """Yield what is seen of one function's wrong numbers, in the last case that shows something."""
    wrong = [triple for triple in own if not same_outcome(*triple[1:])]
    if right := [b["label"] for _, a, b in own if same_outcome(a, b)]:
        yield f"It is right in {len(right)} of {len(own)} cases: " + "; ".join(right[:4])
    if all(same(a["values"], b["values"]) for _, a, b in own):
        yield "The values are right: a part is cut off from the gradient (detach, item, no_grad),"
        yield "or has none, as where NaN is replaced after it has come."
        return
    for case, got, expected in reversed(wrong):
        seen = []
        for n, (a, b) in enumerate(zip(got["values"], expected["values"]), 1):
            if a.shape == b.shape and not same([a], [b]):
                seen += [f"result {n}: {text}" for text in traits(a, b, sizes_in(case[0]))]
        if found := ", ".join(simple(theirs, exercise, *case)):
            seen.append(f"it is right if everywhere one of these holds: {found}")
        with limit(0.3):  # theirs may not take other inputs
            seen += itertools.islice(dependence(theirs, exercise, *case), 6)
        if seen:
            yield from [f"In {case[0]}:", *(f"  {text}" for text in seen)]
            return
