"""Generating text, one token after another."""

import torch

from engine.common.threads import FreeCores
from engine.decoding.session import next_token
from engine.decoding.speculation import propose, verify


@torch.no_grad()
def stream(session, max_new_tokens, sampling, random, vocab_size=None, guess=None, most_guesses=8):
    """Continue the texts of a session: yield (ids (B,), logits (B, V)) of one token after another.

    random: a RandomStream. Ids from vocab_size on are never sampled: the padding of a vocabulary
    has no text. guess: as in speculation, for one text; most_guesses: how many at a time.
    """
    cores = FreeCores()
    end = session.length + max_new_tokens
    while session.length < end:
        with cores:
            most = min(most_guesses, end - session.length - 1)
            guesses = propose(session, guess, most) if guess and most else []
            if guesses:
                tokens = verify(session, guesses, sampling, random, vocab_size)
            else:
                tokens = [next_token(session, sampling, random, vocab_size)]
        yield from tokens
