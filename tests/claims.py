"""What is claimed of an experiment's tables, and whether they bear it."""

import math
import operator
import re


def claims_of(name, text):
    """[(number of the table, claim)] of an experiment, in a text with such a line for each."""
    lines = re.sub(r"\n +", " ", text).splitlines()
    lines = [line.split(": ", 1) for line in lines if line.startswith(f"{name} ")]
    return [(int(where.split()[1]), claim.strip()) for where, claim in lines]


def rounded(value):
    return {f"{abs(value):.{digits}f}" for digits in range(5)}


def term(rows, text):
    """The value of a number, a cell, a - b or a / b, and a cell's standard error."""
    for sign, combine in (" - ", operator.sub), (" / ", operator.truediv):
        if sign in text:
            return combine(*(term(rows, part)[0] for part in text.split(sign))), 0
    row, _, column = text.strip().rpartition(" | ")
    if not row:
        return float(column), 0
    [found] = [each for each in rows if row in map(str, each.values())]
    value, _, error = str(found[column]).partition(" ± ")
    return float(value.split()[0]), float(error or 0)


def holds(rows, claim):
    """Whether the terms are as the signs between them say."""
    terms = re.split(" > | is ", claim)
    values = [term(rows, text) for text in terms]
    for n, ((a, a_error), (b, b_error)) in enumerate(zip(values, values[1:])):
        apart = a - b > 2 * math.hypot(a_error, b_error)
        alike = abs(a - b) <= 2 * math.hypot(a_error, b_error) or terms[n + 1].strip() in rounded(a)
        if not (alike if " is " in claim else apart):
            return False
    return True
