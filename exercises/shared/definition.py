"""What an exercise is: a file of this folder, with

its docstring   the task: what to write, with shapes, a picture and the paper
LEARN           the names that a learner writes; the file's own ones are the solution
cases()         [(label, call, *arguments)], from tiny to random. call: one of these names, or a
                function of the learner's module and the arguments, for what has a state
MISTAKES        {sentence: {name: a wrong function}}, or {sentence: {setting: value}} of a function
                flawed, which stands for the first name: known wrong answers
HINTS           texts, from a nudge to nearly everything
READ_ON         where lookback's own code is
beside(theirs)  only where it is not the solution on the largest case: {name: a function without
                arguments}, whose time and memory are printed when all is right
"""

import ast
import functools
import importlib
import textwrap
import types
from pathlib import Path

import torch

from engine.common.checks import choose

ROOT = Path(__file__).parents[2]
ORDER = (
    "masks scores softmax attention heads positions cross cache tiles backward linear sampling "
    "block search yours"
).split()


def load(name):
    """Return the module of an exercise, by its name or its number from 1; ValueError if unknown."""
    if name.isdecimal() and 1 <= int(name) <= len(ORDER):
        name = ORDER[int(name) - 1]
    choose("exercise", name, dict.fromkeys(ORDER))
    return importlib.import_module(f"exercises.{name}")


def name_of(exercise):
    return exercise.__name__.rpartition(".")[2]


def stub(exercise):
    """Return what a learner begins with: the solution without what its functions do."""
    parts = [f'"""{exercise.__doc__}"""\n\nimport math\n\nimport torch']
    for node in ast.parse(Path(exercise.__file__).read_text(encoding="utf-8")).body:
        if getattr(node, "name", None) in exercise.LEARN:
            parts.append(without_bodies(node))
    return "\n\n\n".join(parts) + "\n"


def without_bodies(node):
    """Return the source of a function, or of a class with its methods, without their bodies."""
    if isinstance(node, ast.ClassDef):
        methods = [without_bodies(part) for part in node.body if isinstance(part, ast.FunctionDef)]
        about = f'"""{ast.get_docstring(node, clean=True)}"""'
        parts = textwrap.indent("\n\n".join([about, *methods]), "    ")
        bases = ", ".join(map(ast.unparse, node.bases))
        return f"class {node.name}({bases}):\n{parts}".replace("():", ":")
    keep = node.body[:1] if ast.get_docstring(node) else []
    node.body = [*keep, *ast.parse("raise NotImplementedError").body]
    return ast.unparse(node)


def with_mistakes(exercise, *mistakes):
    """Return the solution with these entries of MISTAKES; None if they cannot be combined."""
    functions = {name: getattr(exercise, name) for name in exercise.LEARN}
    changed, flags = {}, {}
    for mistake in mistakes:
        target = changed if mistake.keys() <= functions.keys() else flags
        if target.keys() & mistake.keys():
            return None
        target |= mistake
    if flags:
        changed[exercise.LEARN[0]] = functools.partial(exercise.flawed, **flags)
    return types.SimpleNamespace(**functions | changed)


def outcomes(theirs, exercise):
    """Yield what each case gives: values, gradients, and whether it changed its arguments."""
    for _, call, *arguments in exercise.cases():
        function = getattr(theirs, call) if isinstance(call, str) else call
        inputs = [trainable(x) for x in arguments]
        before = [x.detach().clone() if torch.is_tensor(x) else x for x in inputs]
        result = function(*inputs) if isinstance(call, str) else function(theirs, *inputs)
        values = tensors(result)
        leaves = [x for x in inputs if torch.is_tensor(x) and x.requires_grad]
        yield {
            "values": [value.detach() for value in values],
            "gradients": gradients(values, leaves),
            "changed": any(
                torch.is_tensor(x) and not torch.equal(x, then) for x, then in zip(inputs, before)
            ),
        }


def trainable(x):
    """A copy of a tensor of floats that takes a gradient; anything else as it is."""
    floats = torch.is_tensor(x) and x.is_floating_point()
    return x.clone().requires_grad_() if floats else x


def tensors(result):
    """Return a result, a tensor, a number or a sequence of either, as a list of tensors."""
    parts = result if isinstance(result, tuple | list) else [result]
    if not all(torch.is_tensor(part) or isinstance(part, int | float) for part in parts):
        raise TypeError(f"it returns {type(result).__name__}, and not a tensor")
    return [x if torch.is_tensor(x) else torch.tensor(x, dtype=torch.float64) for x in parts]


def gradients(values, leaves):
    """The gradients of the arguments, for a gradient of the values that differs everywhere."""
    total = torch.zeros((), requires_grad=True)
    for value in values:
        if value.requires_grad:
            finite = value.masked_fill(~value.isfinite(), 0)
            total = total + (finite * torch.linspace(-1, 1, value.numel()).view_as(value)).sum()
    return [*torch.autograd.grad(total, leaves, allow_unused=True)] if leaves else []
