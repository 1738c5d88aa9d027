"""What an exercise is: a file of this folder, with

its docstring   the task: what to write, with shapes, a picture and the paper
the solution    the functions that a learner writes; their comments are the hints, and the last
                one says where lookback's own code is
cases()         [(label, call, *arguments)], from tiny to random. label: with sizes, B=2. call: a
                name, or a function of the learner's module and arguments

mistakes.toml has the known mistakes that no edit of edits.py names, or not as well.
"""

import ast
import functools
import importlib
import re
import tomllib
from pathlib import Path

from engine.errors import choose

FOLDER = Path(__file__).parents[1]
MISTAKES = tomllib.loads((FOLDER / "mistakes.toml").read_text(encoding="utf-8"))
ORDER = """
masks scores softmax attention heads positions cross cache tiles backward linear sampling block
search yours
""".split()


def known(name):
    """Return the name of an exercise, for its name or its number from 1; ValueError if unknown."""
    names = {str(number): name for number, name in enumerate(ORDER, 1)}
    return choose("exercise", name, names | dict(zip(ORDER, ORDER)))


def load(name):
    """Return the module of an exercise. It imports torch; nothing else here does."""
    return importlib.import_module(f"exercises.{name}")


@functools.cache
def solution(name):
    """Return the text of the solution, and its comments: the hints, and what to read on."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8").partition("def cases")[0]
    comment = re.compile("^ *# (.*)\n", re.MULTILINE)
    return comment.sub("", text), comment.findall(text)


def task(name):
    """Return the docstring of an exercise."""
    return solution(name)[0].split('"""')[1]


def with_mistakes(name, *sentences):
    """Return the text of an exercise's solution with these mistakes."""
    text = solution(name)[0]
    for sentence in sentences:
        for right, wrong in MISTAKES[name][sentence].items():
            text = text.replace(right, wrong)
    return text


@functools.cache
def functions(name):
    """Return {name: node of its syntax tree} of the functions and classes that a learner writes."""
    nodes = ast.parse(solution(name)[0]).body
    return {node.name: node for node in nodes if hasattr(node, "name")}


def stub(name):
    """Return what a learner begins with: the solution without what its functions do."""
    tree = ast.parse("\n".join(map(ast.unparse, functions(name).values())))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = ast.parse("raise NotImplementedError").body
    return f'"""{task(name)}"""\n\nimport math\n\nimport torch\n\n{ast.unparse(tree)}\n'
