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
    chosen = torch.rand(ids.shape) < 0.15
    chosen = chosen & (ids > UNKNOWN)
    fate = torch.rand(ids.shape)
    replaced = chosen & (fate < 0.1)
    hidden = chosen & (fate > 0.2)
    random_words = torch.randint(UNKNOWN + 1, V - 1, ids.shape)
    given = random_words.where(replaced, ids)
    given = given.masked_fill(hidden, V - 1)
    return given, ids.where(chosen, -1)


def without_each(ids, V):
    """Return sentences (N, T) that lack one word, its place (N,), and the word (N,)."""
    rows, places = (ids > UNKNOWN).nonzero(as_tuple=True)
    words = ids[rows, places]
    given = ids[rows].scatter(1, places[:, None], V - 1)
    return given, places, words


def guesses(train, ids, places, V):
    """Return {guess: scores (N, V)}, by counting what stands beside what in training."""
    framed = F.pad(train, (1, 0))
    first = framed[:, :-1]
    second = framed[:, 1:]
    pairs = V * first + second
    counts = pairs.flatten().bincount(minlength=V * V)
    counts = counts.view(V, V)
    alone = counts.sum(0) / counts.sum() + 1e-5
    # As if each word had been followed by 5 others before.
    total = counts.sum(1, keepdim=True) + 5
    follows = (counts + 5 * alone) / total
    follows = follows.log()
    n = torch.arange(len(ids))
    before = F.pad(ids, (1, 0))[n, places]
    after = ids[n, places + 1]
    left = follows[before]
    right = follows[:, after].mT
    common = alone.log().expand_as(left)
    scores = torch.stack([common, left, left + right])
    scores[..., : UNKNOWN + 1] = -torch.inf
    return dict(zip(GUESSES, scores))
