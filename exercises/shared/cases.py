"""The inputs of cases, and what functions make of them."""

import contextlib
import inspect
import re
import signal

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
    generator = torch.Generator().manual_seed(0)
    shapes = [[size[name] for name in shape.split()] for shape in shapes]
    numbers = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [((50 * x).floor() * 2 + 1) / 100 for x in numbers]  # none is 0: a slope may jump there


def called(call, module, arguments):
    return getattr(module, call)(*arguments) if isinstance(call, str) else call(module, *arguments)


def named(exercise, call, *arguments):
    """The arguments of a case by their names."""
    function = getattr(exercise, call) if isinstance(call, str) else call
    names = [name for name in inspect.signature(function).parameters if name != "theirs"]
    return dict(zip(names, arguments))


def outcome(theirs, exercise, label, call, *arguments):
    """What a case gives; ValueError if it changes its arguments."""
    slopes = getattr(exercise, "GRADIENTS", True) and torch.is_grad_enabled()
    inputs = [copy(x, slopes) for x in arguments]
    values = tensors(called(call, theirs, inputs))
    for x, then in zip(inputs, arguments):
        if torch.is_tensor(x) and not torch.equal(x, then):
            raise ValueError("it changes its arguments: what calls it may still need them")
    name = call if isinstance(call, str) else ", ".join(functions(exercise.__name__.split(".")[1]))
    slopes = gradients(values, [*filter(is_float, inputs)] if slopes else [])
    values = [value.detach() for value in values]
    return {"name": name, "label": label, "values": values, "gradients": slopes}


def copy(x, slopes):
    """A copy of a tensor, which takes a gradient if it can and is to; anything else as it is."""
    return x.clone().requires_grad_(slopes and is_float(x)) if torch.is_tensor(x) else x


def is_float(x):
    return torch.is_tensor(x) and x.is_floating_point()


def tensors(result):
    """Return a result, a tensor, a number or a sequence of either, as a list of tensors."""
    parts = result if isinstance(result, tuple | list) else [result]
    if not all(torch.is_tensor(part) or isinstance(part, int | float) for part in parts):
        raise TypeError(f"it returns {type(result).__name__}, and not a tensor")
    parts = map(torch.as_tensor, parts)
    return [x.double() if x.dim() == 0 else x for x in parts]


def gradients(values, leaves):
    """The gradients of the arguments, for a gradient of the values that differs everywhere."""
    ends = [x for x in values if x.requires_grad]
    if not ends:
        return [*map(torch.zeros_like, leaves)]
    slopes = [torch.linspace(-1, 1, x.numel()).view_as(x) * x.isfinite() for x in ends]
    # A sum, since PyTorch imports sympy for each other gradient that it is given.
    total = sum((x * slope).sum() for x, slope in zip(ends, slopes))
    return [*torch.autograd.grad(total, leaves, materialize_grads=True)] if leaves else []


@contextlib.contextmanager
def limit(seconds):
    """Suppress errors, also of what takes longer than this. Windows has no such timer."""
    with contextlib.suppress(Exception):
        try:
            ring(seconds)
            yield
        finally:
            ring(0)


def ring(seconds):
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def stop(*_):
    raise TimeoutError


if hasattr(signal, "SIGPROF"):  # once, since the search sets the timer thousands of times
    signal.signal(signal.SIGPROF, stop)
