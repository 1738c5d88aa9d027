"""What learners write: the solution with one edit.

A wrong answer is seldom new. It is the solution with a part left out, a word or a name in the place
of another, two parts exchanged, or with one thing done to an argument, to a result or to what is in
between. All of these are tried in this order: if one gives the learner's numbers in all cases, it
is what the learner wrote, or does the same.
"""

import ast
import itertools
import re

from exercises.shared.words import INSIDE, SCALES, WHOLE, WORDS


def edits(source, sizes):
    """Yield what a function's source becomes by one edit; sizes are names, such as D."""
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
    names = sorted({*re.findall(r"\b([A-Za-z]\w*)(?=[,)]| =| in )", source)})
    for node in nodes:
        first = starts[node.lineno - 1] + node.col_offset
        node.at = slice(first, starts[node.end_lineno - 1] + node.end_col_offset)
        node.text = source[node.at]
    scales = [scale.format(size) for size in sizes for scale in SCALES]
    for at, new in itertools.chain(
        missing(nodes),
        words(source),
        regrouped(nodes, source),
        exchanged(nodes, source),
        others(nodes, [*names, *sizes]),
        at_the_ends(nodes, [*INSIDE, *WHOLE, *scales]),
        inside(nodes, INSIDE),
    ):
        yield source[: at.start] + new + source[at.stop :]


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
    """Two operands or arguments stand for each other."""
    for node in nodes:
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        for a, b in itertools.combinations(parts, 2):
            between = source[a.at.stop : b.at.start]
            yield slice(a.at.start, b.at.stop), f"({b.text}){between}({a.text})"


def others(nodes, names):
    """A name stands for another value, but not where one is assigned."""
    for node in nodes:
        if isinstance(getattr(node, "ctx", node), ast.Load | ast.expr):
            yield from ((node.at, name) for name in names)


def at_the_ends(nodes, actions):
    """Something is done to an argument or a result."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            start = node.body[0].at.start
            space = "\n" + " " * node.body[0].col_offset
            for x, action in itertools.product(node.args.args, actions):
                yield slice(start, start), f"{x.arg} = {of(x.arg, action)}{space}"
        elif isinstance(node, ast.Return):
            results = [node.value, *getattr(node.value, "elts", [])]
            for x, action in itertools.product(results, actions):
                yield x.at, of(x.text, action)


def inside(nodes, actions):
    """Something is done to any value, or to what a call is given, and instead of the call."""
    for node in nodes:
        parts = [node] if isinstance(node, ast.expr) else []
        if isinstance(node, ast.Call):
            parts += [getattr(node.func, "value", node), *node.args[:1]]
        for x, action in itertools.product(parts, actions):
            yield node.at, of(x.text, action)


def of(x, action):
    """Return what is done to x, the text of a value."""
    return re.sub(r"\bx\b", lambda _: f"({x})", f"({action})")
