"""Generating text: prefill reads a text, decode_one_token adds to it, and stream does both until there is enough.

It is fast because little is computed twice. Keys and values of the past stay in a cache; a prompt that several texts share
is read once; and all texts are decoded as one batch, since reading a weight for ten rows costs little more than for one.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from engine.common.checks import at_least
from engine.common.threads import FreeCores


@dataclass(kw_only=True)
class Sampling:
    """How the next token is sampled from the model's logits."""

    temperature: float = 1.0
    """Below 1 more predictable, above 1 more surprising; 0 always takes the most likely token."""
    top_k: int = 0
    """Sample from the k most likely tokens only; 0: from all."""
    top_p: float = 1.0
    """Sample from the most likely tokens that together have this probability (nucleus sampling); 1: from all."""
    min_p: float = 0.0
    """Exclude tokens whose probability is below this share of the most likely one's; 0: none."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that the text already has (multiplies negative ones); 1: none, 1.2: noticeable."""

    def __post_init__(self):
        at_least(0, self, "temperature", "top_k")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")
        at_least(0, self, "min_p", most=1)
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty={self.repetition_penalty} must be above 0")


def sample_next_token(logits, sampling, u, text=None):
    """Ids (B,) sampled from logits (B, V) with u, (B,) numbers uniform in [0, 1), the only source of randomness.

    The inverse of the cumulative distribution at u, over tokens in descending order of probability (in the order of their
    ids if none is excluded, which saves sorting). text: the ids (B, T) to penalize, -1 for none (Keskar et al. 2019,
    arXiv:1909.05858). top_p: Holtzman et al. 2019, arXiv:1904.09751; min_p: Nguyen et al. 2024, arXiv:2407.01082.
    """
    V, logits = logits.shape[-1], logits.float()
    if sampling.repetition_penalty != 1 and text is not None:
        seen = torch.zeros(len(logits), V + 1, dtype=torch.bool, device=logits.device)
        seen = seen.scatter_(1, torch.where((text < 0) | (text >= V), V, text), True)[:, :V]
        penalized = torch.where(
            logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty
        )
        logits = torch.where(seen, penalized, logits)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    ids, k = None, min(sampling.top_k or V, V)
    if k < V or sampling.top_p < 1 or sampling.min_p > 0:
        logits, ids = logits.topk(k)
    logits = logits - logits.amax(dim=-1, keepdim=True)  # avoids overflow at a tiny temperature
    wide = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no float64
    p = (logits.to(wide) / sampling.temperature).softmax(dim=-1)
    if ids is not None:
        before = p.cumsum(dim=-1) - p
        p = p.masked_fill((before >= sampling.top_p) | (p < sampling.min_p * p[:, :1]), 0.0)
    ends = p.cumsum(dim=-1)
    index = torch.searchsorted(
        ends, to_device(u.to(wide), ends.device)[:, None] * ends[:, -1:], right=True
    ).clamp(max=k - 1)
    return (index if ids is None else ids.gather(1, index))[:, 0]


def to_device(u, device):
    """u on a device, without waiting, as a copy to a GPU does by default, until that has computed all it was given."""
    return u.to(device, non_blocking=device.type != "mps")  # MPS may read u when it is gone


class RandomStream:
    """The random number of each column of each text, (B,) float64: a text depends on its own generator and nothing else.

    The first column that is asked for gets a generator's first number, the next column its second, in whatever order they
    are asked for. So a draft model that looks ahead samples with the same numbers as the model.
    """

    def __init__(self, generators):
        self.generators, self.numbers, self.first_column = generators, [], None

    def at(self, column):
        self.first_column = column if self.first_column is None else self.first_column
        while len(self.numbers) <= column - self.first_column:
            self.numbers.append(
                torch.stack([self.uniform(generator) for generator in self.generators])
            )
        return self.numbers[column - self.first_column]

    @staticmethod
    def uniform(generator):
        device = generator.device if generator else torch.device("cpu")
        wide = torch.float32 if device.type == "mps" else torch.float64
        return torch.rand((), generator=generator, device=device, dtype=wide).cpu().double()


def prefill(model, idx, cache, count=1):
    """Read idx (B, T) after what cache holds: logits (B, count, V) of what follows each of the last count tokens."""
    return model.lm_head(model.hidden(idx, cache)[:, -count:])


def decode_one_token(model, token, cache):
    """Read one more token (B, 1): logits (B, 1, V) of what follows it."""
    return model.lm_head(model.hidden(token, cache))


def decode_and_sample(model, token, cache, sampling, u, text=None, vocab_size=None):
    """Read one more token (B, 1): ids (B,) sampled from what follows it, as by sample_next_token, and its logits (B, V)."""
    logits = decode_one_token(model, token, cache)[:, -1, :vocab_size]
    return sample_next_token(logits, sampling, u, text), logits


def compiled_decode(model):
    """decode_and_sample by torch.compile, on a GPU one CUDA graph; None if attention's path cannot be one graph.

    With this tuning, the compiler generates the products of a single row itself, and reads int8 weights in them directly.
    """
    if model.config.attention in ("fused", "masked_fill"):
        options = {"triton.cudagraphs": True, "coordinate_descent_tuning": True}
        return torch.compile(decode_and_sample, fullgraph=True, options=options)
    return None


class Session:
    """Texts that grow together, and the model's cache of them.

    prompts: 1-D tensors of ids, one for each text. All texts end at the same column of ids (B, T); a shorter one begins
    later, at begin[row], after padding. A full context moves on as model.context_start says, for each text by itself.

    compiled: decode_and_sample as torch.compile makes it, for steps whose shapes never change. Attention then reads all of
    the cache's memory at each step, including what is still empty. after: a session that has ended, whose memory this one
    takes over if it has the right size: a compiled step, which knows its addresses, serves both.
    """

    def __init__(self, model, prompts, room=256, use_cache=True, compiled=None, after=None):
        self.model, self.length, self.use_cache, self.compiled = (
            model,
            max(map(len, prompts)),
            use_cache,
            compiled,
        )
        self.begin = [self.length - len(prompt) for prompt in prompts]
        columns = self.length + room
        columns += (
            -columns % 256 if compiled else 0
        )  # few sizes, for each of which a step is compiled
        self.ids = torch.zeros(len(prompts), columns, dtype=torch.long, device=prompts[0].device)
        self.padding = self.ids.new_tensor(self.begin)[
            :, None
        ]  # columns before each text, where each step can read it
        for row, begin, prompt in zip(self.ids, self.begin, prompts):
            row[begin : self.length] = prompt
        self.starts, self.cache = (
            None,
            after.cache if after and len(after.begin) == len(prompts) else None,
        )
        self.read, self.passes = (
            0,
            0,
        )  # columns that the cache has read, and how often the weights were read for it

    def append(self, tokens):
        """Add ids (B, T) to the texts; nothing is computed yet."""
        B, T = tokens.shape
        if self.length + T > self.ids.shape[1]:
            self.ids = torch.cat(
                [self.ids, self.ids.new_zeros(B, self.length + T)], dim=1
            )  # at least twice as long
            self.forget()  # the cache must grow too
        self.ids[:, self.length : self.length + T] = tokens
        self.length += T

    def trim(self, length):
        """Remove what stands at and after column length."""
        self.length = length
        self.unread(length)

    def unread(self, column):
        """Let the cache forget what it has read from column on."""
        if self.read > column and self.cache:
            try:
                for layer in self.cache:
                    layer.trim(len(layer) - (self.read - column))
                self.read = column
            except ValueError:  # linear attention cannot
                self.forget()

    def forget(self):
        """Read all texts again next time."""
        self.starts, self.read = None, 0

    def text(self, row=0):
        """The ids of one text, (T,)."""
        return self.ids[row, self.begin[row] : self.length]

    def without_padding(self, end):
        """ids of all texts before column end, -1 where there is none; of the same shape for every end."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        return self.ids.masked_fill((columns < self.padding) | (columns >= end), -1)

    def context_starts(self):
        """Where the context of each text begins, in columns."""
        return [begin + self.model.context_start(self.length - begin) for begin in self.begin]

    def sample(self, sampling, u, vocab_size=None, count=1):
        """Ids (B,) sampled after the first of the last count tokens, and logits (B, count, V) of what follows each of them."""
        text = (
            self.without_padding(self.length - count + 1)
            if sampling.repetition_penalty != 1
            else None
        )
        if (
            self.compiled
            and self.read == self.length - 1
            and count == 1
            and self.context_starts() == self.starts
        ):
            return self.compiled_step(sampling, u, text, vocab_size)
        logits = self.logits(count)[..., :vocab_size]
        return sample_next_token(logits[:, 0], sampling, u, text), logits

    def logits(self, count=1):
        """What follows each of the last count tokens of the texts: (B, count, V)."""
        starts = self.context_starts()
        if starts == self.starts:
            self.unread(self.length - count)
        unread = self.ids[:, self.read : self.length]
        if (
            starts != self.starts or not self.use_cache
        ):  # the first time, or a context has moved on: read it as a whole
            logits = self.read_all(starts, count)
        elif unread.shape[1] == 1:
            logits = decode_one_token(self.model, unread, self.cache)
        else:
            logits = prefill(self.model, unread, self.cache, count)
        self.starts, self.read, self.passes = starts, self.length, self.passes + 1
        return logits

    def compiled_step(self, sampling, u, text, vocab_size):
        """decode_and_sample, compiled: the position is a tensor, and all shapes are those of the last step."""
        self.at.fill_(len(self.cache[0]))
        for layer in self.cache:
            layer.at = self.at
        token, u = self.ids[:, self.read : self.length].clone(), to_device(u, self.ids.device)
        ids, logits = self.compiled(self.model, token, self.cache, sampling, u, text, vocab_size)
        for layer in self.cache:
            layer.length, layer.at = layer.length + 1, None
        self.read, self.passes = self.length, self.passes + 1
        return ids.clone(), logits[:, None].clone()  # the next step overwrites what it returns

    def read_all(self, starts, count):
        """Fill the cache from each text's start. Texts that are equal so far are read once."""
        left = min(starts)
        idx = self.ids[:, left : self.length]
        padding = (
            torch.tensor([start - left for start in starts], device=idx.device)
            if max(starts) > left
            else None
        )
        unique = {}  # (where it begins, its ids) -> its row among the different texts
        which = [
            unique.setdefault((start, *ids), len(unique))
            for start, ids in zip(starts, idx.tolist())
        ]
        rows = torch.tensor([which.index(n) for n in range(len(unique))], device=idx.device)
        shared = len(rows) < len(idx)
        cache = self.empty_cache(len(rows), keep=not shared)
        for layer in cache:
            layer.reset(None if padding is None else padding[rows])
        logits = prefill(
            self.model, idx[rows], cache if self.use_cache or padding is not None else None, count
        )
        if shared:
            which = torch.tensor(which, device=idx.device)
            logits, cache = (
                logits[which],
                [layer.select(which) for layer in cache] if self.use_cache else None,
            )
        self.cache = cache if self.use_cache else None
        if self.compiled:
            self.at = idx.new_zeros(1)
            for layer in cache:
                for memory in (layer.k, layer.v):
                    torch._dynamo.mark_static_address(
                        memory
                    )  # or a CUDA graph would copy it at each step
        return logits

    def empty_cache(self, batch_size, keep):
        """A cache to fill: the present one if keep and it has the right size, since CUDA graphs know its memory."""
        max_len = min(
            self.model.config.block_size, self.ids.shape[1]
        )  # the same for all texts: a step is compiled once
        old, self.cache = self.cache, None
        if keep and old and old[0].max_len == max_len:
            return old
        del old  # never both in memory
        return self.model.new_cache(batch_size, max_len)


@torch.no_grad()
def stream(session, max_new_tokens, sampling, random, vocab_size=None, guess=None):
    """Continue the texts: yield (ids (B,), logits (B, V)) of one token after another.

    random: a RandomStream. Ids from vocab_size on are never sampled: the padding of a vocabulary has no text.

    guess(session, most), for one text: a list of up to `most` ids that may come next. They are read together, which costs
    little more than reading one, and are kept as long as each equals what is sampled in its place. So the text is the same
    as without guesses, except for rounding, and as random: it only comes sooner (speculative decoding, Leviathan et al.
    2022, arXiv:2211.17192).
    """
    left, cores = max_new_tokens, FreeCores()
    while left > 0:
        base, T, context_start = (
            session.length,
            session.length - session.begin[0],
            session.model.context_start,
        )
        with cores:
            guesses = guess(session, left - 1) if guess and left > 1 else []
            while guesses and context_start(T + len(guesses)) != context_start(
                T
            ):  # the context would move on
                guesses.pop()
            if guesses:
                session.append(session.ids.new_tensor([guesses]))
            with torch.inference_mode():
                token, logits = session.sample(
                    sampling, random.at(base), vocab_size, 1 + len(guesses)
                )
        if (
            logits.dtype == torch.float16 and not logits.isfinite().all()
        ):  # an overflow anywhere in the model ends up here
            raise ValueError(
                "this model computes numbers that are too large for float16: try --dtype=float32"
            )
        for n in range(1 + len(guesses)):
            if n:
                text = (
                    session.without_padding(base + n) if sampling.repetition_penalty != 1 else None
                )
                with cores:
                    token = sample_next_token(logits[:, n], sampling, random.at(base + n), text)
            accepted = n < len(guesses) and token.item() == guesses[n]
            if not accepted:
                session.trim(base + n)
                session.append(token[:, None])
            left -= 1
            yield token, logits[:, n]
            if not accepted:
                break


def ngram(session, most, longest=4):
    """What followed the last time that the text ended as it ends now: text repeats itself more often than one expects."""
    text = session.text().cpu().numpy()
    for n in range(min(longest, len(text) - 1), 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
        found = (windows == text[-n:]).all(axis=1).nonzero()[0]
        if len(found):
            after = found[-1] + n
            return text[after : after + most].tolist()
    return []


class Draft:
    """Guesses by a smaller model of the same vocabulary, which samples with the same random numbers."""

    def __init__(self, model, sampling, random, vocab_size=None):
        self.model, self.sampling, self.random, self.vocab_size = (
            model,
            sampling,
            random,
            vocab_size,
        )
        self.session = None

    def __call__(self, session, most):
        mine, self.session = (
            self.session or Session(self.model, [session.text()]),
            None,
        )  # lost if something interrupts
        theirs = session.ids[:, : session.length]
        same = min(mine.length, session.length - 1)  # leaves at least one token to read
        different = (mine.ids[0, :same] != theirs[0, :same]).nonzero()
        mine.trim(int(different[0]) if len(different) else same)
        mine.append(theirs[:, mine.length :])
        for _ in range(most):
            with torch.inference_mode():
                logits = mine.logits()[:, -1, : self.vocab_size]
            text = mine.ids[:, : mine.length] if self.sampling.repetition_penalty != 1 else None
            mine.append(
                sample_next_token(logits, self.sampling, self.random.at(mine.length), text)[:, None]
            )
        self.session = mine
        return mine.text()[session.length :].tolist()
