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
from exercises.shared.definition import solution

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def factors(sizes):
    """{expression: words} of factors that a scale by mistake has."""
    powers = {"{}": "{}", "1 / {}": "1/{}", "{} ** 0.5": "√{}", "{} ** -0.5": "1/√{}"}
    powers |= {"{} ** 0.25": "{}^(1/4)", "{} ** -0.25": "1/{}^(1/4)"}
    powers |= {"(D / {}) ** 0.5": "√D/√{0} (√{0} stands for √D)"} if "D" in sizes else {}
    found = {"math.log(2)": "log 2 (2 for e, nats for bits)", "1 / math.log(2)": "1/log 2"}
    for n, (power, words) in itertools.product(sizes, powers.items()):
        found[power.format(n)] = words.format(n)
    return found


def inside(exercise):
    """Yield (sentence, text, None, None): the solution with another word, once or everywhere."""
    text = solution(exercise)[0]
    for right, words in TABLES["inside"].items():
        places = [*re.finditer(right, text)]
        places = [place for place in places if place.start() > len(exercise.__doc__)]
        spots = [*zip(places), places][: max(1, len(places) + (len(places) > 1))] if places else []
        for wrong, spot in itertools.product(words.split(), spots):
            new = text
            for place in reversed(spot):
                word = "" if "∅" in wrong else place.expand(wrong)
                new = new[: place.start()] + word + new[place.end() :]
            line = text[: text.find("\n", place.end())].rpartition("\n")[2].strip()
            where = "everywhere" if spot[1:] else f"in: {line}"
            yield f"{word or 'nothing'} stands for {place[0].strip()} {where}", new, None, None


def changes(exercise, label, inputs, wrong):
    """Yield (sentence, a solution's text, what is changed, the expression that stands for it).

    What is changed: arguments by their names, or a wrong result by its number.
    """
    yield from inside(exercise)
    text = solution(exercise)[0]
    sizes = sizes_in(label)
    pairs = [*itertools.combinations(inputs, 2)]
    for names in [*zip(inputs), *pairs]:
        for expression, words in TABLES["argument"].items():
            each = ", ".join(re.sub(r"\bx\b", name, expression) for name in names)
            yield words.format(x=" and ".join(names)), text, ", ".join(names), each
    for a, b in pairs:
        yield f"{a} and {b} are exchanged", text, f"{a}, {b}", f"{b}, {a}"
        yield f"{b} stands for {a}", text, a, b
        yield f"{a} stands for {b}", text, b, a
    scales = factors(sizes)
    for name in {"q", "scores"} & {*inputs}:
        for factor, words in scales.items():
            yield (
                f"the scores are {words} times what they should be",
                text,
                name,
                f"{name} * ({factor})",
            )
    for n in wrong:
        one = f"result {n + 1}: "
        for expression, words in TABLES["result"].items():
            yield one + words, text, n, expression
        for name in inputs:
            yield f"{one}{name} is returned as it is", text, n, name
        for factor, words in scales.items():
            yield f"{one}it is {words} times what it should be", text, n, f"x * ({factor})"
        for a, b in itertools.combinations(TABLES["rule"].items(), 2):
            yield f"the rule is {a[0]}{a[1]} and {b[0]}{b[1]}", text, n, f"({a[0]}) & ({b[0]})"


def evaluated(label, inputs, expression):
    scope = vars(torch) | {"math": math} | sizes_in(label) | inputs
    return eval(expression, scope)  # our own text, no learner's


def changed(label, inputs, target, expression):
    """Put an expression in the place of arguments; NameError for a size that a label has not."""
    new = evaluated(label, inputs, expression)
    names = target.split(", ")
    inputs |= zip(names, new if len(names) > 1 else [new])


def read_weights(a, b):
    """Yield what weights a show beside the right ones b, both (..., queries, keys)."""
    seen, may = a.abs() > 1e-9, b > 1e-9
    sums = a.sum(-1).flatten()
    worst = sums[(sums - 1).abs().argmax()].item()
    if abs(worst - 1) > 1e-6:
        yield f"with all values 1 the result is {worst:.3g}, and not 1: so much the weights sum to"
    looks = {"looks at key {}, and may not": seen & ~may, "does not look at key {}": may & ~seen}
    for text, where in looks.items():
        for *_, i, j in where.nonzero()[:1].tolist():
            yield f"query {i} {text.format(j)}"
