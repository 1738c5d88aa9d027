"""What learners write: the solution with one edit.

A wrong answer is seldom new. It is the solution with a part left out, a word or a name in the place
of another, two parts exchanged, or with one thing done to an argument, to a result or to what is in
between. All of these are tried in this order: if one gives the learner's numbers in all cases, it
is what the learner wrote, or does the same.
"""

import ast
import itertools
import re

WORDS = """
True False; - +; + -; * / +; / *; & |; and or; < <= > >=; <= < >= >; > >= < <=; == <= != >=;
-1 -2 0 (0,1) (0,1,2,3); 0 1 -1; 1 0 2; 2 1 4 3; 0.5 1 0.25 -0.5; 10000 1000 100; sin cos;
cos sin; mean sum amax; sum mean amax; amax mean sum; maximum minimum; log log2 log10;
gelu relu silu tanh sigmoid; elu relu softplus sigmoid silu; tanh sigmoid relu sin;
softmax sigmoid log_softmax; exp exp2 sigmoid
"""  # a word, and what is taken for it
INSIDE = """
x.exp(); -x; x + 1; x - 1; x * x; x ** 0.5; x.mT; x[:1]; x.abs(); x.tril(); x.softmax(-1);
x.relu(); x.softmax(0); x.softmax(1); x.softmax(-2); x.flatten(-2).softmax(-1).view_as(x);
x.roll(1, -1);
x.mT.reshape(x.shape); x.swapaxes(1, 2).reshape(x.shape); x.mean(-1, keepdim=True);
x - x.mean(-1, keepdim=True); x / x.sum(-1, keepdim=True); x / x.norm(dim=-1, keepdim=True);
F.gelu(x, approximate='tanh'); x * (1.702 * x).sigmoid(); turn(x); f(x)
"""  # what may be done to any x
WHOLE = """
x[::-1]; x[1], x[0], *x[2:]; ~x; 0 * x; 0 * x + 1; 1 / x; x | True; (x | True).tril();
x.log(); 2 ** x.log(); x * math.log(2); x / math.log(2); x.flip(-1); x.flip(-2); x.roll(-1, -1);
x.roll(1, -2); x.roll(-1, -2); x.swapaxes(0, 1); x.reshape(x.mT.shape).mT;
x.sum(1, keepdim=True).expand_as(x); x.sort(-1, descending=True)[0];
x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2);
x.unflatten(-1, (-1, 2)).mT.flatten(-2); x.unflatten(-1, (2, -1)).mT.flatten(-2)
"""  # what may be done to an argument or a result x, too
SCALES = "x * {0}", "x / {0}", "x * {0} ** 0.5", "x / {0} ** 0.5"


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
        exchanged(nodes, source),
        others(nodes, [*names, *sizes]),
        done(nodes, [*INSIDE.split(";"), *WHOLE.split(";"), *scales]),
        done(nodes, INSIDE.split(";"), ast.expr),
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
    for old, *new in map(str.split, WORDS.split(";")):
        old = rf"\b{old}\b" if old.isidentifier() else rf"(?<=[ (=[-]){re.escape(old)}(?=[] ),])"
        for word in new:
            yield slice(0, len(source)), re.sub(old, word, source)
            yield from ((slice(*place.span()), word) for place in re.finditer(old, source))


def exchanged(nodes, source):
    """Two operands or arguments stand for each other."""
    for node in nodes:
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        for a, b in itertools.combinations(parts, 2):
            between = source[a.at.stop : b.at.start]
            yield slice(a.at.start, b.at.stop), f"({b.text}){between}({a.text})"


def others(nodes, names):
    """A name stands for another value."""
    for node in nodes:
        if isinstance(node, ast.expr):
            yield from ((node.at, name) for name in names)


def done(nodes, actions, kind=ast.Return):
    """Something is done to an argument and a result, or to any value, or instead of a call."""
    inputs = [node for node in nodes if isinstance(node, ast.arg)]
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and kind == ast.Return:
            start = node.body[0].at.start
            space = "\n" + " " * node.body[0].col_offset
            for x, action in itertools.product(node.args.args, actions):
                yield slice(start, start), f"{x.arg} = {of(x.arg, action)}{space}"
        if not isinstance(node, kind):
            continue
        parts = [(node, node)]
        if kind == ast.Return:
            parts = [(x, x) for x in [node.value, *getattr(node.value, "elts", [])]]
            parts += [(node.value, x) for x in inputs]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts += [(node, node.func.value), *((node, x) for x in node.args[:1])]
        for (whole, x), action in itertools.product(parts, actions):
            yield whole.at, of(x.text, action)


def of(x, action):
    """Return what is done to x, the text of a value."""
    return re.sub(r"\bx\b", lambda _: x, f"({action})")
