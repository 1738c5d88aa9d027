"""Edits of a source. A wrong answer is seldom new: most are the solution with one of these."""

import ast
import itertools
import re

from exercises.shared.words import ACTIONS, WORDS


def edits(source, other="", sizes=()):
    """Return what a source becomes by one edit, an iterator with the likely ones first.

    other: a source with steps that it may lack. sizes: names that it may use, such as D.
    """
    names = {*re.findall(r"\b([^\W\d]\w*)(?=[,)]| =| in )", source), "1", *sizes}
    again = dict.fromkeys(step for text in (source, other) for *_, step in steps(text))
    likely = missing(source), words(source), exchanged(source), inside(source, ACTIONS[:4])
    rest = inside(source, again), elsewhere(source), inside(source, () if other else ACTIONS[4:])
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*rest))
    return filter(None, itertools.chain(*likely, others(source, sorted(names)), in_turns))


def parts(source):
    """Return the statements and expressions of a source; each has at, a slice, and its text."""
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]

    def place(line, column):  # which counts bytes of UTF-8
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    nodes = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.stmt | ast.expr)]
    for x in nodes:
        x.at = slice(place(x.lineno, x.col_offset), place(x.end_lineno, x.end_col_offset))
        x.text = f"({source[x.at]})"
    return nodes


def values(source):
    """Return the expressions that are no functions, modules or what is assigned to."""
    nodes = (x for x in parts(source) if isinstance(getattr(x, "ctx", x), ast.expr | ast.Load))
    modules = "(torch)", "(math)", "(F)"
    return [x for x in nodes if source[x.at.stop :][:1] != "(" and x.text not in modules]


def put(source, x, text):
    return source[: x.at.start] + text + source[x.at.stop :]


def operands(node):
    """Return the nodes that a node does something to."""
    does = getattr(node, "func", node)
    found = [vars(does).get(name) for name in ("left", "right", "operand", "value")]
    if isinstance(node, ast.Call):
        found += node.args[:1]
    return [x for x in found if isinstance(x, ast.expr)]


def steps(source):
    """Yield what is done to a value: where, to what, and the step, with _ for the value."""
    for node in values(source):
        for x in operands(node):
            step = source[node.at.start : x.at.start] + "_" + source[x.at.stop : node.at.stop]
            yield node, x, step


def missing(source):
    """A statement is missing, or a part stands for the whole."""
    for node in parts(source):
        inner = [x.text for x in ast.walk(node) if isinstance(x, ast.expr)][1:7]
        for text in ["pass"] if isinstance(node, ast.stmt) else inner:
            yield put(source, node, text)


def words(source):
    """A word stands for another, everywhere or once."""
    pairs = (itertools.permutations(group.split(), 2) for group in WORDS)
    for old, new in itertools.chain.from_iterable(pairs):
        old = rf"(?<!\w){re.escape(old)}(?!\w)"
        yield re.sub(old, new, source)
        for found in re.finditer(old, source):
            yield source[: found.start()] + new + source[found.end() :]


def exchanged(source):
    """Two values of a line stand for each other."""
    nodes = sorted(values(source), key=lambda x: x.at.start)
    for a, b in itertools.combinations(nodes, 2):
        if a.lineno == b.lineno:
            yield put(put(source, b, a.text), a, b.text)


def others(source, names):
    """A name stands for another value, for another name first."""
    for x in sorted(values(source), key=lambda x: not isinstance(x, ast.Name)):
        yield from (put(source, x, name) for name in names)


def inside(source, actions):
    """Something is done to any value, or to what a step is done to, and instead of the step."""
    for action, node in itertools.product(actions, values(source)):
        if not isinstance(node, ast.Constant):
            for x in [node, *operands(node)]:
                new = re.sub(r"\b_\b", lambda _: x.text, action)
                yield put(source, node, f"({new})")


def elsewhere(source):
    """A step is done elsewhere."""
    for node, x, step in steps(source):
        yield from inside(put(source, node, x.text), [step])
