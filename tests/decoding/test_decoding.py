"""Decoding: batches of any prompts, caches that grow and forget, and compiled steps."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import random_model

from engine.common import hardware
from engine.decoding import quantization
from engine.decoding.compiled import CompiledStep, compile_step, decode_and_sample
from engine.decoding.generation import stream
from engine.decoding.quantization import prepare_for_inference
from engine.decoding.sampling import Sampler, Sampling, sample_next_token
from engine.decoding.session import Session
from model import GPT, MODERN

SHAPES = {
    "windows": {**MODERN, "window": 5, "window_pattern": "SL"},
    "masked_fill": dict(attention="masked_fill", score="additive", n_kv_head=2),
}
TOP_10 = dict(top_k=10)


def random_prompts(*lengths):
    return [torch.randint(33, (length,)) for length in lengths]


def new_sampler(*seeds, **settings):
    return Sampler(Sampling(**settings), [torch.Generator().manual_seed(seed) for seed in seeds])


def write(model, prompts, count, settings=TOP_10, seeds=None, **options):
    """Return the tokens (count, B) that follow prompts, and their logits (count, B, V)."""
    session = Session(model, prompts, **options)
    sampler = new_sampler(*seeds or range(len(prompts)), **settings)
    steps = list(stream(session, count, sampler))
    tokens = torch.stack([ids for ids, _ in steps])
    assert torch.equal(session.ids[:, session.length - count : session.length], tokens.T)
    return tokens, torch.stack([logits for _, logits in steps])


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture
def reads(monkeypatch):
    """The shapes (B, T) that models have read."""
    shapes = []
    hidden = GPT.hidden

    def counted(self, idx, *rest):
        shapes.append(tuple(idx.shape))
        return hidden(self, idx, *rest)

    monkeypatch.setattr(GPT, "hidden", counted)
    return shapes


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_a_batch_of_any_prompts_equals_each_alone(shape, data):
    """Catches padding that is seen, positions that count it, and chance that neighbours share."""
    model = random_model(**SHAPES[shape])
    lengths = data.draw(st.lists(st.integers(1, 25), min_size=2, max_size=3))
    prompts = random_prompts(*lengths)
    prompts.append(prompts[0].clone())  # the same text twice is read once
    seeds = data.draw(st.permutations(range(len(prompts))))
    together, logits = write(model, prompts, 20, seeds=seeds)
    for n, (prompt, seed) in enumerate(zip(prompts, seeds)):
        for use_cache in (True, False):
            alone, alone_logits = write(model, [prompt], 20, seeds=[seed], use_cache=use_cache)
            assert torch.equal(alone[:, 0], together[:, n])
            close(alone_logits[:, 0], logits[:, n])


def test_a_window_beside_padding():
    """Catches padding that is counted from the first position that a windowed cache has kept."""
    model = random_model(**MODERN | dict(block_size=400, window=5))
    prompts = random_prompts(3, 90, 200)
    _, logits = write(model, prompts, 60)
    for n, prompt in enumerate(prompts):
        close(write(model, [prompt], 60, seeds=[n])[1][:, 0], logits[:, n])


def test_linear_attention():
    """Catches a sum that padding has been added to."""
    with pytest.raises(ValueError, match="one length"):
        write(random_model(attention="linear"), random_prompts(3, 5), 2)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_session_that_goes_on(shape, data):
    """Catches a cache that is too small for what was added, and one that forgets what it read."""
    model = random_model(**SHAPES[shape] | dict(block_size=150))
    prompts = random_prompts(data.draw(st.integers(1, 100)))
    session = Session(model, prompts, room=data.draw(st.integers(1, 50)))
    session.logits()
    for _ in range(data.draw(st.integers(1, 5))):
        session.append(torch.randint(33, (1, data.draw(st.integers(1, 30)))))
        text = session.text()[model.context_start(session.length) :][None]
        close(session.logits(), model(text)[0])


def test_little_is_read_twice(reads):
    """Catches a prompt read for each of its texts, and memory that grows one token at a time."""
    model = random_model(block_size=512)
    shared, other = random_prompts(7, 7)
    session = Session(model, [shared, other, shared, shared], room=4)
    session.logits()
    assert reads == [(2, 7)]
    for _ in range(200):
        session.append(torch.arange(4)[:, None])
        session.logits()
    assert sum(T > 1 for _, T in reads) < 10


@pytest.mark.parametrize("where", ["mlp.c_fc", "attn.c_proj"])
def test_numbers_that_float16_cannot_hold(where, monkeypatch):
    """Catches an overflow in the middle of the model whose text is printed."""
    monkeypatch.setattr(hardware, "cpu_flags", lambda: ["fp16_arith"])  # computes in float16
    monkeypatch.setattr(quantization, "HAS_FBGEMM", False)
    model = random_model(mlp="relu2", norm="rmsnorm")
    weight = model.get_submodule(f"transformer.h.0.{where}").weight
    weight.data.fill_(60000 / 2 ** (where == "mlp.c_fc"))
    model = prepare_for_inference(model, torch.float16)
    with pytest.raises(ValueError, match="too large for float16: try --dtype=float32"):
        model.generate(torch.zeros(1, 3, dtype=torch.long), 1)


# --------------------------------------------------------------------------------------------------
# Compiled steps


@pytest.mark.parametrize("attention", ["tiled", "naive", "linear"])
def test_what_cannot_be_one_graph(attention):
    """Catches an attention that looks at numbers on the way, and is compiled."""
    model = random_model(attention=attention)
    assert compile_step(model, "auto", math.inf) is None
    with pytest.raises(ValueError, match=f"attention={attention} cannot be compiled"):
        compile_step(model, True, 1)


def test_a_step_on_a_cpu():
    """Catches minutes of compiling for a step that gains little."""
    assert compile_step(random_model(), "auto", math.inf) is None
    with pytest.raises(ValueError, match="compile=True is for a GPU, not for device=cpu"):
        compile_step(random_model(), True, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_whose_shapes_never_change(shape):
    """Catches a step compiled again for each position, one not compiled again for texts without
    padding, one of another model or that sees what is empty; and a bias that the compiler loses
    (PyTorch 2.11, of functions made in a forward pass).
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    settings = dict(top_k=10, repetition_penalty=1.2)
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")  # takes writing to the cache apart too
    for change in dict(window=5), dict(window=3, visible="alibi:4"):
        model = random_model(**SHAPES[shape] | change)
        step = CompiledStep(torch.compile(decode_and_sample, fullgraph=True, backend=graphs))
        graphs.frame_count = 0
        for lengths, count, compiled in ((3, 7, 3), 40, 1), ((1, 2, 5), 7, 1), ((4, 4, 4), 5, 2):
            prompts = random_prompts(*lengths)
            tokens, logits = write(model, prompts, count, settings)
            found, found_logits = write(model, prompts, count, settings, compiled=step)
            assert torch.equal(found, tokens)
            close(found_logits, logits)
            assert graphs.frame_count == compiled and step.is_right


@pytest.mark.parametrize("row", [0, 2])
def test_a_compiled_step_that_is_wrong(row, capsys):
    """Catches a wrong compiler's text, one wrong row beside right ones, and a note each time."""

    def wrong(*inputs):
        ids, logits = decode_and_sample(*inputs)
        inputs[2][0].k.zero_()  # in the cache too
        logits[row] += torch.linspace(0, 1, logits.shape[1])
        return (logits + 3).argmax(-1), logits

    model = random_model()
    step = CompiledStep(wrong)
    for lengths in (3, 7, 3), (4, 4, 4):
        prompts = random_prompts(*lengths)
        tokens, logits = write(model, prompts, 40)
        found, found_logits = write(model, prompts, 40, compiled=step)
        assert torch.equal(found, tokens)
        close(found_logits, logits)
    assert capsys.readouterr().err.count("not compiled") == 1


def test_a_compiled_step_that_only_rounds(capsys):
    """Catches a right step that is refused for its rounding, or for a constant in its logits."""
    calls = []

    def rounded(*inputs):
        calls.append(1)
        ids, logits = decode_and_sample(*inputs)
        return ids, logits.bfloat16().to(logits.dtype) + 7

    write(
        random_model(dtype=torch.float32), random_prompts(3, 5), 9, compiled=CompiledStep(rounded)
    )
    assert len(calls) == 8 + 3  # the tokens after the prompts, and those that are compared
    assert not capsys.readouterr().err


# --------------------------------------------------------------------------------------------------
# Sampling


def test_exclusions():
    """Catches top_k, top_p and min_p that let others through, and greedy that is not."""
    logits = torch.tensor([[1.0, 5.0, 3.0, 4.0, 9.0]]).repeat(2000, 1)
    u = torch.linspace(0, 1, 2001)[:-1]

    def sampled(**settings):
        return set(sample_next_token(logits, Sampling(**settings), u).tolist())

    assert sampled(top_k=2, temperature=10.0) == {1, 4}
    assert sampled(temperature=0) == sampled(temperature=1e-30) == sampled(top_k=1) == {4}
    assert sampled(temperature=100.0) == sampled(temperature=100.0, top_k=99) == {0, 1, 2, 3, 4}
    p = (logits[0] / 4).softmax(-1)  # 0.50 0.21 0.16 ... of 4, 1, 3, 2, 0
    first, second = p[4].item(), p[1].item() / p[4].item()
    assert sampled(temperature=4.0, top_p=first + 1e-6) == {1, 4}
    assert sampled(temperature=4.0, top_p=first - 1e-6) == {4}
    assert sampled(temperature=4.0, min_p=second - 1e-6) == {1, 4}
    assert sampled(temperature=4.0, min_p=second + 1e-6) == {4}
    assert sampled(temperature=4.0, top_k=3, top_p=0.999) == {1, 3, 4}


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(2, 40),
    st.integers(0, 50),
    st.floats(0.05, 1.0),
    st.floats(0.3, 3.0),
)
def test_shares_are_probabilities(seed, V, top_k, top_p, temperature):
    """Catches a token that gets more or less than its share of the interval."""
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    ids = sample_next_token(logits.expand(4000, -1), sampling, u)
    p, order = (logits.float().double() / temperature).softmax(-1).sort(descending=True)
    p[min(top_k or V, V) :] = 0
    p = p / p.sum()
    p[p.cumsum(-1) - p >= top_p] = 0
    share = torch.zeros_like(p).scatter_(0, order, p / p.sum())
    found = torch.bincount(ids, minlength=V) / 4000
    torch.testing.assert_close(found.double(), share, rtol=0, atol=1e-3)


def test_repetition_penalty():
    """Catches a penalty that rewards negative logits, or that counts padding or later tokens."""
    sampling = Sampling(temperature=0, repetition_penalty=1.5)
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.1]]).repeat(2, 1)
    text = torch.tensor([[0, 0, 0], [1, 1, 1]])
    assert sample_next_token(logits, sampling, None, text).tolist() == [1, 0]
    text = torch.tensor([[0, 1, 3], [0, 0, 1]])
    assert sample_next_token(-logits, sampling, None, text).tolist() == [2, 3]
    negative = torch.tensor([[-1.0, -1.1]])
    assert sample_next_token(negative, sampling, None, torch.tensor([[0]])).tolist() == [1]
    session = Session(random_model(), [torch.tensor([4]), torch.tensor([1, 2, 3])])
    assert session.known_text()[:, :4].tolist() == [[4, 4, 4, 4], [1, 2, 3, 1]]
