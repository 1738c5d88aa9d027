"""Texts that grow together, and the cache of what the model has read: prefill, decode_one_token.

It is fast because little is computed twice. Keys and values of the past stay in a cache; a prompt
that several texts share is read once; and all texts are decoded as one batch, since reading a
weight for ten rows costs little more than for one.
"""

import codecs
import functools
import json
import sys
import time
from dataclasses import dataclass

import torch

from engine.errors import UserError, escape_control_characters
from engine.machine import TOKENS_WORTH_COMPILING, worth_compiling
from engine.sampling import Sampling, sample_next_token


def prefill(model, idx, cache):
    """Read idx (B, T) after what cache holds. Returns the logits (B, 1, V) of what follows."""
    return model.lm_head(model.hidden(idx, cache)[:, -1:])


def decode_one_token(model, token, cache):
    """Read one more token (B, 1). Returns the logits (B, 1, V) of what follows it."""
    return model.lm_head(model.hidden(token, cache))


@torch.no_grad()
def stream(session, sampling, generators, vocab_size=None):
    """Continue the texts of a Session: yield (ids (B,), logits (B, V)) for one token after another.

    generators: a torch.Generator of the CPU for each text; None is PyTorch's own. sampling and
    vocab_size: as in sample_next_token.
    """
    while session.length < session.end:
        u = torch.cat([torch.rand(1, generator=g, dtype=torch.float64) for g in generators])
        text = session.ids if sampling.repetition_penalty != 1 else None
        if session.compiled and session.context_starts() == session.starts:  # the cache has room
            ids, logits = session.compiled(session, sampling, u, text, vocab_size)
        else:
            logits = session.logits()[:, -1]
            ids = sample_next_token(logits, sampling, u, text, vocab_size)
        # An overflow of float16 anywhere in the model ends up here.
        if logits.dtype == torch.float16 and not logits.isfinite().all():
            raise UserError(
                "this model computes numbers that are too large for float16: try --dtype=float32"
            )
        session.ids[:, session.length] = ids  # the next step reads them
        session.length += 1
        yield ids, logits


def extend(model, idx, max_new_tokens, settings, generator=None, vocab_size=None, use_cache=True):
    """Return idx (B, T) with max_new_tokens more: see GPT.generate. settings: those of Sampling."""
    session = Session(model, list(idx), max_new_tokens, use_cache)
    for _ in stream(session, Sampling(**settings), [generator] * len(idx), vocab_size):
        pass
    return session.ids


class Session:
    """Tokens of a batch of texts, and the model's cache of them.

    prompts: 1-D tensors of ids, one for each text. max_new_tokens: how many are added to each, at
    most. All texts end at the same column of ids (B, T); a shorter one begins later, at begin[row].
    The columns before it, and those that are still empty, repeat its first id, where a penalty on
    repetition finds nothing new. A full context moves on separately for each text.

    compiled: a CompiledStep, or None. The shapes of its session never change.
    """

    def __init__(self, model, prompts, max_new_tokens, use_cache=True, compiled=None):
        self.model = model
        self.use_cache = use_cache
        self.compiled = compiled
        self.length = max(map(len, prompts))
        self.begin = [self.length - len(prompt) for prompt in prompts]
        self.end = columns = self.length + max_new_tokens
        if compiled:
            columns += -columns % 256  # few sizes, for each of which the step is compiled
        device = model.transformer.wte.weight.device
        self.ids = torch.zeros(len(prompts), columns, dtype=torch.long, device=device)
        for row, begin, prompt in zip(self.ids, self.begin, prompts):
            row[:] = prompt[0]
            row[begin : self.length] = prompt
        self.cache = None
        self.starts = None  # the columns where the cached contexts begin

    def context_starts(self):
        """Return the column where the context of each text begins.

        A full context keeps its last half and is filled again. So it begins at the same place for
        half a window at a time, as a cache needs it, and depends only on the text's length.
        """
        size = self.model.config.block_size
        hop = size + 1 - max(1, size // 2)
        beyond = [self.length - begin - size for begin in self.begin]  # tokens that don't fit
        return [begin + hop * -(-max(0, n) // hop) for begin, n in zip(self.begin, beyond)]

    def last(self):
        """Return the last token of each text, (B, 1)."""
        return self.ids[:, self.length - 1 : self.length]

    @torch.inference_mode()
    def logits(self):
        """Read the last token, or all. Returns the logits (B, 1, V) of what follows each text."""
        starts = self.context_starts()
        if starts == self.starts and self.use_cache:
            return decode_one_token(self.model, self.last(), self.cache)

        # Fill an empty cache from each text's start. Texts that are equal are read once.
        # Column 0 is the padding of a row, and its ids follow.
        left = min(starts)
        ids = self.ids[:, left : self.length].tolist()
        texts = [(start - left, *row) for start, row in zip(starts, ids)]
        # A compiled step knows the memory of the cache, in which each text has its row.
        unique = texts if self.compiled else list(dict.fromkeys(texts))
        table = self.ids.new_tensor(unique)
        padding = table[:, 0].contiguous() if max(starts) > left else None

        self.cache = None  # never two in memory
        # Its size does not depend on the texts: a step is compiled once.
        size = len(unique), min(self.model.config.block_size, self.ids.shape[1])
        if self.compiled:
            cache = self.compiled.new_cache(self.model, *size)
        else:
            cache = self.model.new_cache(*size)
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


# --------------------------------------------------------------------------------------------------
# The decoding step by torch.compile: one CUDA graph for every token.


def decode_and_sample(model, token, cache, *inputs):
    """Read one more token (B, 1).

    Returns ids (B,) sampled from what follows it, and its logits (B, V). inputs: the arguments of
    sample_next_token after the logits.
    """
    logits = decode_one_token(model, token, cache)[:, -1]
    return sample_next_token(logits, *inputs), logits


def compile_step(model, compile, tokens):
    """Return a CompiledStep or None: compile is a bool, or "auto" if that depends on the tokens.

    tokens: how many will be generated one after another. UserError for what cannot be compiled.
    """
    device = model.transformer.wte.weight.device
    attention = model.config.attention
    # With a bias, compiled steps wrote another text on an H200: the cause was not found for sure.
    has_bias = any(hasattr(block.attn.visible, "bias") for block in model.transformer.h)
    possible = device.type == "cuda" and attention in ("fused", "masked_fill") and not has_bias
    if compile == "auto":
        compile = possible and worth_compiling(device, tokens, TOKENS_WORTH_COMPILING)
    if compile and not possible:
        raise UserError(
            "compile=True is for a GPU, attention=fused or masked_fill, and a mask without a bias; "
            f"here are device={device.type} and attention={attention}: leave it out"
        )
    return CompiledStep() if compile else None


class CompiledStep:
    """decode_and_sample, compiled, for one model and one session at a time, whose cache it keeps.

    All shapes are those of the last step and the position is a tensor, so attention reads all of
    the cache's memory, including what is still empty. A CUDA graph knows the addresses of that
    memory: the next session takes it over.

    function: decode_and_sample, if it is compiled in another way.
    """

    def __init__(self, function=None):
        # A session takes over the last cache if it has the same size. Otherwise the old memory is
        # freed before the first append to the new cache, which allocates its memory.
        self.new_cache = functools.lru_cache(maxsize=1)(lambda model, *size: model.new_cache(*size))
        # With this tuning the compiler generates products of a single row itself, if they have no
        # bias, and reads int8 weights in them directly.
        options = {"triton.cudagraphs": True, "coordinate_descent_tuning": True}
        self.function = function or torch.compile(
            decode_and_sample, fullgraph=True, options=options
        )

    @torch.inference_mode()
    def __call__(self, session, sampling, u, text, vocab_size):
        """Return ids (B,) of the next column, and the logits (B, V) they were sampled from.

        sampling, u, text, vocab_size: as in sample_next_token.
        """
        token = session.last().clone()
        u = u.to(token.device, non_blocking=True)
        position = torch.full_like(token[0], len(session.cache[0]))
        for layer in session.cache:
            layer.at = position
            torch._dynamo.mark_static_address(layer.k)  # or each step would copy it
            torch._dynamo.mark_static_address(layer.v)
        ids, logits = self.function(
            session.model, token, session.cache, sampling, u, text, vocab_size
        )
        for layer in session.cache:
            layer.length += 1
            layer.at = None
        return ids.clone(), logits.clone()  # the next step overwrites what the graph returns


# --------------------------------------------------------------------------------------------------
# Texts that are being generated: a prompt as tokens, tokens as characters, and the screen.


def encode_prompt(tokenizer, text, most, flag):
    """Return the ids (T,) of a prompt after tokenizer.begin; only its end if T would exceed most.

    UserError if there are none, or if the text cannot be encoded.
    """
    try:
        ids = tokenizer.encode(text, allow_special=True).tolist()
    except (UserError, UnicodeError) as error:
        raise UserError(f"{flag}: {error}") from None
    begin = list(tokenizer.begin)
    if ids[: len(begin)] != begin:
        ids = begin + ids
    if not ids:
        raise UserError(f"{flag} has no tokens: this model needs at least 1")
    if len(ids) > most:
        print(
            f"note: {flag} has {len(ids)} tokens; the model reads the last {most}", file=sys.stderr
        )
        ids = begin + ids[len(begin) - most :]
    return torch.tensor(ids)


@dataclass(eq=False)
class Text:
    """One text as its tokens arrive: complete characters, and nothing from a stop string on.

    ended: None, or one of "end_of_text", "stop", "length", "interrupted".
    """

    tokenizer: object
    ids: torch.Tensor
    """The prompt's ids (T,)."""
    most: int
    """Tokens to add, at most."""
    seed: int = 0
    """Seed of the text's random numbers."""
    stop: tuple = ()
    """Strings that end the text."""
    prompt: str = ""
    """What is printed before the generated text."""
    end_token: int = None
    """A token that ends the text, in addition to the tokenizer's."""

    def __post_init__(self):
        # Holds back the bytes of an incomplete character.
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.text = ""
        self.shown = 0  # characters of prompt and text that were shown
        self.ended = None
        self.tokens = []
        self.logprobs = []

    def add(self, token, logprob=None):
        """Append a token, unless the text has ended."""
        if self.ended:
            return
        if token in (self.end_token, *self.tokenizer.ends):
            return self.end("end_of_text")
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.write(self.utf8.decode(self.tokenizer.token_bytes(token)))
        if len(self.tokens) == self.most:
            self.end("length")

    def write(self, piece):
        """Append characters, or end the text before the first stop string that they complete."""
        self.text += piece
        places = [self.text.find(s) for s in self.stop if s in self.text]
        if places:
            self.text = self.text[: min(places)]
            self.ended = "stop"

    def end(self, reason):
        """No more tokens will arrive."""
        if not self.ended:
            self.write(self.utf8.decode(b"", final=True))
            self.ended = self.ended or reason

    def unshown(self):
        """Return what can be shown now and has not been, beginning with the prompt.

        The end of the text is held back while it may be the beginning of a stop string.
        """
        whole = self.prompt + self.text
        until = len(whole)
        if not self.ended:
            beginnings = [s[:n] for s in self.stop for n in range(len(s))]
            until -= max((len(s) for s in beginnings if self.text.endswith(s)), default=0)
        piece = whole[self.shown : until]
        self.shown = until
        return piece


class Printer:
    """Shows the texts in order: the first that has not ended as it grows, the others after it."""

    def __init__(self, texts, as_json=False):
        self.texts = list(texts)
        self.as_json = as_json
        self.began = None  # when the first token came

    def show(self):
        """Print what is new."""
        self.began = self.began or time.perf_counter()
        new = ""
        while self.texts:
            text = self.texts[0]
            if not self.as_json:
                new += text.unshown()
            if not text.ended:
                break
            del self.texts[0]
            if self.as_json:
                names = "prompt", "text", "ended", "tokens", "logprobs"
                new += json.dumps({name: getattr(text, name) for name in names}) + "\n"
            else:
                new += "\n---------------\n" if self.texts else "\n"
        print(escape_control_characters(new), end="", flush=True)

    def interrupt(self):
        """Show the texts that have begun, as far as they are."""
        self.texts = [text for n, text in enumerate(self.texts) if n == 0 or text.tokens]
        for text in self.texts:
            text.end("interrupted")
        self.show()
