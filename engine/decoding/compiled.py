"""The decoding step by torch.compile: one CUDA graph for every token."""

import sys

import torch

from engine.common.hardware import TOKENS_WORTH_COMPILING, worth_compiling
from engine.decoding.sampling import sample_next_token, to_device
from engine.decoding.session import decode_one_token


def decode_and_sample(model, token, cache, *inputs):
    """Read one more token (B, 1).

    Returns ids (B,) sampled from what follows it, and its logits (B, V). inputs: those of
    sample_next_token beside the logits.
    """
    logits = decode_one_token(model, token, cache)[:, -1]
    return sample_next_token(logits, *inputs), logits


def compile_step(model, compile, tokens):
    """Return a CompiledStep or None: compile is a bool, or "auto" if that depends on the tokens.

    tokens: how many will be generated one after another. ValueError for what cannot be compiled.
    """
    device = model.transformer.wte.weight.device
    attention = model.config.attention
    possible = device.type == "cuda" and attention in ("fused", "masked_fill")
    if compile == "auto":
        compile = possible and worth_compiling(device, tokens, TOKENS_WORTH_COMPILING)
    if compile and not possible:
        raise ValueError(
            "compile=True is for a GPU, and attention=fused or masked_fill; here are "
            f"device={device.type} and attention={attention}: leave it out"
        )
    return CompiledStep() if compile else None


def is_rounding(logits, expected):
    """Return whether rounding explains how logits (B, V) differ from those expected.

    Each row by at most half of the digits of its dtype, or of TF32, which float32 may be multiplied
    in. A constant in all logits of a row does not count: it changes no probability.
    """
    most = max(torch.finfo(expected.dtype).eps, 2.0**-10) ** 0.5
    logits, expected = logits.float(), expected.float()
    return bool(((logits - expected).std(-1) <= most * expected.std(-1)).all())


class CompiledStep:
    """decode_and_sample, compiled, for one model and one session at a time, whose cache it keeps.

    All shapes are those of the last step and the position is a tensor, so attention reads all of
    the cache's memory, including what is still empty. A CUDA graph knows the addresses of that
    memory: the next session takes it over.

    Drivers, GPUs and compilers differ. So the first step after all texts were read is compared
    with the plain one, and a wrong one is not used again.

    function: decode_and_sample, if it is compiled in another way.
    """

    def __init__(self, function=None):
        self.cache = None
        self.size = None  # of the cache
        self.is_right = True  # as far as it has been compared
        # With this tuning the compiler generates products of a single row itself, if they have no
        # bias, and reads int8 weights in them directly.
        options = {"triton.cudagraphs": True, "coordinate_descent_tuning": True}
        self.function = function or torch.compile(
            decode_and_sample, fullgraph=True, options=options
        )

    def empty_cache(self, model, batch_size, max_len):
        """Return the last cache if it has this size, else a new one."""
        size = (batch_size, max_len)
        if size != self.size:
            self.cache = None  # never two in memory
            self.cache = model.new_cache(*size)
            self.size = size
        return self.cache

    def ready(self, session, *inputs):
        """Return whether it may read the session's next token: one, for which its cache has room.

        The first token after all texts were read is compared with the plain step's. inputs: as in
        __call__.
        """
        one_more = session.n_read == session.length - 1
        if not (self.is_right and one_more and session.context_starts() == session.starts):
            return False
        if not session.is_compared:
            self.compare(session, *inputs)
        return self.is_right

    def compare(self, session, *inputs):
        """Find out whether it computes the session's next logits as the plain step does.

        If not, a note says so.
        """
        for _ in range(3):  # a CUDA graph warms up, is recorded, and is replayed
            _, logits = self(session, *inputs)
            session.read_again()
        expected = session.logits()[:, -1]
        session.read_again()
        session.is_compared = True
        self.is_right = is_rounding(logits, expected)
        if not self.is_right:
            print(
                "note: the compiled step computes other numbers than the plain one: not compiled",
                file=sys.stderr,
            )
            session.forget()  # it may have written anything into the cache

    @torch.inference_mode()
    def __call__(self, session, sampling, u, text, vocab_size):
        """Return ids (B,) of the next column, and the logits (B, V) they were sampled from.

        sampling, u, text, vocab_size: as in sample_next_token.
        """
        token = session.unread().clone()
        u = to_device(u, token.device)
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
        session.n_read = session.length
        return ids.clone(), logits.clone()  # the next step overwrites what the graph returns
