"""The decoding step by torch.compile: one CUDA graph for every token."""

import torch

from engine.hardware import TOKENS_WORTH_COMPILING, worth_compiling
from engine.sampling import sample_next_token, to_device
from engine.session import decode_one_token


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
    # With a bias, compiled steps wrote another text on an H200: the cause was not found for sure.
    has_bias = any(hasattr(block.attn.visible, "bias") for block in model.transformer.h)
    possible = device.type == "cuda" and attention in ("fused", "masked_fill") and not has_bias
    if compile == "auto":
        compile = possible and worth_compiling(device, tokens, TOKENS_WORTH_COMPILING)
    if compile and not possible:
        raise ValueError(
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
        self.cache = None
        self.size = None  # of the cache
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

    @torch.inference_mode()
    def __call__(self, session, sampling, u, text, vocab_size):
        """Return ids (B,) of the next column, and the logits (B, V) they were sampled from.

        sampling, u, text, vocab_size: as in sample_next_token.
        """
        token = session.last().clone()
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
        return ids.clone(), logits.clone()  # the next step overwrites what the graph returns
