"""Which score finds a key that does not look like its query?

python -m experiments.scores [--seeds=5]
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
    trials.write_means("scores", config, "right keys", "score", runs, SPACES)


if __name__ == "__main__":
    trials.run_script(main)
