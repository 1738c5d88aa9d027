"""Search: write to the end of the sentence, and as probable a text as can be.

log_probs(text) is given: for a list of ids so far it returns a tensor (V), the log-probability of
each next id. A text's score is the sum of those of its ids, that of `end` included. Write
    greedy(log_probs, end, longest)         -> text, score    add the most probable next id, until
                                                              `end` is added, or `longest` ids are
    beam(log_probs, end, longest, width)    -> text, score    keep not one text, but `width`:
    all continuations compete:   a 0.5         b 0.4         end 0.1        a and b are kept
                                 aa 0.15       ab 0.15       a end 0.20     greedy's text
    with width = 2               ba 0.02       bb 0.02       b end 0.36     the better one
Texts that have ended compete as they are. Of all texts the `width` of the largest score are kept,
until all of them have ended or have `longest` ids. Return the one of these whose score / number of
ids is largest, and its score: by the sum alone, short texts would win.
Sutskever et al. 2014, arXiv:1409.3215; Wu et al. 2016, arXiv:1609.08144.
"""

import torch


def greedy(log_probs, end, longest):
    text = []
    score = 0.0
    for _ in range(longest):
        if text[-1:] != [end]:
            more = log_probs(text)
            text = [*text, int(more.argmax())]
            score = score + more.max()
    return text, score


def beam(log_probs, end, longest, width):
    def longer(text, score):
        # Slices, as text[-1:], are right for an empty text too.
        if text[-1:] == [end]:
            return [(text, score)]
        return [([*text, id], score + p) for id, p in enumerate(log_probs(text))]

    kept = [([], 0.0)]
    for _ in range(longest):
        texts = [more for text, score in kept for more in longer(text, score)]
        # By the sum: the mean decides at the end, between texts of all lengths.
        kept = sorted(texts, key=lambda kept: -kept[1])[:width]
    return max(kept, key=lambda kept: kept[1] / len(kept[0]))


# Read on: experiments/shared/translation.py: search, for a batch of sentences at once
def cases():
    table = torch.tensor([[0.3, 0.3, 0.4], [0.05, 0.05, 0.9], [0.5, 0.4, 0.1]]).double()
    for width in 1, 2:
        yield f"greedy is not best, width={width}", with_table, table, 4, width
    torch.manual_seed(5)  # tables in which all that is known to be wrong shows
    for V, width in [(4, 2), (5, 3), (6, 2)] * 8:
        table = torch.randn(V, V).double().softmax(-1)
        yield f"random table of {V} ids, width={width}", with_table, table, 6, width


def with_table(theirs, table, longest, width):
    """table (V, V): the next id's probabilities after each id; the longer a text, the surer."""

    def log_probs(text):
        return (table.detach()[[-1, *text][-1]].log() * (1 + len(text) / 9)).log_softmax(-1)

    one = theirs.greedy(log_probs, len(table) - 1, longest)
    best = theirs.beam(log_probs, len(table) - 1, longest, width)
    return torch.tensor(one[0]), one[1], torch.tensor(best[0]), best[1]
