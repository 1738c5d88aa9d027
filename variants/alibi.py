"""ALiBi: scores that fall with the distance, in place of positions (arXiv:2108.12409).

`masks.VISIBLE` names it: `python train.py --visible=alibi:4 --position=none`.
"""

import torch


def alibi(H):
    """The past, with scores that fall with the distance, at another rate in each of H heads."""
    if H < 1:
        raise ValueError(f"alibi(H={H}): the number of heads must be at least 1")

    def visible(i, j):
        return j <= i

    def bias(i, j, dtype=torch.float32):
        slopes = 2.0 ** (-8 * torch.arange(1, H + 1, device=j.device, dtype=dtype) / H)
        distance = i - j
        return -slopes.view(-1, *[1] * distance.dim()) * distance

    visible.bias = bias
    return visible
