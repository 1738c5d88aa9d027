"""T5's relative bias: scores plus a learned number for the distance (arXiv:1910.10683).

`masks.VISIBLE` names it: `python train.py --visible=t5:4 --position=none`. Each layer has its own.
"""

import math

import torch
import torch.nn as nn


class T5(nn.Module):
    """The past, with a learned bias for each of H heads and 32 buckets of distances.

    Each distance below 16 has a bucket; from there on they widen, up to a distance of 128.
    """

    def __init__(self, H):
        super().__init__()
        if H < 1:
            raise ValueError(f"t5(H={H}): the number of heads must be at least 1")
        self.weight = nn.Parameter(torch.zeros(H, 1, 32))  # of three dimensions: no matrix for Muon

    def forward(self, i, j):
        return j <= i

    def bias(self, i, j, dtype=torch.float32):
        distance = (i - j).clamp_min(0)
        octaves = torch.log2(distance.clamp_min(16) / 16)  # 3 at a distance of 128
        wide = (16 + octaves * 16 / math.log2(128 / 16)).long().clamp_max(31)
        bucket = torch.where(distance < 16, distance, wide)
        return self.weight[:, 0, bucket].to(dtype)
