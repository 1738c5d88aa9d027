"""Why attention won: no word waits for another. And why its score is a product.

    python -m experiments.parallel [--seeds=5]

Claims (Vaswani et al. 2017, arXiv:1706.03762): a recurrent layer computes n positions in n steps,
each of which waits for the one before; self-attention computes all at once, but in n² time (table
1). Dot scores are much faster than additive ones and need less memory (section 3.2.1). The price is
paid where a text is written: a recurrent layer takes the same time for each new word, attention
looks at all before it (Katharopoulos et al. 2020, arXiv:2006.16236).

A GRU and a block of a GPT with as many weights read one sequence, forwards and backwards, and then
one position more. Scores are those of masked_fill, which holds them all. Then language models of
two layers, by GRU and by attention, of three sizes and with as many weights, learn from the same
bytes in the same number of steps.

Found (5 repeats in turns, width 64, processor time of one thread, Intel Xeon): a training step
takes 1.2, 4.5, 18, 83 and 416 ms for 16, 64, 256, 1,024 and 4,096 positions by GRU, and 0.4, 0.6,
1.5, 9.2 and 92 ms by attention. So it is up to 12 times as fast, at 256; from there on n² takes the
lead back. One thread wins no more than products of matrices in place of steps of vectors; where 16
texts make matrices of the GRU's steps, too, it is 2.0 times as fast at most, slower from 1,024
positions on, and 2.4 times slower at 4,096. Two threads (the time that passes; the load of the
machine before is in the record) make attention faster, 90 ms for 164 at 1,024 positions, and the
GRU, whose steps wait for each other, slower: then attention is 3.2 times as fast at 64 positions,
1.6 times at 1,024, and 1.3 times slower at 4,096. In decoding the GRU is faster: 0.03 ms at any
length, for 0.10 to 0.27 ms. Of 512 positions, additive scores take 185 ms and 201 MB, dot scores
2.8 ms and 3.9 MB.

But the GRU learns more from the same data (5 seeds, 400 steps of 16 texts of 64 bytes): 1.900 ±
0.004, 1.648 ± 0.002 and 1.505 ± 0.003 nats with 41, 131 and 459 thousand weights, the GPT 2.137 ±
0.012, 1.962 ± 0.007 and 1.891 ± 0.004, in 0.6 to 0.8 of the time. In equal time, too, the GRU is
ahead. That is at the beginning of training, with a short context; larger models and longer training
were not tried.
"""

import itertools
import os
import time
from functools import partial

import torch
import torch.nn as nn

from attention import SCORE, masked_fill
from experiments.shared import trials
from experiments.shared.trials import megabytes, milliseconds
from model import Block, GPTConfig

WIDTH = 64
T = 64  # of the texts to learn
GRU = "GRU"
LAYERS = GRU, "attention"
SCORES = "additive", "dot"
LENGTHS = {LAYERS: [16, 64, 256, 1024, 4096], SCORES: [64, 128, 256, 512]}
WEIGHTS = "weights in thousands"
SIZES = {41: (40, 32), 131: (84, 64), 459: (176, 128)}  # widths of LAYERS for these
RATES = 1e-2, 5e-3  # the best of 1e-2 and 3e-2, and of 5e-3, 1e-2 and 2e-2, on another seed
LOSS = "validation loss of a language model"
SECONDS = "seconds of its training"


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


batched = partial(training_step, texts=16)
MEASURED = {
    "a training step (ms)": (training_step, milliseconds, LAYERS),
    "a decoding step (ms)": (decoding_step, milliseconds, LAYERS),
    "a head with these scores (ms)": (scoring, milliseconds, SCORES),
    "a head with these scores (MB)": (scoring, megabytes, SCORES),
    "a training step of 16 texts (ms)": (batched, milliseconds, LAYERS),
    "the same, two threads (ms)": (batched, partial(milliseconds, threads=2), LAYERS),
}


def costs():
    """Measure all once; return {what: {name: {length: value}}}."""
    found = {}
    for what, (make, measure, names) in MEASURED.items():
        found[what] = {name: {} for name in names}
        for n, name in itertools.product(LENGTHS[names], names):
            found[what][name][n] = measure(make(name, n))
    return found


# ---- What is learned


class Recurrent(nn.GRU):
    """Takes and gives what a block of a GPT does."""

    def forward(self, x, *_):
        states, _ = super().forward(x)
        return states


def new_model(name, width):
    """Return a GPT of two layers, or one with a GRU in their place."""
    model = trials.new_gpt(block_size=T, n_head=4, n_embd=width, position="rope", mlp="relu2")
    if name == GRU:
        model.transformer.h = nn.ModuleList([Recurrent(width, width, 2, batch_first=True)])
        nn.init.normal_(model.transformer.wte.weight)  # no norm makes it larger
    return model


def learn(config, seed):
    """Train models of each size; return {what: {name: {size: value}}}."""
    found = {what: {name: {} for name in LAYERS} for what in (LOSS, SECONDS)}
    for size, widths in SIZES.items():
        for name, width, rate in zip(LAYERS, widths, RATES):
            model = new_model(name, width)
            start = time.process_time()
            found[LOSS][name][size] = trials.fit_text(model, T, config, seed, rate)
            found[SECONDS][name][size] = time.process_time() - start
    return found


def main(config):
    load = os.getloadavg()  # of other programs
    rounds = []
    for _ in range(config.seeds):
        rounds += trials.run_jobs(costs, [()])  # alone
    runs = trials.run_together(learn, config)
    curves = trials.by_title(rounds)
    learned = trials.by_title(runs)
    tables = trials.make_tables("length", curves) | trials.make_tables(WEIGHTS, learned)
    figure, panels = trials.draw_curves(15, f"length, or {WEIGHTS}", curves | learned, rows=2)
    for panel in panels:
        panel.set_yscale("log")
        panel.legend()
    trials.write_result("parallel", config, tables, figure, costs=rounds, runs=runs, load=load)


if __name__ == "__main__":
    trials.run_script(main)
