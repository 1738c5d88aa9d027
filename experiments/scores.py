"""Which score finds a key that does not look like its query?

    python -m experiments.scores [--seeds=5]

Claim: dot products ask that queries and keys be aligned in one space; the additive score of
Bahdanau et al. 2014 (arXiv:1409.0473) is a network and needs no such thing, general (Luong et al.
2015, arXiv:1508.04025) has a matrix that may align them.

A query is to find its own key among 32. The key is the same vector, or that vector turned, or
turned and without its signs: then no matrix leads from one to the other. Only the score learns.

Found (5 seeds, 400 steps): where query and key are the same, dot finds 0.984 ± 0.000 and general
0.984 ± 0.000; turned, general 0.985 ± 0.001 and dot 0.004 ± 0.001. Folded, additive finds 0.937 ±
0.008, general 0.037 ± 0.001: so where no matrix aligns them, additive is better. But in the first
two it guesses, 0.036 ± 0.001 and 0.030 ± 0.001: without a bias it is odd, the score of -q and -k is
minus that of q and k, so that not both can be high. A perceptron, which has one, finds 1.000 ±
0.000, 1.000 ± 0.000 and 0.893 ± 0.036.
"""

import torch
import torch.nn.functional as F

from attention import SCORE
from experiments.shared import trials

D = 16  # numbers of a query, and of a key
KEYS = 32  # of which one is right
SCORES = "dot", "general", "additive", "mlp"
SPACES = {  # how a key is made of what its query is
    "the same": lambda x, turn: x,
    "turned": lambda x, turn: x @ turn,
    "turned and folded": lambda x, turn: (x @ turn).abs(),
}


def run(name, config, seed):
    """Return {space: how often a score, once trained, finds the key of a query}."""
    right = torch.arange(KEYS)
    found = {}
    for space, key_of in SPACES.items():
        turn, _ = torch.linalg.qr(torch.randn(D, D))
        score = SCORE[name](D)

        def scores(number):
            q = torch.randn(number, 1, KEYS, D)
            return score(q, key_of(q, turn))[:, 0]  # (number, KEYS, KEYS)

        def loss(step):
            return F.cross_entropy(scores(32).mT, right.expand(32, -1))

        if name != "dot":  # which has nothing to learn
            trials.fit(score, loss, config.steps, 1e-2)
        found[space] = trials.accuracy(scores(200), right)
    return found


def main(config):
    runs = trials.run_seeds(run, SCORES, config)
    trials.write_means("scores", config, "right keys", "score", runs)


if __name__ == "__main__":
    trials.run_script(main)
