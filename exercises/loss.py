"""Loss: a causal model learns to say the next token.

Write shift(tokens, T): cut a long text (N) into rows (rows, T) of inputs and of targets:
    tokens 0 1 2 3 4 5 6 7, T = 3       inputs 0 1 2      targets 1 2 3
                                               3 4 5              4 5 6
a target is the token after its input; rows follow one another, and what fills none is left out.
Write causal_loss(logits, ids, learned), the mean cross-entropy in nats of one batch:
    logits (B, T, V)    those of position t are of token t + 1: it has seen the tokens up to t
    ids (B, T)          the first token is predicted by nobody, the last logits predict nothing
    learned (B, T)      True for tokens that are to be learned: no padding, and of a conversation
                        the answers alone. The mean is over these:
        ids          question  question  answer  end   padding
        learned         ·         ·        ■      ■       ·
        predicted by              0        1      2       3          position of the logits
Radford et al. 2018 (GPT), section 3.1; Bengio et al. 2003.
"""

import torch
import torch.nn.functional as F

from exercises.shared.cases import random


def shift(tokens, T):
    # The last row needs one token more, as its last target.
    rows = (len(tokens) - 1) // T
    inputs = tokens[: rows * T]
    targets = tokens[1 : rows * T + 1]
    return inputs.view(rows, T), targets.view(rows, T)


def causal_loss(logits, ids, learned):
    # Drop the last logits, the first id and whether it is learned: what is left belongs together.
    nats = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
    mask = learned[:, 1:]
    return (nats * mask).sum() / mask.sum()


MISTAKES = {
    "shift: the last target of a row is its first input (roll)": {
        "tokens[1 : rows * T + 1]": "inputs.view(rows, T).roll(-1, 1)"
    },
    "causal_loss: logits are shifted, and ids are not": {
        "logits[:, :-1]": "logits[:, 1:]",
        "ids[:, 1:]": "ids[:, :-1]",
    },
    "causal_loss: it is the mean of the texts' means": {
        "(nats * mask).sum() / mask.sum()": "((nats * mask).sum(1) / mask.sum(1)).mean()"
    },
}
READ_ON = "engine/text/dataset.py: how batches are cut; model.py: GPT.forward"


def cases():
    for N, T in (8, 3), (10, 3), (9, 4):
        yield f"N={N}, T={T}", "shift", torch.arange(N).square(), T
    sizes = "B=2, T=5, V=7"
    ids = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 0]])
    learned = torch.tensor([[0, 0, 1, 1, 0], [1, 1, 0, 1, 1]]).bool()
    yield f"{sizes}, all learned", "causal_loss", *random(sizes, "B T V"), ids, learned | True
    yield f"{sizes}, 5 learned", "causal_loss", *random(sizes, "B T V"), ids, learned
