"""The inputs of cases, and what functions make of them."""

import collections
import inspect
import re

import torch

from exercises.shared.definition import functions


def small(*rows):
    """These rows as a tensor of float64, of one text and one head: (1, 1, rows, columns)."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def sizes_in(text):
    """{"B": 2, "T": 5} of a text with "B=2, T=5, width=3"."""
    return {name: int(size) for name, size in re.findall(r"\b(4?[A-Z]\w*)=(\d+)", text)}


def random(sizes, *shapes):
    """Random tensors of float64: random("B=2, T=5", "B T", "T") are of shapes (2, 5) and (5)."""
    size = sizes_in(sizes)
    torch.manual_seed(0)
    shapes = ([size[name] for name in shape.split()] for shape in shapes)
    numbers = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return [((50 * x).floor() * 2 + 1) / 100 for x in numbers]  # none is 0: a slope may jump there


# names: of the functions that are tried. inputs: {name: argument}. graded: are gradients asked for?
Case = collections.namedtuple("Case", "names label call inputs graded")


def cases_of(exercise):
    """Yield each Case of an exercise."""
    graded = getattr(exercise, "GRADIENTS", True)
    everything = ", ".join(functions(exercise.__name__.split(".")[1]))
    for label, call, *arguments in exercise.cases():
        name = call if isinstance(call, str) else everything
        parameters = inspect.signature(vars(exercise).get(call, call)).parameters
        inputs = dict(zip((name for name in parameters if name != "theirs"), arguments))
        yield Case(name, label, call, inputs, graded)


def outcome(theirs, case, graded=True):
    """Return {"result 1": tensor, ..., "the gradient of q": tensor, ...}.

    ValueError if the arguments of the case are changed.
    """
    inputs = {name: x.clone() if torch.is_tensor(x) else x for name, x in case.inputs.items()}
    leaves = [name for name, x in inputs.items() if graded and case.graded and is_float(x)]
    for name in leaves:
        inputs[name].requires_grad_()
    values = called(theirs, case, inputs)
    for name, x in case.inputs.items():
        if torch.is_tensor(x) and not torch.equal(x, inputs[name]):
            raise ValueError(f"it changes its argument {name}: what calls it may still need it")
    found = {f"result {n}": x.detach() for n, x in enumerate(values, 1)}
    if leaves:
        # A gradient that differs everywhere, of a sum: for a given one PyTorch would import sympy.
        ends = (x * torch.linspace(-1, 1, x.numel()).view_as(x) * x.isfinite() for x in values)
        total = sum((x.sum() for x in ends), torch.zeros((), requires_grad=True))
        slopes = torch.autograd.grad(
            total, [inputs[name] for name in leaves], materialize_grads=True
        )
        found |= zip((f"the gradient of {name}" for name in leaves), slopes)
    return found


def is_float(x):
    return torch.is_tensor(x) and x.is_floating_point()


def called(theirs, case, inputs):
    """Return what a case's call makes of inputs, one or several results, as a list of tensors."""
    if isinstance(case.call, str):
        result = getattr(theirs, case.call)(*inputs.values())
    else:
        result = case.call(theirs, *inputs.values())
    parts = result if isinstance(result, tuple | list) else [result]
    if not all(torch.is_tensor(part) or isinstance(part, int | float) for part in parts):
        raise TypeError(f"it returns {type(result).__name__}, and not a tensor")
    return [x.double() if x.dim() == 0 else x for x in map(torch.as_tensor, parts)]
