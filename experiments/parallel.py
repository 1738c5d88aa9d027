"""Why attention won: no word waits for another. And why its score is a product.

    python -m experiments.parallel [--seeds=5]

Claims (Vaswani et al. 2017, arXiv:1706.03762): a recurrent layer computes n positions in n steps,
each of which waits for the one before; self-attention computes all at once, but in n² time (table
1). Dot scores are much faster than additive ones and need less memory (section 3.2.1). The price is
paid where a text is written: a recurrent layer takes the same time for each new word, attention
looks at all before it (Katharopoulos et al. 2020, arXiv:2006.16236).

A GRU and a block of a GPT with as many weights read one sequence, forwards and backwards, and then
one position more. Scores are those of masked_fill, which holds them all.

Found (5 repeats in turns, width 64, processor time of one thread, Intel Xeon): a training step
takes 1.6, 5.95, 24.9, 130 and 599 ms for 16, 64, 256, 1,024 and 4,096 positions by GRU, and 0.5,
0.8, 2.0, 12.6 and 126 ms by attention. So it is up to 12 times as fast, at 256; from there on n²
takes the lead back. One thread wins no more than products of matrices in place of steps of vectors;
where 16 texts make matrices of the GRU's steps, too, it is 2.1 times as fast at most, as fast at
1,024 positions, and 2.4 times slower at 4,096. What many cores win by not waiting is not measured.
In decoding the GRU is faster: 0.03 ms at any length, for 0.11 to 0.40 ms. Of 512 positions,
additive scores take 93 ms and 201 MB, dot scores 4.0 ms and 3.9 MB.
"""

import itertools
from functools import partial

import torch
import torch.nn as nn

from attention import SCORE, masked_fill
from experiments.shared import trials
from experiments.shared.trials import megabytes, milliseconds
from model import Block, GPTConfig

WIDTH = 64
GRU = "GRU"
LAYERS = GRU, "attention"
SCORES = "additive", "dot"
LENGTHS = {LAYERS: [16, 64, 256, 1024, 4096], SCORES: [64, 128, 256, 512]}


# ---- What is measured: functions of a name and a length give a call


def new_layer(name):
    """Return a layer (B, T, WIDTH) -> (B, T, WIDTH). Each has matrices of 6 WIDTH² weights."""
    if name == GRU:
        return nn.GRU(WIDTH, WIDTH, batch_first=True)
    return Block(GPTConfig(n_embd=WIDTH, n_head=4, mlp_size=WIDTH), 0)


def training_step(name, n, texts=1):
    layer = new_layer(name)
    x = torch.randn(texts, n, WIDTH)

    def step():
        y = layer(x)
        states = y[0] if name == GRU else y
        states.sum().backward()

    return step


def decoding_step(name, n):
    """The position after n others."""
    layer = new_layer(name).requires_grad_(False)
    x = torch.randn(1, n + 1, WIDTH)
    past, new = x.split([n, 1], 1)
    if name == GRU:
        _, state = layer(past)
        return lambda: layer(new, state)
    cache = layer.attn.new_cache(1, n + 1)
    layer(past, cache=cache)

    def step():
        layer(new, cache=cache)
        cache.trim(n)

    return step


def scoring(name, n):
    """One head, forwards and backwards."""
    q, k, v = torch.randn(3, 1, 1, n, WIDTH, requires_grad=True)
    score = SCORE[name](WIDTH)
    return lambda: masked_fill(q, k, v, score=score).sum().backward()


MEASURED = {
    "a training step (ms)": (training_step, milliseconds, LAYERS),
    "a training step (MB)": (training_step, megabytes, LAYERS),
    "a decoding step (ms)": (decoding_step, milliseconds, LAYERS),
    "a head with these scores (ms)": (scoring, milliseconds, SCORES),
    "a head with these scores (MB)": (scoring, megabytes, SCORES),
    "a training step of 16 texts (ms)": (partial(training_step, texts=16), milliseconds, LAYERS),
}


def costs():
    """Measure all once; return {what: {name: {length: value}}}."""
    found = {}
    for what, (make, measure, names) in MEASURED.items():
        found[what] = {name: {} for name in names}
        for n, name in itertools.product(LENGTHS[names], names):
            found[what][name][n] = measure(make(name, n))
    return found


def main(config):
    rounds = []
    for _ in range(config.seeds):
        rounds += trials.run_jobs(costs, [()])  # alone
    curves = trials.by_title(rounds)
    tables = trials.make_tables("length", curves)
    figure, panels = trials.draw_curves(20, "length", curves)
    for panel in panels:
        panel.set_yscale("log")
        panel.legend()
    trials.write_result("parallel", config, tables, figure, costs=rounds)


if __name__ == "__main__":
    trials.run_script(main, trials.Repeats)
