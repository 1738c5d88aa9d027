"""What gives exactly a learner's numbers: a known mistake, two of them, or an edit of the solution;
or which edit of the learner's file gives the right ones.
"""

import ast
import contextlib
import difflib
import functools
import itertools
import time
import types
import warnings

import torch

from exercises.shared.cases import limit, outcome, sizes_in
from exercises.shared.comparison import same, same_outcome
from exercises.shared.definition import MISTAKES, functions, with_mistakes
from exercises.shared.edits import elsewhere, further, likely

SECONDS = 2.5  # of a processor, for the search: the likely edits come first
GETS = "These are the numbers that one gets if"
MENDS = "Your file is right if"


def causes(exercise, own, theirs, source):
    """Return what explains a function's numbers, as lines; none if nothing does, or it takes long.

    own: of each of its cases the case, what the learner got, and what is right.
    """
    own = sorted(own, key=lambda triple: same_outcome(*triple[1:]))  # what is wrong tells most
    swapped = [(case, right, got) for case, got, right in own]
    values = [part["values"] for part in own[0][1:]]
    slopes = same(*values)  # the gradient alone is wrong
    error = 1e-12 if same(*values, 1e-3) else 1e-5  # beside it, an epsilon does not count
    goals = {GETS: (vars(exercise), own, slopes, error), MENDS: (theirs, swapped, True, 1e-12)}
    warnings.simplefilter("ignore")  # of edits that make no sense
    end = time.process_time() + SECONDS
    for goal, text, why in attempts(exercise, own, source):
        found = False
        with contextlib.suppress(TimeoutError):  # the timer may ring late
            found = gives(exercise, text, *goals[goal])
        torch.set_grad_enabled(True)
        if found:
            lines = changed_lines(why, text) if isinstance(why, str) else why
            return [goal, *(f"  {line}" for line in lines)]
        if time.process_time() > end:
            break
    return []


def attempts(exercise, own, source):
    """Yield what may explain it: the goal, a text, and the mistakes or the text that it was."""
    name = exercise.__name__.split(".")[1]
    (label, *_), got, expected = own[0]
    for count in 1, 2:
        for sentences in itertools.combinations(MISTAKES.get(name, ()), count):
            yield GETS, with_mistakes(name, *sentences), sentences
    solution = functions(name)
    wrong = [part for part in solution if part in expected["name"]]  # a case may call several
    theirs = {x.name: x for x in ast.parse(source).body if hasattr(x, "name")}
    helpers = theirs.keys() - solution.keys()
    parts = [part for part in [*wrong, *helpers] if part in theirs]
    searches = [edited(MENDS, [likely, elsewhere], theirs, parts)]
    if any(x.isfinite().any() for x in got["values"]):  # else many edits would fit
        every = [likely, functools.partial(further, sizes=sizes_in(label))]
        searches.append(edited(GETS, every, solution, wrong))
    for pair in itertools.zip_longest(*searches):
        yield from filter(None, pair)


def edited(goal, kinds, nodes, names):
    seen = set()
    for edits, name in itertools.product(kinds, names):
        source = ast.unparse(nodes[name]) + "\n"
        for new in edits(source):
            if new not in seen:
                seen.add(new)
                yield goal, new, source


def changed_lines(source, new):
    """Return a source's lines that are others in a new one (−), and these (+)."""
    new = ast.unparse(ast.parse(new))
    both = difflib.ndiff(source.splitlines(), new.splitlines())
    return [line for line in both if line[0] in "+-"]


def gives(exercise, text, scope, own, slopes, error):
    """Whether a text, in place of a scope's functions of these names, gives what is got."""
    scope = dict(scope)
    with limit(0.03):  # it may not run, or never end
        exec(text, scope)
        for graph in [False, True][: 1 + slopes]:  # most differ in values already
            torch.set_grad_enabled(graph)
            if not all(agrees(exercise, scope, case, got, error) for case, got, _ in own):
                return False
        return True


def agrees(exercise, scope, case, got, error):
    """Whether a scope's functions give in a case what is got, and the gradients if there are."""
    found = outcome(types.SimpleNamespace(**scope | sizes_in(case[0])), exercise, *case)
    slopes = not torch.is_grad_enabled() or same(got["gradients"], found["gradients"], error)
    return slopes and same(got["values"], found["values"], error)
