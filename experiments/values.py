"""Keys and values: one matrix, or two, and how wide?

    python -m experiments.values [--seeds=5]

Claim: attention needs keys to be found by and values to be read, from two matrices (Vaswani et al.
2017, arXiv:1706.03762), where earlier attention has one vector for both (Bahdanau et al. 2014,
arXiv:1409.0473; Luong et al. 2015, arXiv:1508.04025); values may have another width than keys.

All models but one have equally many parameters: what attention saves or spends, the MLP has more or
less. (Separate keys and values do not double a head's parameters: Wq, Wk, Wv for Wq, Wk are 1.5
times as many.)

Found (3 seeds, 600 steps): separate keys and values have 1.807 ± 0.005 nats, one matrix for both
1.878 ± 0.005 with the same number of parameters (and 1.892 ± 0.010 with fewer): two matrices are
worth it. Values half as wide do as well, 1.808 ± 0.018, twice as wide no better, 1.843 ± 0.016.
"""

import torch
import torch.nn as nn

from attention import SelfAttention
from experiments.shared import trials
from model import init_weights

T = 64  # tokens of a text
H = 4  # heads
WIDTH = 64  # of the model
D = WIDTH // H
KINDS = {  # name: (width of values, whether they are the keys, equal parameters)
    "K and V": (D, False, True),
    "K = V": (D, True, True),
    "K = V, fewer parameters": (D, True, False),
    "V half as wide": (D // 2, False, True),
    "V twice as wide": (2 * D, False, True),
}
# The best of 2e-3, 4e-3, 8e-3 and 16e-3 for each of them, with another seed.
LEARNING_RATE = dict.fromkeys(KINDS, 8e-3) | {"V twice as wide": 4e-3}


class OneMatrix(nn.Linear):
    """x -> queries, keys, and the keys again as values."""

    def forward(self, x):
        q, k = super().forward(x).chunk(2, dim=-1)
        return torch.cat([q, k, k], dim=-1)


def new_model(value_size, shared, equal):
    """Return a GPT whose attention has these values, and whose MLP makes up for it if equal."""
    matrices = 2 + (0 if shared else value_size / D) + value_size / D  # in place of 4
    mlp_size = 4 * WIDTH + round((4 - matrices) * WIDTH / 2) * equal
    model = trials.new_gpt(
        block_size=T, n_head=H, n_embd=WIDTH, position="rope", mlp="relu2", mlp_size=mlp_size
    )
    for block in model.transformer.h:
        block.attn = SelfAttention(WIDTH, H, value_size=value_size)
        if shared:
            block.attn.c_attn = OneMatrix(WIDTH, 2 * WIDTH, bias=False)
    init_weights(model)
    return model


def run(kind, config, seed):
    """Train a GPT; return its number of parameters and its loss."""
    model = new_model(*KINDS[kind])
    loss = trials.fit_text(model, T, config, seed, LEARNING_RATE[kind])
    return {"parameters": model.num_params(), "validation loss": loss}


def draw(runs):
    figure, panel = trials.make_figure(6, 2.6)
    trials.draw_means(panel, runs, "validation loss")
    panel.set_xlabel("validation loss (nats per byte)")
    return figure


def main(config):
    trials.load_text()  # before several processes make it
    runs = trials.run_seeds(run, KINDS, config)
    rows = trials.make_table("model", runs, 4)
    for row, found in zip(rows, runs.values()):
        row["parameters"] = found[0]["parameters"]
    trials.write_result("values", config, {"the same GPT": rows}, draw(runs))


if __name__ == "__main__":
    trials.run_script(main, steps=600)
