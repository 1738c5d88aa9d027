"""Performer: linear attention that approaches softmax (Choromanski et al. 2021, arXiv:2009.14794).

`attention.FEATURE` names it: `python train.py --attention=performer --window=0`.
"""

import math

import torch
import torch.nn as nn


def positive_random_features(D, count, seed=0):
    """Return features (..., D) -> (..., count) whose products estimate exp(q·k / sqrt(D)).

    They approach it as count grows, for vectors of unit RMS, as qk_norm makes them: for much longer
    ones most features vanish.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-count // D)):
        blocks.append(torch.randn(D, D, dtype=torch.float64, generator=generator))
    # Orthogonal directions lower the variance. Without the signs, some would be more likely.
    Q, R = torch.linalg.qr(torch.stack(blocks))
    Q = Q * R.diagonal(dim1=1, dim2=2).sign()[:, None]
    normals = torch.randn(count, D, dtype=torch.float64, generator=generator)
    lengths = normals.norm(dim=1, keepdim=True)
    return RandomFeatures(Q.flatten(0, 1)[:count] * lengths)


class RandomFeatures(nn.Module):
    """(..., D) -> (..., count). The directions (count, D) follow a model, but are not saved."""

    def __init__(self, directions):
        super().__init__()
        self.register_buffer("directions", directions.float(), persistent=False)

    def forward(self, x):
        count, D = self.directions.shape
        x = x / D**0.25
        exponent = x @ self.directions.T.to(x) - x.square().sum(-1, keepdim=True) / 2
        # At most exp(35), so that sums stay finite in float32.
        return exponent.clamp_max(35).exp() / math.sqrt(count)
