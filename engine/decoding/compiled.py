"""The decoding step by torch.compile: one graph, on a GPU one CUDA graph, for every token."""

from types import FunctionType

import torch

from engine.common.hardware import worth_compiling
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

    tokens: how many will be generated one after another. ValueError if attention is no one graph.
    """
    possible = model.config.attention in ("fused", "masked_fill")
    if compile == "auto":
        compile = worth_compiling(model.transformer.wte.weight.device, tokens) and possible
    if compile and not possible:
        raise ValueError(
            f"compile=True: attention={model.config.attention} cannot be compiled: leave it out"
        )
    return CompiledStep() if compile else None


def compile_for_one_model(options, backend="inductor"):
    """Return decode_and_sample by torch.compile, for one model whose modules do not change.

    Guards are what torch.compile checks at each call. Those of modules would take 5 % of a step,
    and are left out. Compiled code is stored with the function's code object, so each model gets a
    copy of that object. The global state (threads, autocast, default dtype) is not checked either:
    a step is not compiled again for another number of threads.
    """

    def to_check(guards):
        outside_modules = torch.compiler.skip_guard_on_all_nn_modules_unsafe(guards)
        return [keep and g.guard_type != "GLOBAL_STATE" for keep, g in zip(outside_modules, guards)]

    options = options | {"guard_filter_fn": to_check}
    own = FunctionType(decode_and_sample.__code__.replace(), globals())  # with a copy of the code
    return torch.compile(own, fullgraph=True, backend=backend, options=options)


class CompiledStep:
    """decode_and_sample, compiled, for one model; and the cache of the last session that used it.

    All shapes are those of the last step and the position is a tensor, so attention reads all of
    the cache's memory, including what is still empty. A CUDA graph knows the addresses of that
    memory: the next session takes it over.

    function: decode_and_sample, if it is compiled in another way.
    """

    def __init__(self, function=None):
        self.cache = None
        # On a GPU the compiler generates the products of a single row itself with this tuning, and
        # reads int8 weights in them directly. On a CPU it calls those of quantization.py.
        options = {
            "triton.cudagraphs": True,
            "coordinate_descent_tuning": True,
            "cpp.dynamic_threads": True,
        }
        self.function = function or compile_for_one_model(options)

    def empty_cache(self, model, batch_size, max_len):
        """Return the last cache if it has this size, else a new one."""
        size = (batch_size, max_len)
        if not self.cache or (self.cache[0].shape[0], self.cache[0].max_len) != size:
            self.cache = None  # never two in memory
            self.cache = model.new_cache(*size)
        return self.cache

    def ready(self, session):
        """Return whether the session has one token to read, for which its cache has room."""
        one_more = session.n_read == session.length - 1
        return one_more and session.context_starts() == session.starts

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
