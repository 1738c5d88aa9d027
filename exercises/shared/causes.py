"""What gives exactly a learner's numbers: a known mistake, two of them, or an edit."""

import ast
import contextlib
import difflib
import functools
import itertools
import time
import types
import warnings

import torch

from exercises.shared.cases import outcome, sizes_in
from exercises.shared.comparison import same, same_outcome
from exercises.shared.definition import MISTAKES, functions, with_mistakes
from exercises.shared.edits import edits

SECONDS = 2  # of a processor, for the search: the likely edits come first


def causes(exercise, own):
    """Return what gives a function's numbers, as lines; None if nothing does, or it takes long.

    own: of each of its cases the case, what the learner got, and what is right.
    """
    own = sorted(own, key=lambda triple: same_outcome(*triple[1:]))  # what is wrong tells most
    right = all(same(a["values"], b["values"]) for _, a, b in own)  # the gradient alone is wrong
    small = all(same(a["values"], b["values"], 1e-3) for _, a, b in own)
    error = 1e-12 if small else 1e-5  # beside it, an epsilon of theirs does not count
    name = exercise.__name__.split(".")[1]
    (label, *_), got, expected = own[0]
    end = time.process_time() + SECONDS
    warnings.simplefilter("ignore")  # of edits that make no sense
    attempts = known(name), edited(name, expected["name"], sizes_in(label))
    some = any(x.isfinite().any() for x in got["values"])  # else many edits would fit
    for text, lines in itertools.chain(*attempts[: 1 + some]):
        if gives(exercise, text, own, right, error):
            return lines()
        if time.process_time() > end:
            return None


def known(name):
    """Yield the solution with one or two known mistakes, and what returns their names."""
    for count in 1, 2:
        for sentences in itertools.combinations(MISTAKES.get(name, ()), count):
            yield with_mistakes(name, *sentences), functools.partial(list, sentences)


def edited(name, wrong, sizes):
    """Yield functions of the solution with an edit, and what returns its lines."""
    for function, node in functions(name).items():
        if function in wrong:  # or it is one of several that a case calls together
            source = ast.unparse(node) + "\n"
            for new in dict.fromkeys(edits(source, sizes)):
                yield new, functools.partial(changed_lines, source, new)


def changed_lines(source, new):
    """Return a source's lines that are others in a new one (−), and these (+)."""
    new = ast.unparse(ast.parse(new))
    both = difflib.ndiff(source.splitlines(), new.splitlines())
    return [line for line in both if line[0] in "+-" and line.split() != ["+", "pass"]]


def gives(exercise, text, own, gradients, error):
    """Whether a text, in place of the solution's functions of these names, gives what is got."""
    scope = dict(vars(exercise))
    with contextlib.suppress(Exception), torch.set_grad_enabled(gradients):  # it may not run
        exec(text, scope)
        for case, got, _ in own:
            scope |= sizes_in(case[0])
            found = outcome(types.SimpleNamespace(**scope), exercise, *case)
            zeros = [x.masked_fill(x.isnan(), 0) for x in found["values"]]  # it sees nothing
            some = [found["values"]] + [zeros] * any(x.any() for x in zeros)
            if not any(same(got["values"], values, error) for values in some):
                return False
            if gradients and not same(got["gradients"], found["gradients"], error):
                return False
        return True
