"""How attention grows with the length of a text, and what the cheap kinds give up for it.

    python -m experiments.efficient [--seeds=5]

Claim: softmax over all pairs takes O(n²) time and memory; FlashAttention O(n²) time and O(n) memory
(Dao et al. 2022, arXiv:2205.14135); sparse attention O(n·sqrt(n)) (Child et al. 2019,
arXiv:1904.10509), a window O(n) (Longformer, arXiv:2004.05150), and so do linear attention
(Katharopoulos et al. 2020, arXiv:2006.16236), Performer (Choromanski et al. 2021, arXiv:2009.14794)
and Linformer (Wang et al. 2020, arXiv:2006.04768). Keys may be found by content, without scoring
all: shared/buckets.py.

Exponents are slopes of a line through the logarithms of length and cost. A mask of strides goes
through a path that looks at all pairs and hides most of them; the two heads that Child et al. have
for it are written out here, and so is Linformer, whose projections mix all positions: no language
model could be trained with it. Paths that compute the same function share one loss. All models have
one learning rate, not tuned for each.

Found (n = 256 to 8,192, one head of 64 features, one thread, Intel Xeon; 5 seeds of 60 steps): time
grows by n^2.20 ± 0.14 for masked_fill, 1.91 ± 0.07 fused, 1.87 ± 0.05 tiled; 1.08 ± 0.06 for the
window, 1.17 to 1.22 for linear, performer and Linformer. Strided, of n^1.51 ± 0.13 pairs, takes as
a mask n^2.13 ± 0.06 and longer than tiled without it, as two heads n^1.41 ± 0.06. Keys found by
hashes take n^1.08 ± 0.05 and 25 ms at 8,192, by clusters n^1.24 ± 0.06 and 49 ms, where fused looks
at all in 85 ms. Memory grows by n^2.00 ± 0.00 for masked_fill, 940 MB at 8,192, for all others by
no more than n^1.30 ± 0.14: fused 2.9 MB, tiled 4.3 MB. After so short a training on text the kinds
do not differ: losses are 3.059 ± 0.020 for softmax, 3.046 ± 0.016 hashed, 3.030 ± 0.014 clustered,
3.075 ± 0.022 linear. What they forget is in recall.py.
"""

import math
from collections import defaultdict
from functools import partial

import numpy as np
import torch

from attention import FEATURE, fused, linear, masked_fill, tiled
from experiments.shared import trials
from experiments.shared.buckets import SIZE, clustered, hashed
from masks import causal, full, mean_keys, sliding_window, strided
from model import MODERN

D = 64  # size of the head
WINDOW = 64
RANK = 64  # how many keys Linformer makes of all
SHORT = 256  # bytes of the texts of training
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]
TRAINED = {  # settings of the GPTs
    "softmax": {},
    "hashed": {},
    "clustered": {},
    "linear": {"attention": "linear"},
}
BY_CONTENT = {"hashed": hashed, "clustered": clustered}  # paths that a GPT does not know
TITLES = {"ms": "time of a forward pass of one head (ms)", "MB": "its peak memory (MB)"}


# ---- The mechanisms


def stride(n):
    """Return a power of two next to sqrt(n)."""
    return 2 ** (n.bit_length() // 2)


def two_heads(q, k, v):
    """Child et al.: one head looks at the last S positions, the other at every S-th.

    The second is causal attention in the columns of positions that stand in rows of S.
    """
    S = stride(q.shape[2])
    local = fused(q, k, v, sliding_window(S))
    columns = []
    for x in q, k, v:
        rows = x.unflatten(2, (-1, S))  # (B, H, n/S, S, D)
        rows = rows.transpose(2, 3)
        columns.append(rows.flatten(1, 2))  # (B, H·S, n/S, D)
    y = fused(*columns)
    y = y.unflatten(1, (-1, S))
    y = y.transpose(2, 3)
    return local, y.flatten(2, 3)  # both (B, H, n, D)


def linformer(q, k, v, E, F):
    """Keys and values (B, G, n, D) become RANK mixtures of them, by matrices E and F (RANK, n)."""
    return fused(q, E @ k, F @ v, full)


def mechanisms(n):
    """Return {name: (path, keys or features that a query is compared with, name in TRAINED)}."""
    window = sliding_window(WINDOW)
    strides = strided(stride(n))
    random = torch.Generator().manual_seed(0)
    E, F = torch.randn(2, RANK, n, generator=random) / math.sqrt(n)
    found = {}
    for path in masked_fill, fused, tiled:  # all compute the same function
        found[path.__name__] = path, mean_keys(causal, n), "softmax"
    path = partial(fused, visible=window)
    found[f"sliding window, {WINDOW}"] = path, mean_keys(window, n), None
    path = partial(tiled, visible=strides)
    found["strided, as a mask"] = path, mean_keys(strides, n), None
    found["strided, as two heads"] = two_heads, mean_keys(strides, n), None
    for name, size in ("hashed", SIZE), ("clustered", stride(n)):
        found[name] = BY_CONTENT[name], 2 * size, name
    for name, make in FEATURE.items():
        feature = make(D)
        features = feature(torch.zeros(1, D)).shape[1]
        found[name] = partial(linear, feature=feature), features, name
    found[f"Linformer, {RANK}"] = partial(linformer, E=E, F=F), RANK, None
    return found


# ---- Runs


@torch.no_grad()
def costs():
    """Return {"pairs", "ms" and "MB" of a forward pass of one head: {mechanism: {n: value}}}."""
    found = {what: defaultdict(dict) for what in ("pairs", "ms", "MB")}
    for n in LENGTHS:
        q, k, v = torch.randn(3, 1, 1, n, D)
        for name, (path, keys, _) in mechanisms(n).items():
            call = partial(path, q, k, v)
            found["pairs"][name][n] = n * keys
            found["ms"][name][n] = trials.milliseconds(call)
            found["MB"][name][n] = trials.megabytes(call)
    return found


def exponent(costs):
    """Return p of cost = c·n^p, for costs {n: cost}, ± its standard error.

    A line is fitted to the logarithms of the upper half of the lengths.
    """
    points = np.log([*costs.items()])
    x, y = points[len(points) // 2 :].T
    line, covariance = np.polyfit(x, y, 1, cov=True)
    return f"{line[0]:.2f} ± {math.sqrt(covariance[0, 0]):.2f}"


def run(name, config, seed):
    """Return the validation loss of a GPT."""
    settings = MODERN | TRAINED[name]
    model = trials.new_gpt(block_size=SHORT, n_head=1, n_embd=D, **settings)
    if name in BY_CONTENT:
        for block in model.transformer.h:
            block.attn.attention = BY_CONTENT[name]
    return trials.fit_text(model, SHORT, config, seed, 3e-3, batch_size=8)


def draw(found):
    """Draw time and memory against the length."""
    curves = {}
    for what, title in TITLES.items():
        curves[title] = {name: [points] for name, points in found[what].items()}
    figure, panels = trials.draw_curves(12, "length n", curves)
    for panel in panels:
        panel.set_yscale("log")
    panel.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # ten kinds would cover the curves
    return figure


def main(config):
    [found] = trials.run_jobs(costs, [()])  # before the other cores are busy
    losses = trials.run_seeds(run, TRAINED, config)

    rows = []
    for name, (_, _, trained) in mechanisms(SHORT).items():
        row = {"attention": name}
        for what, spent in found.items():
            row[f"{what} ~ n^"] = exponent(spent[name])
        for what in TITLES:
            row[f"{what}, n = {LENGTHS[-1]}"] = found[what][name][LENGTHS[-1]]
        row["validation loss"] = trials.plus_minus(losses[trained]) if trained in losses else None
        rows.append(row)
    tables = {"how cost grows, and what is learned": rows}
    trials.write_result("efficient", config, tables, draw(found), costs=found, losses=losses)


if __name__ == "__main__":
    trials.run_script(main, steps=60)
