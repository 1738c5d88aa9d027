"""Generating texts: one token after another, many texts a batch at a time, or a conversation."""

import time
from dataclasses import dataclass

import torch

from engine.compiled import compile_step
from engine.hardware import synchronize
from engine.sampling import Sampler
from engine.session import Session, next_token
from engine.text import Text


@torch.no_grad()
def stream(session, max_new_tokens, sampler):
    """Continue a session's texts: yield (ids (B,), logits (B, V)) of one token after another."""
    for _ in range(max_new_tokens):
        yield next_token(session, sampler)


@dataclass
class Meter:
    """Tokens per second.

    The first token of each text waits for the prompt, and with torch.compile the next two for the
    compiler: not counted.
    """

    first_token_seconds: float = 0.0
    seconds: float = 0.0
    tokens: int = 0

    def timed(self, session, tokens, texts):
        """Yield the same (ids, logits), timed. texts: those that grow, one for each id."""
        last = time.perf_counter()
        warm_up = 3 if session.compiled else 1
        for n, (ids, logits) in enumerate(tokens):
            synchronize(ids.device)
            now = time.perf_counter()
            self.first_token_seconds = self.first_token_seconds or now - last
            if n >= warm_up:
                self.seconds += now - last
                self.tokens += sum(not text.ended for text in texts)
            last = now
            yield ids, logits

    def summary(self):
        """Return one line about all texts."""
        line = f"first token after {self.first_token_seconds:.2f} s"
        if self.tokens:
            line += f", then {self.tokens / self.seconds:.1f} tokens/s"
        return line


@dataclass
class Generator:
    """A model, its tokenizer, and sample.py's settings."""

    model: torch.nn.Module
    tokenizer: object
    config: object
    pads: bool = True
    """Whether texts of different lengths can be one batch."""

    def __post_init__(self):
        self.meter = Meter()
        self.compiled = None

    def write(self, texts):
        """Write all texts. Yields after each token of a batch, and after its last."""
        batches = self.batches(texts)
        self.compile(len(batches) * self.config.max_new_tokens)
        for batch in batches:
            yield from self.extend(batch)

    def answer(self, template, messages, seed, tools=None):
        """Return the Text that is to answer messages, by a ChatTemplate, which may render tools.

        The oldest turns are left out until there is room for max_new_tokens, or for half of the
        context. ValueError if the last message is not a user's, or alone fills the context.
        """
        if messages[-1]["role"] != "user":
            raise ValueError("the last message is not a user's")
        context = self.model.config.block_size
        room = min(self.config.max_new_tokens, context // 2)
        ids = template.encode_prompt(messages, context - room, tools)
        if len(ids) >= context:
            raise ValueError(f"the message has {len(ids)} tokens; the model reads {context}")
        return Text(
            self.tokenizer,
            self.config.stop,
            ids=torch.tensor(ids),
            seed=seed,
            end_token=template.end_of_turn(),
            most=context - len(ids),
        )

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
        size = self.config.batch_size
        return [
            group[n : n + size] for group in groups.values() for n in range(0, len(group), size)
        ]

    def extend(self, batch):
        """Add tokens to texts, in a session of their own, until all have ended.

        Yields after each token, and after the last.
        """
        most = self.config.max_new_tokens
        session = Session(self.model, [text.ids for text in batch], most, compiled=self.compiled)
        random = [torch.Generator().manual_seed(text.seed) for text in batch]
        sampler = Sampler(self.config, random, self.tokenizer.vocab_size)
        tokens = stream(session, most, sampler)
        for ids, logits in self.meter.timed(session, tokens, batch):
            logprobs = [None] * len(ids)
            if self.config.json:
                logits = logits[:, : self.tokenizer.vocab_size].float()
                logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0].tolist()
            for text, token, logprob in zip(batch, ids.tolist(), logprobs):
                text.add(token, logprob)
            if all(text.ended for text in batch):
                break
            yield
        for text in batch:
            text.end("length")
        yield
