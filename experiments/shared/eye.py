"""A vision transformer for the digits of digits.py."""

from dataclasses import replace

import torch.nn as nn
import torch.nn.functional as F

from experiments.shared.digits import DIGITS, SIDE
from model import NORM, Block, Learned, init_weights

PATCH = 2  # pixels of its side
PATCHES = (SIDE // PATCH) ** 2


class Eye(nn.Module):
    """A vision transformer: images (B, 8, 8) -> what it sees in each patch (B, PATCHES, C)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.patch = nn.Linear(PATCH**2, config.n_embd)
        self.wpe = Learned(config)
        no_future = replace(config, visible="full")
        self.h = nn.ModuleList(Block(no_future, n) for n in range(config.n_layer))
        self.ln_f = NORM[config.norm](config)
        self.head = nn.Linear(config.n_embd, len(DIGITS))
        init_weights(self)
        nn.init.normal_(self.wpe.weight)  # as large as the patches, to tell where they were

    def forward(self, x):
        patches = F.unfold(x[:, None], PATCH, stride=PATCH)  # (B, PATCH², PATCHES)
        x = self.patch(patches.mT)
        x = self.wpe.add(x, slice(None))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)

    def classify(self, x):
        """The paper's appendix D.3: the mean of all patches serves as well as a class token."""
        return self.head(self(x).mean(1))
