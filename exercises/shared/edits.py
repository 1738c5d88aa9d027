"""What learners write: the solution with one edit.

A wrong answer is seldom new. It is the solution with a word or a name in the place of another, with
a part left out, or with one thing done to an argument, to a result or to what is in between. All of
these are tried: if one gives the learner's numbers in all cases, it is what the learner wrote.
Solutions neither append to lists nor use `while`, so that no edit of theirs runs for ever.
"""

import ast
import itertools
import re

WORDS = """
True False; - +; + -; * / +; / *; & |; and or; < <= > >=; <= < >= >; > >= < <=; == <= != >=;
-1 -2 0 (0,1) (0,1,2,3); 0 1 -1; 1 0 2; 2 1 4 3; 0.5 1 0.25 -0.5; 10000 1000 100; sin cos;
cos sin; mean sum amax; sum mean amax; amax mean sum; maximum minimum; log log2 log10;
gelu relu silu tanh sigmoid; elu relu softplus sigmoid silu; tanh sigmoid relu sin;
softmax sigmoid exp log_softmax; exp exp2 sigmoid
"""  # a word, and what is taken for it
INSIDE = """
-x; x + 1; x - 1; x * x; x ** 0.5; x.mT; x[:1]; x.abs(); x.tril(); x.softmax(-1); x.roll(1, -1);
x.mT.reshape(x.shape); x.swapaxes(1, 2).reshape(x.shape); x.mean(-1, keepdim=True);
x - x.mean(-1, keepdim=True); x / x.sum(-1, keepdim=True); turn(x); f(x)
"""  # what may be done to any x
WHOLE = """
x[::-1]; x[1], x[0], *x[2:]; ~x; 0 * x; 0 * x + 1; 1 / x; x | True; (x | True).tril(); x.exp();
x.log(); 2 ** x.log(); x * math.log(2); x / math.log(2); x.flip(-1); x.flip(-2); x.roll(-1, -1);
x.roll(1, -2); x.roll(-1, -2); x.swapaxes(0, 1); x.reshape(x.mT.shape).mT;
x.sum(1, keepdim=True).expand_as(x); x.sort(-1, descending=True)[0];
x / x.norm(dim=-1, keepdim=True); x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2);
x.unflatten(-1, (-1, 2)).mT.flatten(-2); x.unflatten(-1, (2, -1)).mT.flatten(-2)
"""  # what may be done to an argument or a result x, too
SCALES = "x * {0}", "x / {0}", "x * {0} ** 0.5", "x / {0} ** 0.5", "x * (D / {0}) ** 0.5"


def edits(source, sizes):
    """Yield what a function's source becomes by one edit; sizes are names, such as D."""
    nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
    values = [node for node in nodes if isinstance(node, ast.expr)]
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    inside, whole = INSIDE.split(";"), WHOLE.split(";")
    whole += inside + [scale.format(size) for size in sizes for scale in SCALES]

    def span(node):
        first = starts[node.lineno - 1] + node.col_offset
        return slice(first, starts[node.end_lineno - 1] + node.end_col_offset)

    def put(new, at):
        return source[: at.start] + new + source[at.stop :]

    def done(action, text):
        return re.sub(r"\bx\b", text, action)

    for node in values:  # a part stands for the whole
        parts = [part for part in ast.walk(node) if part in values][1:7]
        yield from (put(f"({source[span(part)]})", span(node)) for part in parts)
    names = sorted({*re.findall(r"\b([A-Za-z]\w*)(?=[,)]| =| in )", source)})
    for old, *words in [*map(str.split, WORDS.split(";")), *([x, *names] for x in names)]:
        old = rf"\b{old}\b" if old.isidentifier() else rf"(?<=[ (=[-]){re.escape(old)}(?=[] ),])"
        places = [slice(*place.span()) for place in re.finditer(old, source)]
        for word in words:  # a word stands for another, everywhere or once
            yield re.sub(old, word, source)
            yield from (put(word, place) for place in places)
    for a, b in itertools.combinations(names, 2):  # two are exchanged, in a line or in all
        for n, m in [(0, len(lines)), *((n, n + 1) for n in range(len(lines)))]:
            part = slice(starts[n], starts[m])
            new = re.sub(rf"\b({a}|{b})\b", lambda x: b if x[0] == a else a, source[part])
            yield put(new, part)
    for n in range(1, len(lines)):  # a line is missing, or too early
        yield "".join(lines[:n] + lines[n + 1 :])
        yield "".join(lines[:n] + lines[n : n + 2][::-1] + lines[n + 2 :])
    for node in nodes:
        if isinstance(node, ast.Call):  # a parenthesis ends too early
            for part in ast.walk(node):
                if isinstance(part, ast.BinOp):
                    a, b, c = (span(x).stop for x in (part.left, part, node))
                    yield source[:a] + source[b:c] + source[a:b] + source[c:]
        elif isinstance(node, ast.FunctionDef):
            start = slice(*[starts[node.body[0].lineno - 1]] * 2)
            for argument, action in itertools.product(node.args.args, whole):
                line = done(f"x = ({action})\n", argument.arg)
                yield put(" " * node.body[0].col_offset + line, start)
    results = [node.value for node in nodes if isinstance(node, ast.Return)]
    results += [part for value in results for part in getattr(value, "elts", [])]
    for node in results + values:
        for action in whole if node in results else inside:
            yield put(f"({done(action, source[span(node)])})", span(node))
