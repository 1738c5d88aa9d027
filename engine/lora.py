"""LoRA: freeze a matrix and train two thin ones that add to it (Hu et al. 2021, arXiv:2106.09685).

A layer computes W x + alpha / rank * B A x. W needs no gradient and no optimizer state. Checkpoints
hold only A and B, and the path of the base. B starts at zero, so training starts at the base.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn

from engine.errors import choose


@dataclass(kw_only=True)
class Adapter:
    """An adapter's settings, as in train.TrainConfig, with the path and the hash of its base."""

    lora_rank: int = 1
    lora_alpha: float = 1.0
    lora_targets: str = ""
    base: str = ""
    sha256: str = ""


class LoRALinear(nn.Module):
    """A Linear, plus lora_A (inputs to rank) and lora_B (rank to outputs)."""

    def __init__(self, linear, adapter):
        super().__init__()
        self.linear = linear
        self.scale = adapter.lora_alpha / adapter.lora_rank
        self.lora_A = nn.Linear(linear.in_features, adapter.lora_rank, bias=False)
        self.lora_B = nn.Linear(adapter.lora_rank, linear.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.linear(x) + self.lora_B(self.scale * self.lora_A(x))


def attach(model, adapter):
    """Freeze a GPT, and add an Adapter's matrices to the layers of its blocks that it names."""
    model.requires_grad_(False)
    model.lora = adapter
    targets = adapter.lora_targets.split(",")
    layers = list(layers_of(model, nn.Linear))
    for target in targets:
        choose("lora_targets", target, {name: layer for _, name, layer in layers})
    for parent, name, layer in layers:
        if name in targets:
            setattr(parent, name, LoRALinear(layer, adapter))


@torch.no_grad()
def merge(model):
    """Add an adapter's matrices to the weights of its GPT, which then has no adapter."""
    for parent, name, layer in list(layers_of(model, LoRALinear)):
        layer.linear.weight += layer.scale * layer.lora_B.weight @ layer.lora_A.weight
        setattr(parent, name, layer.linear)
    model.requires_grad_(True)
    model.lora = None


def layers_of(model, kind):
    """Yield (parent, name in the parent, layer) for each layer of one class in the blocks."""
    for parent in model.transformer.h.modules():
        for name, layer in parent.named_children():
            if type(layer) is kind:
                yield parent, name, layer
