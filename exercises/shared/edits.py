"""What learners write: the solution with one edit, or two.

A wrong answer is seldom new. It is the solution with a part left out, a word or a name in the place
of another, two parts exchanged, a step done elsewhere, or with one thing done to an argument, to a
result or to what is in between. All of these are tried in this order: if one gives the learner's
numbers in all cases, it is what the learner wrote, or does the same.
"""

import ast
import contextlib
import itertools
import re

from exercises.shared.words import INSIDE, SCALES, WHOLE, WORDS


def edits(source, sizes):
    """Yield what a function's source becomes by an edit; sizes are names, such as D."""
    yield from likely(source)
    nodes = parsed(source)
    scales = [scale.format(size) for size in sizes for scale in SCALES]
    for edit in itertools.chain(
        others(nodes, [*names(source), *sizes, "0", "1", "True"]),
        at_the_ends(nodes, [*INSIDE, *WHOLE, *scales]),
        inside(nodes, INSIDE),
        inside(nodes, [step for *_, step in steps(nodes)]),
    ):
        yield put(source, *edit)
    yield from elsewhere(source)
    for at, new in missing(nodes):  # and a part behind it
        one = put(source, at, new)
        two = (edit for edit in missing(parsed(one)) if edit[0].start >= at.start)
        yield from (put(one, *edit) for edit in two)


def mends(source):
    """Yield what a learner's source becomes by an edit that needs no more than what it has."""
    yield from likely(source)
    yield from elsewhere(source)


def likely(source):
    """Yield what a source becomes by the edits that are tried first."""
    nodes = parsed(source)
    for edit in itertools.chain(
        missing(nodes),
        words(source),
        regrouped(nodes, source),
        exchanged(nodes, source),
        renamed(nodes, names(source)),
    ):
        yield put(source, *edit)


def parsed(source):
    """Return the nodes of a source's syntax tree; at, a slice, and text are where each stands."""
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    nodes = []
    with contextlib.suppress(SyntaxError):
        nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
    for node in nodes:
        first = starts[node.lineno - 1] + node.col_offset
        node.at = slice(first, starts[node.end_lineno - 1] + node.end_col_offset)
        node.text = source[node.at]
    return nodes


def names(source):
    return sorted({*re.findall(r"\b([A-Za-z]\w*)(?=[,)]| =| in )", source)})


def put(source, at, new):
    return source[: at.start] + new + source[at.stop :]


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
    for old, *new in map(str.split, WORDS):
        old = rf"\b{old}\b" if old.isidentifier() else rf"(?<=[ (=[-]){re.escape(old)}(?=[] ),])"
        for word in new:
            yield slice(0, len(source)), re.sub(old, word, source)
            yield from ((slice(*place.span()), word) for place in re.finditer(old, source))


def regrouped(nodes, source):
    """What comes second is done first: a * (b + c) is a * b + c."""
    for node in nodes:
        if isinstance(getattr(node, "left", None), ast.BinOp):
            at = slice(node.left.right.at.start, node.at.stop)
            yield at, f"({source[at]})"


def exchanged(nodes, source):
    """Two operands or arguments stand for each other, or two statements."""
    for node in nodes:
        for kind, form in (ast.expr, "({}){}({})"), (ast.stmt, "{}{}{}"):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, kind)]
            for a, b in itertools.combinations(parts, 2):
                between = source[a.at.stop : b.at.start]
                yield slice(a.at.start, b.at.stop), form.format(b.text, between, a.text)


def renamed(nodes, names):
    """Two names stand for each other, in all of a function."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            body = slice(node.body[0].at.start, node.at.stop)
            text = node.text[body.start - node.at.start :]
            for pair in itertools.combinations(names, 2):
                other = dict(zip(pair, reversed(pair)))
                yield body, re.sub(r"\w+", lambda name: other.get(name[0], name[0]), text)


def others(nodes, names):
    """A name stands for another value, but not where one is assigned."""
    for node in nodes:
        if isinstance(getattr(node, "ctx", node), ast.Load | ast.expr):
            yield from ((node.at, name) for name in names)


def at_the_ends(nodes, actions):
    """Something is done to an argument, to two of them, or to a result."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            start = node.body[0].at.start
            space = "\n" + " " * node.body[0].col_offset
            once = [[x.arg] for x in node.args.args]
            for group in once + [[a, b] for [a], [b] in itertools.combinations(once, 2)]:
                for action in actions:
                    lines = (f"{x} = {of(x, action)}{space}" for x in group)
                    yield slice(start, start), "".join(lines)
        elif isinstance(node, ast.Return):
            results = [node.value, *getattr(node.value, "elts", [])]
            for x, action in itertools.product(results, actions):
                yield x.at, of(x.text, action)


def steps(nodes):
    """Yield what is done to a value: where, the value, and the step, with _ for the value."""
    for node in nodes:
        inner = []
        if isinstance(node, ast.Call):
            inner = [getattr(node.func, "value", None), *node.args[:1]]
        elif isinstance(node, ast.BinOp):
            inner = [node.left, node.right]
        for x in inner:
            if isinstance(x, ast.expr) and not isinstance(x, ast.Constant):
                at = slice(x.at.start - node.at.start, x.at.stop - node.at.start)
                yield node.at, f"({x.text})", put(node.text, at, "_")


def elsewhere(source):
    """A step is done elsewhere."""
    for at, inner, step in steps(parsed(source)):
        without = put(source, at, inner)
        yield from (put(without, *edit) for edit in inside(parsed(without), [step]))


def inside(nodes, actions):
    """Something is done to any value, or to what a call is given, and instead of the call."""
    for node in nodes:
        parts = [node] * (isinstance(node, ast.expr) and not isinstance(node, ast.Constant))
        if isinstance(node, ast.Call):
            parts += [getattr(node.func, "value", node), *node.args[:1]]
        for x, action in itertools.product(parts, actions):
            yield node.at, of(x.text, action)


def of(x, action):
    """Return what is done to x, the text of a value."""
    return re.sub(r"\b_\b", lambda _: f"({x})", f"({action})")
