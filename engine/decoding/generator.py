"""Many texts, a batch at a time, or one conversation."""

import math
from dataclasses import dataclass

import torch

from engine.decoding.compiled import compile_step
from engine.decoding.generation import stream
from engine.decoding.meter import Meter
from engine.decoding.sampling import RandomStream
from engine.decoding.session import Session


@dataclass
class Generator:
    """A model, its tokenizer, and sample.py's settings."""

    model: torch.nn.Module
    tokenizer: object
    config: object
    draft: object = None
    """None, or a function of a RandomStream that returns a guess, see speculation.py."""
    pads: bool = True
    """Whether texts of different lengths can be one batch."""

    def __post_init__(self):
        self.device = self.model.transformer.wte.weight.device
        self.meter = Meter()
        self.session = None
        self.compiled = None

    def write(self, texts):
        """Write all texts. Yields after each token of a batch, and after its last."""
        most = self.config.max_new_tokens
        batches = self.batches(texts)
        self.compile(len(batches) * most)
        for batch in batches:
            self.session = None  # never two in memory
            self.start([text.ids for text in batch], [text.seed for text in batch], most)
            yield from self.extend(batch)

    def read(self, ids):
        """Add ids (T,) to the conversation, which the session keeps."""
        ids = ids.to(self.device)
        if not self.session:
            self.start([ids[:0]], [self.config.seed], math.inf)
        self.session.append(ids[None])

    def start(self, prompts, seeds, most):
        """Begin a session with prompts, 1-D tensors of ids, to which `most` tokens are added."""
        room = min(most, 2 * self.model.config.block_size)
        self.session = Session(self.model, prompts, room, compiled=self.compiled)
        self.random = RandomStream([torch.Generator().manual_seed(seed) for seed in seeds])
        self.guess = self.draft and self.draft(self.random)

    def compile(self, tokens):
        """Compile the decoding step if the settings say so, or if this many tokens are worth it."""
        self.compiled = compile_step(self.model, self.config.compile, tokens)

    def batches(self, texts):
        """Return lists of at most batch_size texts to write together, the first text first.

        A full context moves on at a different time for each length, and then all texts of the
        batch are read again: texts that reach it are together with those of their length.
        """
        longest = max(len(text.ids) for text in texts) + self.config.max_new_tokens
        mixed = self.pads and longest <= self.model.config.block_size
        groups = {}
        for text in texts:
            groups.setdefault(None if mixed else len(text.ids), []).append(text)
        size = 1 if self.draft else self.config.batch_size
        batches = []
        for group in groups.values():
            batches += [group[n : n + size] for n in range(0, len(group), size)]
        return batches

    def extend(self, batch):
        """Add tokens to the session's texts until all have ended.

        Yields after each token, and after the last.
        """
        tokens = stream(
            self.session,
            self.config.max_new_tokens,
            self.config,
            self.random,
            self.tokenizer.vocab_size,
            self.guess,
            self.config.guesses,
        )
        for ids, logits in self.meter.timed(self.session, tokens):
            logprobs = [None] * len(ids)
            if self.config.json:
                logprobs = logits.float().log_softmax(-1).gather(1, ids[:, None])[:, 0].tolist()
            for text, token, logprob in zip(batch, ids.tolist(), logprobs):
                text.add(token, logprob)
            if all(text.ended for text in batch):
                break
            yield
        for text in batch:
            text.end("length")
        yield
