"""Words that are left out of sentences, and what can be said about them by counting.

Words (B, T) are numbered from 2 to V - 2. V - 1 is the blank, 0 the padding after a sentence.
"""

import torch
import torch.nn.functional as F

PAD, UNKNOWN = 0, 1
GUESSES = "commonest word", "follows the word before", "fits both neighbours"


def corrupted(ids, V):
    """Choose 15 % of the words; of these, 80 % become a blank, 10 % a random word, 10 % stay.

    Return sentences (B, T), and the words that were chosen, elsewhere -1.
    """
    chosen = (torch.rand(ids.shape) < 0.15) & (ids > UNKNOWN)
    fate = torch.rand(ids.shape)
    random_words = torch.randint(UNKNOWN + 1, V - 1, ids.shape)
    given = torch.where(chosen & (fate < 0.1), random_words, ids)
    return given.masked_fill(chosen & (fate > 0.2), V - 1), ids.where(chosen, -1)


def without_each(ids, V):
    """Return sentences (N, T) that lack one word, its place (N,), and the word (N,)."""
    rows, places = (ids > UNKNOWN).nonzero(as_tuple=True)
    words = ids[rows, places]
    given = ids[rows].scatter(1, places[:, None], V - 1)
    return given, places, words


def guesses(train, ids, places, V):
    """Return {guess: scores (N, V)}, by counting what stands beside what in training."""
    framed = F.pad(train, (1, 0))
    pairs = framed[:, :-1] * V + framed[:, 1:]
    counts = torch.bincount(pairs.flatten(), minlength=V * V).view(V, V)
    alone = counts.sum(0) / counts.sum() + 1e-5
    # As if each word had been followed by 5 others before.
    follows = (counts + 5 * alone) / (counts.sum(1, keepdim=True) + 5)
    before = F.pad(ids, (1, 0)).gather(1, places[:, None])[:, 0]
    after = ids.gather(1, places[:, None] + 1)[:, 0]
    left = follows.log()[before]
    right = follows.log()[:, after].mT
    scores = torch.stack([alone.log().expand_as(left), left, left + right])
    scores[..., : UNKNOWN + 1] = -torch.inf
    return dict(zip(GUESSES, scores))
