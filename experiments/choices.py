"""One GPT with other attention: how many heads, in which subspaces, how sharp, how far, how wide.

    python -m experiments.choices [--seeds=5]

Claims (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2): one head is not enough, because it
averages what several would keep apart, and heads specialise because each has a subspace of its own.
Sparse weights (Martins and Astudillo 2016, arXiv:1602.02068) are easier to read and cost less.
Chunks, which do not see each other, approximate attention, and lose something. Keys to be found by
and values to be read need two matrices, where earlier attention has one vector for both (Bahdanau
et al. 2014, arXiv:1409.0473; Luong et al. 2015, arXiv:1508.04025).

All models have as many parameters and the same learning rate, not tuned for each. How much heads
differ is half the sum of |w - w'| over keys: 0 for equal weights, 1 if no key is in common.

Found (5 seeds, 300 steps): four heads have 2.075 ± 0.009 nats, one 2.128 ± 0.003. Four that share
W_Q and W_K, so that all look at the same, have 2.144 ± 0.011: it is the subspaces that help. They
need not differ at first: heads that begin with equal ones, and may change, come to differ as much,
0.619 ± 0.023 and 0.609 ± 0.010, and learn as well, 2.072 ± 0.004. sparsemax gives weight to 2.863 ±
0.067 of 32.5 keys and loses nothing, 2.054 ± 0.014; but all scores are made, so nothing is saved.
Chunks of 16 lose nothing here, 2.076 ± 0.006; but a window of 8, which sees as many keys, wins,
1.998 ± 0.008, because no text ends at the border of a chunk. One matrix for keys and values costs
0.11 nats, 2.185 ± 0.005, though the MLP has the parameters that it saves. Values half as wide do as
well, 2.070 ± 0.007, twice as wide worse, 2.219 ± 0.011.
"""

import torch
import torch.nn as nn

from attention import SelfAttention
from experiments.shared import trials
from model import init_weights
from tools.shared.inspection import recording

T = 64  # tokens of a text
WIDTH = 64
SHARED = "4 heads, one W_Q and W_K"
ONE_MATRIX = "4 heads, K = V"
EQUAL = "4 heads, W_Q and W_K equal at first"
KINDS = {
    "1 head": {"n_head": 1},
    "4 heads": {},
    SHARED: {"mlp_size": 304},  # as many parameters as the others
    EQUAL: {},
    "sparsemax": {"normalize": "sparsemax", "attention": "masked_fill"},
    "chunks of 16": {"visible": "chunks:16"},
    "window of 8": {"visible": "sliding_window:8"},
    ONE_MATRIX: {"mlp_size": 288},
    "4 heads, V half as wide": {"value_size": 8, "mlp_size": 288},
    "4 heads, V twice as wide": {"value_size": 32, "mlp_size": 192},
}


class OneMatrix(nn.Linear):
    """x -> queries, keys, and the keys again as values."""

    def forward(self, x):
        q, k = super().forward(x).chunk(2, dim=-1)
        return torch.cat([q, k, k], dim=-1)


def new_model(kind):
    settings = dict(block_size=T, n_head=4, n_embd=WIDTH, position="rope", mlp="relu2")
    model = trials.new_gpt(**settings | KINDS[kind])
    for block in model.transformer.h:
        if kind == SHARED:  # which is one head whose values are those of four
            block.attn = SelfAttention(WIDTH, 1, head_size=16, value_size=WIDTH)
        if kind == ONE_MATRIX:
            block.attn.c_attn = OneMatrix(WIDTH, 2 * WIDTH, bias=False)
    init_weights(model)
    for block in model.transformer.h:
        if kind == EQUAL:
            of_heads = block.attn.c_attn.weight.data.view(3, 4, 16, WIDTH)
            of_heads[:2] = of_heads[:2, :1].clone()
    return model


def run(kind, config, seed):
    """Return a GPT's loss, to how many keys it gives weight, and how far its heads' weights differ.

    0: two heads of a layer have equal weights; 1: they have no key in common.
    """
    model = new_model(kind)
    loss = trials.fit_text(model, T, config, seed, 4e-3)
    x, _ = trials.random_batch(trials.load_text().val, 16, T, seed)
    with recording(model) as maps:
        model(x)
    maps = torch.stack(maps)  # (layers, B, H, T, T)
    keys = (maps > 0).sum(-1).double().mean()
    first, *others = maps.unbind(2)
    distances = [(first - other).abs().sum(-1).mean().item() / 2 for other in others]
    differ = sum(distances) / max(1, len(others))
    return {"validation loss": loss, "keys with a weight": keys.item(), "heads differ": differ}


def main(config):
    runs = trials.run_seeds(run, KINDS, config)
    trials.write_means("choices", config, "the same GPT", "attention", runs)


if __name__ == "__main__":
    trials.run_script(main, steps=300)
