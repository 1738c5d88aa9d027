"""Weights that exist already, in place of initial ones."""

import math

import torch.nn as nn
from torch.overrides import TorchFunctionMode


class WithoutInit(TorchFunctionMode):
    """Skip torch.nn.init: parameters that will be replaced need no random numbers, and no memory, as nothing touches it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensor = kwargs["tensor"] if "tensor" in kwargs else args[0] if args else None
        if getattr(function, "__module__", "") == "torch.nn.init" and isinstance(
            tensor, nn.Parameter
        ):
            return tensor
        return function(*args, **kwargs)


def checked(parameters, weights, source):
    """weights (name -> tensor), in float32; ValueError unless they have the names and shapes of parameters, and are finite."""
    for name in parameters.keys() | weights.keys():
        want = tuple(parameters[name].shape) if name in parameters else "no such tensor"
        have = (
            tuple(weights[name].shape) if hasattr(weights.get(name), "shape") else "no such tensor"
        )
        if want != have:
            raise ValueError(
                f"{source} does not fit this model: {name} is {have} there and {want} here"
            )
        weights[name] = weights[name].float()
        low, high = (
            weights[name].detach().aminmax() if weights[name].numel() else (0.0, 0.0)
        )  # in one pass, without a copy
        if not math.isfinite(low) or not math.isfinite(high):
            raise ValueError(
                f"{source} has weights that are not finite, in {name}: use an earlier checkpoint"
            )
    return weights
