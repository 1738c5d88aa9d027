"""What is said of experiments is what their JSON files hold: numbers, seeds, settings, verdicts."""

import ast
import dataclasses
import importlib
import json
import math
import re

import pytest
from conftest import ROOT, parametrize

from experiments.shared import trials

RECORDS = {path.stem: json.loads(path.read_bytes()) for path in ROOT.glob("experiments/*.json")}
BESIDE = {"translate": [*ROOT.glob("benchmarks/translate_*.json")]}  # an experiment's other records
# Each is true by more than two standard errors of the difference (=: within them, or rounded).
# experiment, number of its table: a cell is row | column.
VERDICTS = """
"""
NUMBER = r"(?<![\w.^/-])\d[\d,]*(?:\.\d+)?(?![\w/]|\.\d)"


def numbers_in(text):
    """The numbers of a text, without those of code, links and papers."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|arXiv:\S+|et al\. \d+|section \S+", " ", text)
    return {number.replace(",", "") for number in re.findall(NUMBER, text)}


def rounded(value):
    return {f"{abs(value):.{digits}f}" for digits in range(5)}


def values_in(content):
    """Each number in a JSON file, rounded in each way; those of texts as they are, too."""
    if isinstance(content, dict):
        return set().union(*map(values_in, [*content, *content.values()]))
    if isinstance(content, list):
        return set().union(*map(values_in, content))
    if isinstance(content, str):
        texts = re.findall(r"\d+\.?\d*", content.replace(",", ""))
        return {*texts}.union(*(rounded(float(text)) for text in texts))
    return rounded(content) if isinstance(content, int | float) else set()


def term(rows, text):
    """The value and the error of a number, a cell, or two of them with - or / between."""
    for sign, combine in (" - ", float.__sub__), (" / ", float.__truediv__):
        if sign in text:
            (a, a_error), (b, b_error) = (term(rows, part) for part in text.split(sign))
            value = combine(a, b)
            if sign == " / ":
                return value, abs(value) * math.hypot(a_error / a, b_error / b)
            return value, math.hypot(a_error, b_error)
    row, _, column = text.partition(" | ")
    if not column:
        return float(text), 0.0
    [found] = [each for each in rows if row in map(str, each.values())]
    value, _, error = str(found[column]).partition(" ± ")
    return float(value.split()[0]), float(error or 0)


def holds(rows, claim):
    if " = " in claim:
        one, other = claim.split(" = ")
        (a, a_error), (b, b_error) = term(rows, one), term(rows, other)
        return abs(a - b) <= 2 * math.hypot(a_error, b_error) or other.strip() in rounded(a)
    terms = [term(rows, part) for part in claim.split(" > ")]
    pairs = zip(terms, terms[1:])
    return all(a - b > 2 * math.hypot(a_error, b_error) for (a, a_error), (b, b_error) in pairs)
