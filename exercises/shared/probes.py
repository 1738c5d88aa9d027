"""Probes: what else would give a learner's numbers, and what do the weights show?

The solution is asked again, with another argument, another result, or another word inside: if it
then gives the learner's numbers in all cases, this is what the learner did: see probes.toml. Where
the values of a case are the identity, its result are the weights, and more is read from them.
"""

import itertools
import math
import re
import tomllib
from pathlib import Path

import torch

from exercises.shared.cases import sizes_in
from exercises.shared.comparison import close
from exercises.shared.definition import solution

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def factors(sizes):
    """{expression: words} of factors that a scale by mistake has."""
    powers = {"{}": "{}", "1 / {}": "1/{}", "{} ** 0.5": "√{}", "{} ** -0.5": "1/√{}"}
    found = {"math.log(2)": "log 2 (2 for e, nats for bits)", "1 / math.log(2)": "1/log 2"}
    for n, (power, words) in itertools.product(sizes, powers.items()):
        found[power.format(n)] = words.format(n)
    for n in sizes:
        found[f"(D / {n}) ** 0.5"] = f"√D/√{n}, as if √{n} stood for √D,"
    return found if "D" in sizes else {k: v for k, v in found.items() if "D /" not in k}


def inside(exercise):
    """Yield (sentence, None, text) of solutions with another word, once or everywhere."""
    text = solution(exercise)[0]
    for right, words in TABLES["inside"].items():
        places = [place for place in re.finditer(right, text) if place.start() > len(exercise.__doc__)]
        for wrong, spots in itertools.product(words.split(), [*zip(places), places][: len(places) + 1]):
            new = text
            for place in reversed(spots):
                word = place.expand(wrong.replace("∅", ""))
                new = new[: place.start()] + word + new[place.end() :]
            if spots:
                line = text[: text.find("\n", place.end())].rpartition("\n")[2].strip()
                yield f"{word or 'nothing'} stands for {place[0].strip()} in: {line}", None, new


def changes(exercise, label, inputs, wrong):
    """Yield (sentence, what is changed, what stands for it: an expression, or the whole text).

    What is changed: arguments by their names, or a wrong result by its number.
    """
    yield from inside(exercise)
    sizes = sizes_in(label)
    pairs = [*itertools.combinations(inputs, 2)]
    for names in [*zip(inputs), *pairs]:
        for expression, words in TABLES["argument"].items():
            each = ", ".join(re.sub(r"\bx\b", name, expression) for name in names)
            yield words.format(x=" and ".join(names)), ", ".join(names), each
    for a, b in pairs:
        yield f"{a} and {b} are exchanged", f"{a}, {b}", f"{b}, {a}"
        yield f"{b} stands for {a}", a, b
        yield f"{a} stands for {b}", b, a
    scales = factors(sizes)
    for name in {"q", "scores"} & {*inputs}:
        for factor, words in scales.items():
            yield f"the scores are {words} times what they should be", name, f"{name} * ({factor})"
    for n in wrong:
        one = f"result {n + 1}: "
        for expression, words in TABLES["result"].items():
            yield one + words, n, expression
        for name in inputs:
            yield f"{one}{name} is returned as it is", n, name
        for factor, words in scales.items():
            yield f"{one}it is {words} times what it should be", n, f"x * ({factor})"
        for a, b in itertools.combinations(TABLES["rule"].items(), 2):
            yield f"the rule is {a[0]}{a[1]} and {b[0]}{b[1]}", n, f"({a[0]}) & ({b[0]})"


def evaluated(label, inputs, expression):
    scope = vars(torch) | {"math": math} | sizes_in(label) | inputs
    return eval(expression, scope)  # our own text, no learner's


def changed(label, inputs, target, expression):
    """Put an expression in the place of arguments; NameError for a size that a label has not."""
    new = evaluated(label, inputs, expression)
    names = target.split(", ")
    inputs |= zip(names, new if len(names) > 1 else [new])


def read_weights(a, b, sizes):
    """Yield what weights a show beside the right ones b, both (..., queries, keys)."""
    sums, seen, may = a.sum(-1), a.abs() > 1e-9, b > 1e-9
    if not close(sums, torch.ones_like(sums), 1e-6).all():
        least = sums.flatten()[(sums - 1).abs().argmax()]
        yield f"with all values 1 the result is {least:.3g}, and not 1: so much the weights sum to"
        if close(a.sum(-2), torch.ones_like(a[..., 0, :]), 1e-6).all():
            yield "over the queries they sum to 1: softmax is over the wrong dimension"
    for where, text in (seen & ~may, "looks at key {}, and may not"), (may & ~seen, "does not look at key {}"):
        for *_, i, j in where.nonzero()[:1].tolist():
            yield f"query {i} {text.format(j)}"
    both = seen & may & (a > 0)
    logs = [x.log().masked_fill(~both, 0) for x in (a, b)]
    x, y = (both * (x - x.sum(-1, keepdim=True) / both.sum(-1, keepdim=True)) for x in logs)
    factor = ((x * y).sum() / (y * y).sum()).item()
    if close(x, factor * y, 1e-6).all() and abs(factor - 1) > 1e-6:
        scope = sizes | {"math": math}
        names = [f": {words}" for text, words in factors(sizes).items() if math.isclose(eval(text, scope.copy()), factor, rel_tol=1e-6)]
        yield f"the scores are {factor:.3g} times what they should be{''.join(names[:1])}"
