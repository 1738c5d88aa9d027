"""Weights that exist already, in place of initial ones."""

import math

import torch.nn as nn
from torch.overrides import TorchFunctionMode

from engine.common.files import sha256_of


class WithoutInit(TorchFunctionMode):
    """Skip torch.nn.init for parameters that will be replaced.

    They need no random numbers, and no memory either, as nothing touches it.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensor = kwargs.get("tensor", args[0] if args else None)
        of_init = getattr(function, "__module__", "") == "torch.nn.init"
        if of_init and isinstance(tensor, nn.Parameter):
            return tensor
        return function(*args, **kwargs)


def checked(parameters, weights, source):
    """Return weights (name -> tensor) in float32.

    ValueError, which names the source, unless they have the names and shapes of the parameters and
    are finite.
    """
    for name in parameters.keys() | weights.keys():
        here = shape_of(parameters.get(name))
        there = shape_of(weights.get(name))
        if here != there:
            raise ValueError(
                f"{source} does not fit this model: {name} is {there} there and {here} here"
            )
        weights[name] = weights[name].float()
        low, high = weights[name].detach().aminmax()  # in one pass, without a copy
        if not math.isfinite(low) or not math.isfinite(high):
            raise ValueError(
                f"{source} has weights that are not finite, in {name}: use an earlier checkpoint"
            )
    return weights


def sha256_of_weights(model):
    """Return the sha256 of a model's parameters on the CPU, in their order."""
    return sha256_of(p.detach().contiguous().numpy() for p in model.parameters())


def shape_of(tensor):
    """Return the shape of a tensor, as a tuple, or words if it is none."""
    return tuple(tensor.shape) if hasattr(tensor, "shape") else "no such tensor"
