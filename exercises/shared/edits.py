"""What learners write: the solution with one edit.

A wrong answer is seldom new. It is the solution with a part left out, a word or a name for another,
two exchanged, a step done elsewhere, or something done to a value. If one of these gives the
learner's numbers in all cases, it is what the learner wrote, or does the same.
"""

import ast
import itertools
import re

from exercises.shared.source import of, parsed, put, steps
from exercises.shared.words import ACTIONS, WORDS


def edits(source, other="", sizes=()):
    """Yield what a source becomes by one edit, the likely ones first.

    other: a source with steps that it may lack. sizes: names that it may use, such as D.
    """
    nodes = parsed(source)
    names = {*re.findall(r"\b([^\W\d]\w*)(?=[,)]| =| in )", source), "0", "1", "True"}
    again = dict.fromkeys(step for *_, step in steps(nodes + parsed(other)))
    likely = (
        missing(nodes),
        words(source),
        exchanged(nodes, source),
        inside(nodes, ACTIONS[:4]),
        others(nodes, [*sorted(names), *sizes]),
    )
    further = [inside(nodes, again), elsewhere(source)]
    if not other:
        further.append(inside(nodes, ACTIONS[4:]))
    for edit in itertools.chain(*likely, in_turns(further)):
        yield put(source, *edit)


def in_turns(searches):
    """Yield what is next of each search until all have ended; the list may grow meanwhile."""
    while searches:
        for search in [*searches]:
            if found := next(search, None):
                yield found
            else:
                searches.remove(search)


def missing(nodes):
    """A statement is missing, or a part stands for the whole."""
    for node in nodes:
        if isinstance(node, ast.stmt):
            yield node.at, "pass"
        elif isinstance(node, ast.expr):
            parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
            yield from ((node.at, f"({part.text})") for part in parts[1:7])


def words(source):
    """A word stands for another, everywhere or once."""
    pairs = (itertools.permutations(group.split(), 2) for group in WORDS)
    for old, new in itertools.chain.from_iterable(pairs):
        old = rf"(?<!\w){re.escape(old)}(?!\w)"
        yield slice(0, len(source)), re.sub(old, new, source)
        yield from ((slice(*place.span()), new) for place in re.finditer(old, source))


def exchanged(nodes, source):
    """Two operands, arguments or names of a line stand for each other."""
    for node in nodes:
        parts = [x for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr)]
        if isinstance(node, ast.Assign | ast.Return):
            parts += [x for x in nodes if isinstance(x, ast.Name) and x.lineno == node.lineno]
        for a, b in itertools.combinations(sorted(parts, key=lambda x: x.at.start), 2):
            between = source[a.at.stop : b.at.start]
            yield slice(a.at.start, b.at.stop), f"({b.text}){between}({a.text})"


def others(nodes, names):
    """A name stands for another value, but not where one is assigned."""
    for node in nodes:
        if node.is_value:
            yield from ((node.at, name) for name in names)


def inside(nodes, actions):
    """Something is done to any value, or to what a call is given, and instead of the call."""
    for action, node in itertools.product(actions, nodes):
        if node.is_value and not isinstance(node, ast.Constant):
            yield from ((node.at, of(x.text, action)) for x in [node, *node.inner])


def elsewhere(source):
    """A step is done elsewhere."""
    for at, inner, step in steps(parsed(source)):
        without = put(source, at, inner)
        for edit in inside(parsed(without), [step]):
            yield slice(0, len(source)), put(without, *edit)
