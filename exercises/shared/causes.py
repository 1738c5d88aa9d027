"""What explains a learner's numbers: a known mistake, two of them, or an edit of the solution gives
exactly them; or the learner's file is right with an edit, or with two.
"""

import ast
import difflib
import itertools
import math
import time
import types
import warnings

import torch

from exercises.shared.cases import limit, outcome, sizes_in
from exercises.shared.comparison import equal, same, same_outcome
from exercises.shared.definition import MISTAKES, functions, solution, with_mistakes
from exercises.shared.edits import edits, in_turns

SECONDS = 2.5  # of a processor, for the search: the likely edits come first
GETS = "These are the numbers that one gets if"
MENDS = "It is right with this edit of your file:"


def causes(exercise, own, theirs, source):
    """Return what explains a function's numbers, as lines; none if nothing does, or it takes long.

    own: of each of its cases the case, what the learner got, and what is right.
    """
    own = sorted(own, key=lambda triple: same_outcome(*triple[1:]))  # what is wrong tells most
    (label, *_), got, right = own[0]
    values = got["values"], right["values"]
    slopes = same(*values)  # the gradient alone is wrong
    error = 1e-12 if same(*values, 1e-3) else 1e-5  # beside it, an epsilon does not count
    goals = {
        GETS: (vars(exercise), [triple[:2] for triple in own], slopes, error),
        MENDS: (theirs, [triple[::2] for triple in own], True, 1e-12),
    }
    name = exercise.__name__.split(".")[1]
    right_ones = {other for other in functions(name) if other not in right["name"]}
    learners, solved = (part(text, right_ones) for text in (source, solution(name)[0]))
    searches = [edited(MENDS, learners, solved)]
    if any(x.isfinite().any() for x in got["values"]):  # else many edits would fit
        searches.append(edited(GETS, solved, "", sizes_in(label)))
    warnings.simplefilter("ignore")  # of edits that make no sense
    end = time.process_time() + SECONDS
    best = math.inf if slopes else sum(map(equal, *values))
    for goal, text, lines in itertools.chain(known(name), in_turns(searches)):
        count = agreement(exercise, text, *goals[goal])
        if count == math.inf:
            lines = lines or changed_lines(learners if goal == MENDS else solved, text)
            return [goal, *(f"  {line}" for line in lines)]
        if goal == MENDS and count > best:  # one of two mistakes is mended
            best = count
            searches.append(edited(MENDS, text, solved))
        if time.process_time() > end:
            break
    return []


def part(source, right):
    """Return the text of a source without what is right, and without what defines nothing."""
    nodes = (node for node in ast.parse(source).body if hasattr(node, "name"))
    return "\n".join(ast.unparse(node) for node in nodes if node.name not in right)


def known(name):
    """Yield the goal, the solution with one or two known mistakes, and their names."""
    for count in 1, 2:
        for sentences in itertools.combinations(MISTAKES.get(name, ()), count):
            yield GETS, with_mistakes(name, *sentences), sentences


def edited(goal, source, *beside):
    """Yield the goal, and each text that a source becomes by an edit."""
    seen = {source}
    for text in edits(source, *beside):
        if text not in seen:
            seen.add(text)
            yield goal, text, ()


def changed_lines(source, new):
    """Return a source's lines that are others in a new one (−), and these (+)."""
    both = difflib.ndiff(*(ast.unparse(ast.parse(text)).splitlines() for text in (source, new)))
    return [line for line in both if line[0] in "+-" and line[1:].strip()]


def agreement(exercise, text, scope, wanted, slopes, error):
    """Count the results that are as wanted, up to the first case with another; inf if all are.

    text: it takes the place of a scope's functions. wanted: cases, and what they are to give.
    """
    scope = dict(scope)
    count = 0
    with torch.enable_grad(), limit(0.1):  # it may not run, or never end
        exec(text, scope)
        for graph in [False, True][: 1 + slopes]:  # most differ in values already
            for case, right in wanted:
                scope |= sizes_in(case[0])
                with torch.set_grad_enabled(graph):
                    found = outcome(types.SimpleNamespace(**scope), exercise, *case)
                for what in ["values", "gradients"][: 1 + graph]:
                    pairs = zip(found[what], right[what], strict=True)
                    matches = [equal(*pair, error) for pair in pairs]
                    count += sum(matches)
                    if not all(matches):
                        return count
        count = math.inf
    return count
