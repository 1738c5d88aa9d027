"""A gate on the heads' outputs (Qiu et al. 2025, arXiv:2505.06708): `--mixer=gated`.

A head that found nothing can then say so, which softmax, whose weights sum to one, does not allow.
"""

import torch.nn as nn

from attention import SelfAttention


class GatedAttention(SelfAttention):
    """Each number that the heads return is multiplied by a sigmoid of the layer's input."""

    def __init__(self, n_embd, *sizes, **settings):
        super().__init__(n_embd, *sizes, **settings)
        self.c_gate = nn.Linear(n_embd, self.c_proj.in_features, bias=False)

    def forward(self, x, rope=None, cache=None):
        y = self.attend(x, rope, cache) * self.c_gate(x).sigmoid()
        return self.dropout(self.c_proj(y))
