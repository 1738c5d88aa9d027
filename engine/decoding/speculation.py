"""Guessing tokens, and reading several guesses at once, which costs little more than reading one.

A guess is kept as long as it equals the token that is sampled in its place. So the text is the same
as without guesses, except for rounding, and as random: it only comes sooner (speculative decoding,
Leviathan et al. 2022, arXiv:2211.17192).

guess(session, sampler, most) returns a list of at most `most` ids that may follow the session's one
text.
"""

import numpy as np

from engine.decoding.sampling import sample_next_token
from engine.decoding.session import Session, next_token

GUESSES = 8  # at a time


def propose(session, sampler, guess, most):
    """Return guesses, at most `most` and no more than the context has room for."""
    guesses = guess(session, sampler, most)
    T = session.length
    context_start = session.model.context_start
    while guesses and context_start(T + len(guesses)) != context_start(T):
        guesses.pop()
    return guesses


def verify(session, sampler, guesses):
    """Add the right guesses and one token more. Returns (ids (1,), logits (1, V)) of each."""
    begin = session.length
    session.append(session.ids.new_tensor([guesses]))
    logits = session.logits(1 + len(guesses))
    tokens = []
    for n, guess in enumerate([*guesses, None]):
        token = sample_next_token(logits[:, n], *sampler.inputs(session, begin + n))
        tokens.append((token, logits[:, n]))
        if token.item() != guess:
            break
    session.trim(begin + n)
    session.append(token[:, None])
    return tokens


def ngram(session, sampler, most):
    """Guess what followed the last time that the text ended as it ends now.

    Text repeats itself more often than one expects.
    """
    text = session.text().cpu().numpy()
    for n in range(min(4, len(text) - 1), 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
        found = (windows == text[-n:]).all(axis=1).nonzero()[0]
        if len(found):
            after = found[-1] + n
            return text[after : after + most].tolist()
    return []


class Draft:
    """Guesses by a smaller model of the same vocabulary, sampled with the same random numbers."""

    def __init__(self, model):
        self.model = model
        self.session = None

    def __call__(self, session, sampler, most):
        draft = self.session or Session(self.model, [session.text()])
        self.session = None  # lost if something interrupts

        # Remove what differs from the text, add what is new; at least one token is left to read.
        text = session.text()
        same = min(draft.length, len(text) - 1)
        different = (draft.ids[0, :same] != text[:same]).nonzero()
        draft.trim(int(different[0]) if len(different) else same)
        draft.append(text[None, draft.length :])

        for _ in range(most):
            next_token(draft, sampler)
        self.session = draft
        return draft.text()[len(text) :].tolist()
