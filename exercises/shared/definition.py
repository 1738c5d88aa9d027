"""What an exercise is: a file of this folder, with

its docstring   the task: what to write, with shapes, a picture and the paper
the solution    the functions that a learner writes; their comments are the hints
MISTAKES        {sentence: {a text of the solution: what a learner wrote in its place}}
READ_ON         where lookback's own code is
cases()         [(label, call, *arguments)], from tiny to random, the last to be timed. label: with
                sizes, B=2. call: a name, or a function of the learner's module and arguments
BESIDE          only if others than the solution are timed too: {name: a module}
"""

import ast
import functools
import importlib
import re
import types
from pathlib import Path

from engine.common.errors import choose

ROOT = Path(__file__).parents[2]
ORDER = (
    "masks scores softmax attention heads positions cross cache tiles backward linear sampling "
    "block search norms loss yours"
).split()


def load(name):
    """Return the module of an exercise, by its name or its number from 1; ValueError if unknown."""
    numbers = {str(number): name for number, name in enumerate(ORDER, 1)}
    name = choose("exercise", name, numbers | dict(zip(ORDER, ORDER)))
    return importlib.import_module(f"exercises.{name}")


def solution(exercise):
    """Return the text of the solution, and its comments."""
    text = Path(exercise.__file__).read_text(encoding="utf-8").partition("\nMISTAKES = ")[0]
    comment = re.compile("^ +# (.*)\n", re.MULTILINE)
    return comment.sub("", text), comment.findall(text)


def with_mistakes(exercise, *sentences):
    """Return the solution's text with these mistakes; None if they exclude each other."""
    pairs = [pair for sentence in sentences for pair in exercise.MISTAKES[sentence].items()]
    wrong = dict(pairs)
    right = "|".join(map(re.escape, wrong)) or "$^"
    text, count = re.subn(right, lambda found: wrong[found[0]], solution(exercise)[0])
    return text if count == len(pairs) else None


@functools.cache
def module(text):
    """Return a text as a module: the solution's, and no learner's."""
    module = types.ModuleType("mistaken")
    exec(compile(text, "a mistaken solution", "exec"), vars(module))
    return module


def functions(exercise):
    """Return {name: node of its syntax tree} of the functions and classes that a learner writes."""
    nodes = ast.parse(solution(exercise)[0]).body
    return {node.name: node for node in nodes if hasattr(node, "name")}


def stub(exercise):
    """Return what a learner begins with: the solution without what its functions do."""
    tree = ast.Module([*functions(exercise).values()], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = ast.parse("raise NotImplementedError").body
    return f'"""{exercise.__doc__}"""\n\nimport math\n\nimport torch\n\n{ast.unparse(tree)}\n'
