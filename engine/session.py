"""Texts that grow together, and the cache of what the model has read: prefill, decode_one_token.

It is fast because little is computed twice. Keys and values of the past stay in a cache; a prompt
that several texts share is read once; and all texts are decoded as one batch, since reading a
weight for ten rows costs little more than for one.
"""

import torch

from engine.sampling import sample_next_token


def prefill(model, idx, cache):
    """Read idx (B, T) after what cache holds. Returns the logits (B, 1, V) of what follows."""
    return model.lm_head(model.hidden(idx, cache)[:, -1:])


def decode_one_token(model, token, cache):
    """Read one more token (B, 1). Returns the logits (B, 1, V) of what follows it."""
    return model.lm_head(model.hidden(token, cache))


def next_token(session, sampler):
    """Add a token to each text. Returns their ids (B,) and the logits (B, V) of all."""
    inputs = sampler.inputs(session)
    if session.compiled and session.context_starts() == session.starts:  # the cache has room
        ids, logits = session.compiled(session, *inputs)
    else:
        logits = session.logits()[:, -1]
        ids = sample_next_token(logits, *inputs)
    check_finite(logits)
    session.append(ids)
    return ids, logits


def check_finite(logits):
    """ValueError for an overflow of float16: one anywhere in the model ends up here."""
    if logits.dtype == torch.float16 and not logits.isfinite().all():
        raise ValueError(
            "this model computes numbers that are too large for float16: try --dtype=float32"
        )


class Session:
    """Tokens of a batch of texts, and the model's cache of them.

    prompts: 1-D tensors of ids, one for each text. room: tokens that will be added to each, at
    most. All texts end at the same column of ids (B, T); a shorter one begins later, at begin[row].
    Its first id stands before it too, and in the columns that are still empty, where a penalty on
    repetition finds nothing new. A full context moves on at model.context_start, for each text by
    itself.

    compiled: a CompiledStep, or None. The shapes of its session never change.
    """

    def __init__(self, model, prompts, room, use_cache=True, compiled=None):
        self.model = model
        self.use_cache = use_cache
        self.compiled = compiled
        self.length = max(map(len, prompts))
        self.begin = [self.length - len(prompt) for prompt in prompts]
        columns = self.length + room
        if compiled:
            columns += -columns % 256  # few sizes, for each of which the step is compiled
        device = model.transformer.wte.weight.device
        self.ids = torch.zeros(len(prompts), columns, dtype=torch.long, device=device)
        for row, begin, prompt in zip(self.ids, self.begin, prompts):
            row[:] = prompt[0]
            row[begin : self.length] = prompt
        self.cache = None
        self.starts = None  # the columns where the cached contexts begin

    def append(self, ids):
        """Add a token to each text, ids (B,), which the cache lacks until logits() reads it."""
        self.ids[:, self.length] = ids
        self.length += 1

    def context_starts(self):
        """Return the column where the context of each text begins."""
        return [begin + self.model.context_start(self.length - begin) for begin in self.begin]

    @torch.inference_mode()
    def logits(self):
        """Read the last token, or all. Returns the logits (B, 1, V) of what follows each text."""
        starts = self.context_starts()
        if starts == self.starts and self.use_cache:
            return decode_one_token(self.model, self.last(), self.cache)
        return self.read_all(starts)

    def last(self):
        """Return the last token of each text, (B, 1)."""
        return self.ids[:, self.length - 1 : self.length]

    def read_all(self, starts):
        """Fill an empty cache from each text's start. Texts that are equal are read once."""
        # Column 0 is the padding of a row, and its ids follow.
        left = min(starts)
        ids = self.ids[:, left : self.length].tolist()
        texts = [(start - left, *row) for start, row in zip(starts, ids)]
        # A compiled step knows the memory of the cache, in which each text has its row.
        unique = texts if self.compiled else list(dict.fromkeys(texts))
        table = self.ids.new_tensor(unique)
        padding = table[:, 0].contiguous() if max(starts) > left else None

        cache = self.empty_cache(len(unique))
        for layer in cache:
            layer.reset(padding)
        logits = prefill(self.model, table[:, 1:], cache)

        if len(unique) < len(texts):
            rows = [unique.index(text) for text in texts]
            logits = logits[rows]
            cache = [layer.select(rows) for layer in cache]
        self.cache = cache
        self.starts = starts
        return logits

    def empty_cache(self, batch_size):
        """Return a cache of a size that does not depend on the texts: a step is compiled once."""
        self.cache = None  # never two in memory
        max_len = min(self.model.config.block_size, self.ids.shape[1])
        if self.compiled:
            return self.compiled.empty_cache(self.model, batch_size, max_len)
        return self.model.new_cache(batch_size, max_len)
