"""What gives exactly a learner's numbers: a known mistake, two of them, or an edit."""

import ast
import difflib
import itertools
import math
import types

import torch

from exercises.shared.cases import outcome, sizes_in
from exercises.shared.comparison import same, same_outcome
from exercises.shared.definition import functions, module, solution, with_mistakes
from exercises.shared.edits import edits


def causes(exercise, own):
    """Return what gives a function's numbers, as lines; none if nothing does.

    own: of each of its cases the case, what the learner got, and what is right.
    """
    own = sorted(own, key=lambda case: same_outcome(*case[1:]))  # what is wrong tells most
    for count in 1, 2:
        for sentences in itertools.combinations(exercise.MISTAKES, count):
            if gives(exercise, with_mistakes(exercise, *sentences), own):
                return [" and\n  ".join(sentences)]
    tree = functions(exercise)
    name = own[0][2]["name"]
    for node in [tree[name]] if name in tree else tree.values():
        source = f"{ast.unparse(node)}\n"
        for new in dict.fromkeys(edits(source, sizes_in(own[0][0][0]))):
            if gives(exercise, new, own):
                both = difflib.ndiff(source.splitlines(), new.splitlines())
                return [line for line in both if line[0] in "+-"]
    return []


def gives(exercise, text, own):
    """Whether a text of functions, in place of the solution's, gives what the learner got."""
    scope = vars(module(solution(exercise)[0])) | {"math": math}
    right = all(same(a["values"], b["values"]) for _, a, b in own)  # the gradient alone is wrong
    large = any(not same(a["values"], b["values"], 1e-3) for _, a, b in own)
    error = 1e-5 if large else 1e-12  # beside it, an epsilon of theirs does not count
    try:
        exec(text, scope)
        with torch.set_grad_enabled(right):
            for case, got, _ in own:
                scope |= sizes_in(case[0])
                found = outcome(types.SimpleNamespace(**scope), exercise, *case)
                if not alike(got if right else got | {"gradients": []}, found, error):
                    return False
    except Exception:  # it does not run
        return False
    return True


def alike(a, b, error):
    zeros = [x.masked_fill(x.isnan(), 0) for x in b["values"]]  # what sees nothing is NaN or 0
    return (
        same_outcome(a, b, error)
        or any(x.any() for x in zeros)
        and same_outcome(a, b | {"values": zeros}, error)
    )
