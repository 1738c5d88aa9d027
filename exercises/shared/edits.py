"""What learners write: the solution with one edit.

A wrong answer is seldom new. It is the solution with a word or a name in the place of another, with
a part left out or two exchanged, or with one thing done to an argument, to a result or to what is in
between. All of these are tried, the likely ones first: if one gives the learner's numbers in all
cases, it is what the learner wrote, or does the same.
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
x.softmax(0); x.softmax(1); x.softmax(-2); x.flatten(-2).softmax(-1).view_as(x); x.roll(1, -1);
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


class Edits:
    """What a function's source becomes by one edit; sizes are names, such as D."""

    def __init__(self, source, sizes):
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0, *itertools.accumulate(map(len, self.lines))]
        self.nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
        self.values = [node for node in self.nodes if isinstance(node, ast.expr)]
        self.sizes = [*sizes]
        self.names = sorted({*re.findall(r"\b([A-Za-z]\w*)(?=[,)]| =| in )", source)})
        self.inside = INSIDE.split(";")
        self.whole = [*WHOLE.split(";"), *self.inside]
        self.whole += [scale.format(size) for size in sizes for scale in SCALES]

    def __iter__(self):
        return itertools.chain(
            self.words(), self.missing(), self.exchanged(), self.others(), self.done()
        )

    def at(self, node):
        first = self.starts[node.lineno - 1] + node.col_offset
        return slice(first, self.starts[node.end_lineno - 1] + node.end_col_offset)

    def text(self, node):
        return self.source[self.at(node)]

    def put(self, new, at):
        return self.source[: at.start] + new + self.source[at.stop :]

    def words(self):
        """A word stands for another, everywhere or once."""
        for old, *words in map(str.split, WORDS.split(";")):
            word = rf"\b{old}\b" if old.isidentifier() else rf"(?<=[ (=[-]){re.escape(old)}(?=[] ),])"
            places = [slice(*place.span()) for place in re.finditer(word, self.source)]
            for new in words:
                yield re.sub(word, new, self.source)
                yield from (self.put(new, place) for place in places)

    def missing(self):
        """A part stands for the whole; a statement is missing."""
        for node in self.values:
            parts = [part for part in ast.walk(node) if part in self.values][1:7]
            yield from (self.put(f"({self.text(part)})", self.at(node)) for part in parts)
        yield from (self.put("pass", self.at(x)) for x in self.nodes if isinstance(x, ast.stmt))

    def exchanged(self):
        """Two parts stand for each other: names, operands, arguments, lines."""
        n = len(self.lines)
        for a, b in itertools.combinations(self.names, 2):
            for first, end in [(0, n), *((n, n + 1) for n in range(n))]:
                at = slice(self.starts[first], self.starts[end])
                swap = {a: b, b: a}
                yield self.put(re.sub(rf"\b({a}|{b})\b", lambda x: swap[x[0]], self.source[at]), at)
        for node in self.nodes:
            parts = getattr(node, "elts", getattr(node, "args", []))
            parts = [node.left, node.right] if isinstance(node, ast.BinOp) else parts
            for a, b in itertools.combinations(parts if isinstance(parts, list) else [], 2):
                first, second = self.at(a), self.at(b)
                between = self.source[first.stop : second.start]
                new = f"({self.text(b)}){between}({self.text(a)})"
                yield self.put(new, slice(first.start, second.stop))
        for n in range(1, n):
            lines = self.lines[:n] + self.lines[n : n + 2][::-1] + self.lines[n + 2 :]
            yield "".join(lines)

    def others(self):
        """A name stands for another value; a parenthesis ends too early."""
        for node in self.values:
            for name in self.names + self.sizes:
                yield self.put(name, self.at(node))
            if isinstance(node, ast.Call):
                for part in ast.walk(node):
                    if isinstance(part, ast.BinOp):
                        a, b, c = (self.at(x).stop for x in (part.left, part, node))
                        source = self.source
                        yield source[:a] + source[b:c] + source[a:b] + source[c:]

    def done(self):
        """Something is done to an argument, to a result, to any value, or instead of a call."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef):
                start = self.at(node.body[0]).start
                space = "\n" + " " * node.body[0].col_offset
                for x in node.args.args:
                    for new in actions(self.whole, x.arg):
                        yield self.put(f"{x.arg} = {new}{space}", slice(start, start))
        results = [node.value for node in self.nodes if isinstance(node, ast.Return)]
        results += [part for value in results for part in getattr(value, "elts", [])]
        for node in results + self.values:
            for new in actions(self.whole if node in results else self.inside, self.text(node)):
                yield self.put(new, self.at(node))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                for x in [node.func.value, *node.args[:1]]:
                    yield from (self.put(y, self.at(node)) for y in actions(self.inside, self.text(x)))


def actions(templates, x):
    """Return what is done to x, the text of a value."""
    return [re.sub(r"\bx\b", lambda _: x, f"({action.strip()})") for action in templates]
