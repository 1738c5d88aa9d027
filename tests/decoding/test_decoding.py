"""Decoding: batches of any prompts, caches that grow and forget, and compiled steps."""

import math

import torch
from conftest import parametrize, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import ids, random_model

from engine import generate, quantize
from engine.generate import CompiledStep, Session, compile_step, decode_and_sample, stream
from engine.quantize import prepare_for_inference
from engine.sampling import Sampling, sample_next_token
from model import GPT, MODERN

SHAPES = {
    "windows": {**MODERN, "window": 5, "window_pattern": "SL"},
    "masked_fill": dict(attention="masked_fill", score="additive", n_kv_head=2),
}


def random_prompts(*lengths):
    return [ids(length) for length in lengths]


def write(model, prompts, count, seeds=None, sampling=Sampling(top_k=10), **options):
    """Return the tokens (count, B) that follow prompts, and their logits (count, B, V)."""
    session = Session(model, prompts, count, **options)
    random = [torch.Generator().manual_seed(seed) for seed in seeds or range(len(prompts))]
    tokens, logits = zip(*stream(session, sampling, random))
    tokens = torch.stack(tokens)
    assert torch.equal(session.ids[:, session.length - count : session.length], tokens.T)
    return tokens, torch.stack(logits)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@parametrize("shape", SHAPES)
@settings(max_examples=4)
@given(st.lists(st.integers(1, 25), min_size=2, max_size=3))
def test_a_batch_of_any_prompts_equals_each_alone(shape, lengths):
    """Catches padding that is seen, positions that count it, chance that neighbours share, and a
    cache that drifts, above all when the context is full and moves on.
    """
    model = random_model(**SHAPES[shape])
    prompts = random_prompts(*lengths, lengths[0])
    prompts[-1] = prompts[0]  # the same text twice is read once
    together, logits = write(model, prompts, 20)
    for n, prompt in enumerate(prompts):
        for use_cache in (True, False):
            alone, alone_logits = write(model, [prompt], 20, [n], use_cache=use_cache)
            assert torch.equal(alone[:, 0], together[:, n])
            close(alone_logits[:, 0], logits[:, n])


def test_little_is_read_twice(monkeypatch):
    """Catches a prompt read for each of its texts, and a text read again for each token."""
    reads = []  # the shapes (B, T) that the model has read
    hidden = GPT.hidden
    monkeypatch.setattr(GPT, "hidden", lambda *x: reads.append((*x[1].shape,)) or hidden(*x))
    shared, other = random_prompts(7, 7)
    model = random_model(block_size=512)
    prompts = [shared, other, shared, shared]
    tokens, logits = write(model, prompts, 21)
    assert reads == [(2, 7), *[(4, 1)] * 20]
    text = torch.cat([other, tokens[:-1, 1]])
    close(logits[-1, 1], model(text[None])[0][0, 0])


@parametrize("where", ["mlp.c_fc", "attn.c_proj"])
def test_numbers_that_float16_cannot_hold(where, monkeypatch):
    """Catches an overflow in the middle of the model whose text is printed."""
    monkeypatch.setattr(quantize, "HAS_FBGEMM", False)
    model = random_model(mlp="relu2", norm="rmsnorm")
    weight = model.get_submodule(f"transformer.h.0.{where}").weight
    weight.data.fill_(60000 / 2 ** (where == "mlp.c_fc"))
    model = prepare_for_inference(model, torch.float16)
    with refused("too large for float16: try --dtype=float32"):
        model.generate(torch.zeros(1, 3, dtype=torch.long), 1)


# ---- Compiled steps


@parametrize(
    "attention, message",
    [("tiled", "attention=tiled: leave it out"), ("fused", "compile=True is for a GPU")],
)
def test_what_is_not_compiled(attention, message):
    """Catches an attention that looks at numbers on the way, and is compiled; and minutes of
    compiling for a step that gains little.
    """
    model = random_model(attention=attention)
    assert compile_step(model, "auto", math.inf) is None
    with refused(message):
        compile_step(model, True, 1)


@parametrize(
    "change",
    [SHAPES["windows"] | dict(window=3, visible="alibi:4"), SHAPES["masked_fill"] | dict(window=5)],
    ids=str,
)
def test_steps_whose_shapes_never_change(change):
    """Catches a step compiled again for each position, one not compiled again for texts without
    padding, one of another model or that sees what is empty; and a bias that the compiler loses
    (PyTorch 2.11, of functions made in a forward pass).
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    penalty = Sampling(top_k=10, repetition_penalty=1.2)
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")  # takes writing to the cache apart too
    model = random_model(**change)
    step = CompiledStep(torch.compile(decode_and_sample, fullgraph=True, backend=graphs))
    for lengths, count, compiled in ((3, 7, 3), 40, 1), ((1, 2, 5), 7, 1), ((4, 4, 4), 5, 2):
        prompts = random_prompts(*lengths)
        plain = write(model, prompts, count, sampling=penalty)
        found = write(model, prompts, count, sampling=penalty, compiled=step)
        close(found, plain)
        assert graphs.frame_count == compiled


# ---- Sampling


def test_one_choice():
    """Catches a top_k beyond the vocabulary, and a tiny temperature that overflows."""
    logits = torch.tensor([[1.0, 9.0, 3.0]])
    for temperature in 0, 1e-310:
        sampling = Sampling(temperature=temperature, top_k=99)
        assert sample_next_token(logits, sampling, torch.tensor([0.9])) == 1


@given(
    st.integers(0, 2**31),
    st.integers(2, 40),
    st.floats(0.3, 3.0),
    st.sampled_from([1, 3, 0]),
    st.sampled_from([0.5, 0.9, 1.0]),
    st.sampled_from([0.2, 0.02, 0.0]),
)
def test_shares_are_probabilities(seed, V, temperature, top_k, top_p, min_p):
    """Catches a token that gets more or less than its share of the interval; top_k, top_p and min_p
    that let others through.
    """
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 2
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ids = sample_next_token(logits.expand(4000, -1), sampling, u)
    p, order = (logits.double() / temperature).softmax(-1).sort(descending=True)
    p[top_k or V :] = 0
    p = p / p.sum()
    p[(p.cumsum(-1) - p >= top_p) | (p < min_p * p[0])] = 0
    share = torch.zeros_like(p).scatter_(0, order, p / p.sum())
    found = torch.bincount(ids, minlength=V) / 4000
    torch.testing.assert_close(found.double(), share, rtol=0, atol=1e-3)


def test_repetition_penalty(monkeypatch):
    """Catches a penalty that rewards negative logits, or that counts padding or later tokens."""
    sampling = Sampling(temperature=0, repetition_penalty=1.5)
    for logits in [2.0, 1.9], [-1.0, -1.1]:
        ids = sample_next_token(torch.tensor([logits]), sampling, None, torch.tensor([[0, 0]]))
        assert ids == 1
    seen = []
    sample = generate.sample_next_token
    monkeypatch.setattr(generate, "sample_next_token", lambda *x: seen.append(x[3]) or sample(*x))
    session = Session(random_model(), [torch.tensor([4]), torch.tensor([1, 2, 3])], 9)
    ids, _ = next(stream(session, Sampling(), [None] * 2))
    assert seen == [None]  # by default there is none
    a, b = ids.tolist()
    assert session.ids[:, :5].tolist() == [[4, 4, 4, a, 4], [1, 2, 3, b, 1]]
    next(stream(session, sampling, [None] * 2))
    assert seen[1] is session.ids
