"""Decoding: batches of any prompts, caches that forget and go back, drawing, and guesses that change nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decoding import quantization
from engine.decoding.compiled import CompiledStep, compile_step, decode_and_sample
from engine.decoding.generation import stream
from engine.decoding.sampling import RandomStream, Sampling, sample_next_token
from engine.decoding.session import Session, decode_one_token, prefill
from engine.decoding.speculation import Draft, ngram
from model import GPT, MODERN, GPTConfig


def tiny(seed=0, **changes):
    torch.manual_seed(seed)
    shape = dict(block_size=16, vocab_size=33, n_layer=2, n_head=4, n_embd=32)
    model = GPT(GPTConfig(**shape | changes))
    with torch.no_grad():
        for p in (
            model.parameters()
        ):  # random everywhere: heads that begin at zero would make all tokens alike
            p.normal_(std=0.3)
    return model.double().eval()


def write(model, prompts, count, sampling=None, seeds=None, guess=None, **options):
    """Return the tokens (count, B) that follow prompts, and their logits (count, B, V)."""
    session = Session(model, prompts, **options)
    random = random_stream(*seeds or range(len(prompts)))
    steps = list(stream(session, count, sampling or Sampling(top_k=10), random, guess=guess))
    tokens = torch.stack([ids for ids, _ in steps])
    assert torch.equal(session.ids[:, session.length - count : session.length], tokens.T)
    return tokens, torch.stack([logits for _, logits in steps])


def random_stream(*seeds):
    return RandomStream([torch.Generator().manual_seed(seed) for seed in seeds])


SHAPES = {
    "gpt2": {},
    "modern": MODERN,
    "windows": {**MODERN, "window": 5, "window_pattern": "SL"},
    "grouped": dict(n_kv_head=2),
    "sinusoidal": dict(position="sinusoidal"),
    "masked_fill": dict(attention="masked_fill", score="additive"),
    "tiled": dict(attention="tiled"),
}


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=5, deadline=None)
@given(st.data())
def test_a_batch_of_any_prompts_equals_each_alone(shape, data):
    """Catches padding that is seen, positions that count it, and chance that depends on the neighbours."""
    model = tiny(**SHAPES[shape])
    lengths = data.draw(st.lists(st.integers(1, 25), min_size=2, max_size=3))
    prompts = [torch.randint(33, (length,)) for length in lengths]
    prompts.append(prompts[0].clone())  # the same text twice is read once
    seeds = data.draw(st.permutations(range(len(prompts))))
    together, logits = write(model, prompts, 20, seeds=seeds)
    for n, (prompt, seed) in enumerate(zip(prompts, seeds)):
        for use_cache in (True, False):
            alone, alone_logits = write(model, [prompt], 20, seeds=[seed], use_cache=use_cache)
            assert torch.equal(alone[:, 0], together[:, n])
            torch.testing.assert_close(alone_logits[:, 0], logits[:, n], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["tiled", "naive", "linear"])
def test_what_cannot_be_one_graph(attention):
    """Catches an attention that looks at numbers on the way, and is compiled."""
    with pytest.raises(ValueError, match=f"attention={attention} cannot be compiled"):
        compile_step(tiny(attention=attention), True, 1)


def test_a_long_conversation_reads_little_again():
    """Catches a memory that grows by one token at a time, so that each token reads all the text again."""
    model = tiny(block_size=512)
    session, read = Session(model, [torch.randint(33, (3,))], room=4), []
    for _ in range(200):
        session.logits()
        read.append(session.starts is None)
        session.append(torch.randint(33, (1, 1)))
        read[-1] = session.starts is None  # forgotten: the next one reads all
    assert sum(read) < 10


def test_memory_that_sessions_share():
    """Catches memory that each batch takes anew, for which a CUDA graph is recorded anew."""
    model, step, memories = tiny(), CompiledStep(decode_and_sample), []
    for texts in 1, 1, 2:
        prompts = [torch.arange(5)] * texts  # the same text, yet no other memory
        session = Session(model, prompts, compiled=step)
        expected = Session(model, prompts).logits()
        torch.testing.assert_close(session.logits(), expected, rtol=0, atol=1e-12)
        memories.append(session.cache[0].k)
    first, second, third = memories
    assert first is second and second is not third


@pytest.mark.parametrize("where", ["mlp.c_fc", "mlp.c_proj", "attn.c_attn", "attn.c_proj"])
def test_numbers_that_float16_cannot_hold(where):
    """Catches an overflow in the middle of the model whose text is printed as if it meant something."""
    model = tiny(mlp="relu2", norm="rmsnorm")
    with torch.no_grad():
        model.get_submodule(f"transformer.h.0.{where}").weight.fill_(
            60000 / 2 ** (where == "mlp.c_fc")
        )
    model = quantization.prepare_for_inference(model, torch.float16, rows=None)
    with pytest.raises(ValueError, match="too large for float16: try --dtype=float32"):
        model.generate(torch.zeros(1, 3, dtype=torch.long), 1)


def test_a_prompt_that_texts_share_is_read_once(monkeypatch):
    """Catches a prompt that is read for each of its texts, or again when it has grown."""
    model, shared, rows = tiny(), torch.randint(33, (7,)), []
    hidden = type(model).hidden
    monkeypatch.setattr(
        type(model),
        "hidden",
        lambda self, idx, *rest: rows.append(len(idx)) or hidden(self, idx, *rest),
    )
    session = Session(model, [shared, torch.randint(33, (7,)), shared, shared])
    session.logits()
    assert rows == [2]
    session.append(torch.arange(4)[:, None])
    session.logits()
    session.append(torch.randint(33, (4, 12)))
    session.logits()
    assert rows == [2, 4, 4]


def test_padding_that_linear_attention_cannot_skip():
    """Catches a sum that padding has been added to."""
    prompts = [torch.randint(33, (3,)), torch.randint(33, (5,))]
    with pytest.raises(ValueError, match="one length"):
        write(tiny(attention="linear"), prompts, 2)
    assert write(tiny(attention="linear"), [prompts[0]] * 2, 30)[0].shape == (30, 2)


def test_the_two_verbs():
    """Catches prefill and decode_one_token that are not what reading the whole text is."""
    model, idx = tiny(), torch.randint(33, (2, 9))
    cache = model.new_cache(2)
    whole, _ = model(idx, idx)
    first = prefill(model, idx[:, :6], cache, count=3)
    torch.testing.assert_close(first, whole[:, 3:6], rtol=0, atol=1e-12)
    for n in range(6, 9):
        torch.testing.assert_close(
            decode_one_token(model, idx[:, n : n + 1], cache)[:, 0], whole[:, n], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("shape", ["gpt2", "windows", "grouped"])
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_session_that_goes_back_and_on(shape, data):
    """Catches a cache that keeps what was cut off, or has forgotten what was not, with any mix of chunks and cuts."""
    model = tiny(**{**SHAPES[shape], "block_size": 150})
    session = Session(
        model,
        [torch.randint(33, (data.draw(st.integers(1, 100)),))],
        room=data.draw(st.integers(1, 50)),
    )
    for _ in range(data.draw(st.integers(1, 5))):
        session.logits()
        session.append(torch.randint(33, (1, data.draw(st.integers(1, 30)))))
        session.logits()
        session.trim(session.length - data.draw(st.integers(0, min(session.length - 1, 32))))
        session.append(torch.randint(33, (1, data.draw(st.integers(1, 30)))))
        count = data.draw(st.integers(1, min(3, session.length)))
        text = session.text()[model.context_start(session.length) :]
        torch.testing.assert_close(
            session.logits(count), model(text[None], text[None])[0][:, -count:], rtol=0, atol=1e-12
        )


def test_an_interrupted_session_reads_again():
    """Catches a cache in which only some layers have read the last token."""
    model = tiny()
    session = Session(model, [torch.randint(33, (5,))])
    whole = session.logits()
    with torch.inference_mode():
        session.cache[0].append(*torch.zeros(2, 1, 4, 1, 8, dtype=torch.float64))
    session.cache[0].at = torch.zeros(1, dtype=torch.long)  # in a compiled step
    session.forget()
    assert torch.equal(session.logits(), whole)


GUESSES = {
    "right": lambda session, most: session.truth[session.length : session.length + min(most, 5)],
    "wrong": lambda session, most: [0] * min(most, 5),
    "ngram": lambda session, most: ngram(session, min(most, 8)),
}


@pytest.mark.parametrize("shape", ["gpt2", "modern", "windows"])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_guesses_do_not_change_the_text(shape, temperature):
    """Catches a guess that is kept though something else was drawn, and logits of the wrong place, beyond block_size too."""
    model, draft = tiny(**SHAPES[shape]), tiny(seed=1, n_layer=1)
    prompt = torch.tensor([1, 2, 3, 4, 1, 2, 3])
    sampling = Sampling(temperature=temperature, top_k=5, repetition_penalty=1.1)
    plain, plain_logits = write(model, [prompt], 60, sampling)
    own_chance = RandomStream([torch.Generator().manual_seed(0)])
    for guess in (
        GUESSES["wrong"],
        GUESSES["ngram"],
        Draft(draft, sampling, own_chance),
        Draft(model, sampling, own_chance),
    ):
        few = (
            guess
            if not isinstance(guess, Draft)
            else lambda session, most, guess=guess: guess(session, min(most, 4))
        )
        got, logits = write(model, [prompt], 60, sampling, guess=few)
        assert torch.equal(got, plain)
        torch.testing.assert_close(logits, plain_logits, rtol=0, atol=1e-10)


def test_a_good_draft_saves_steps():
    """Catches a draft that is one token off, whose guesses are all wrong: the model itself guesses right at any temperature."""
    model, prompt, sampling = (
        tiny(block_size=100),
        torch.tensor([1, 2, 3]),
        Sampling(temperature=0.9),
    )
    session, chance = Session(model, [prompt]), RandomStream([torch.Generator().manual_seed(0)])
    draft = Draft(model, sampling, chance)
    list(
        stream(
            session, 60, sampling, chance, guess=lambda session, most: draft(session, min(most, 5))
        )
    )
    assert session.passes == 10


def test_a_draft_with_a_short_context():
    """Catches guesses that cross the place where the draft's own context moves on, and a text cut off by that."""
    model, draft, sampling = (
        tiny(block_size=200),
        tiny(seed=1, block_size=8),
        Sampling(temperature=0.9),
    )
    prompt = torch.tensor([1, 2, 3])
    plain, _ = write(model, [prompt], 100, sampling)
    guess = Draft(draft, sampling, RandomStream([torch.Generator().manual_seed(0)]))
    got, _ = write(
        model, [prompt], 100, sampling, guess=lambda session, most: guess(session, min(most, 20))
    )
    assert torch.equal(got, plain)


def test_chance_is_a_function_of_the_place():
    """Catches numbers that depend on who asked first, as a draft does that looks ahead."""
    one, two = (RandomStream([torch.Generator().manual_seed(n) for n in (4, 5)]) for _ in range(2))
    columns = [one.at(column) for column in (7, 8, 9, 12)]
    two.at(7)
    assert all(torch.equal(a, two.at(column)) for a, column in zip(columns[::-1], (12, 9, 8, 7)))


def test_a_window_that_lets_go_beside_padding():
    """Catches padding that is counted from the first position that a windowed cache has kept."""
    model = tiny(**{**MODERN, "block_size": 400}, window=5)
    prompts = [torch.randint(33, (length,)) for length in (3, 90, 200)]
    together, logits = write(model, prompts, 60)
    for n, prompt in enumerate(prompts):
        _, alone = write(model, [prompt], 60, seeds=[n])
        torch.testing.assert_close(alone[:, 0], logits[:, n], rtol=0, atol=1e-12)


def test_right_guesses_save_steps():
    """Catches guesses that are proven one by one, which saves nothing."""
    model, prompt = tiny(block_size=100), torch.tensor([1, 2, 3])
    truth = [1, 2, 3, *write(model, [prompt], 61, Sampling(temperature=0))[0][:, 0].tolist()]
    session = Session(model, [prompt])
    session.truth = truth
    chance = RandomStream([None])
    tokens = [
        t.item()
        for t, _ in stream(session, 60, Sampling(temperature=0), chance, guess=GUESSES["right"])
    ]
    assert tokens == truth[3:63] and session.passes == 10  # five guesses and one more a pass


def test_ngram_finds_what_followed():
    """Catches a match with the end itself, an older match instead of the latest, and one that is too short to mean much."""

    def after(text, most=3):
        return ngram(Session(tiny(), [torch.tensor(text)]), most)

    assert after([5, 1, 2, 3, 9, 8, 7, 1, 2, 3]) == [9, 8, 7]
    assert after([1, 2, 4, 4, 1, 2, 5, 5, 1, 2]) == [5, 5, 1]
    assert after([1, 2, 3, 4]) == [] == after([1]) == after([7, 1, 8, 1])
    assert after([3, 3, 3, 3], most=9) == [3]


def test_speculation_draws_what_the_model_expects():
    """Catches acceptance that favours the draft, which thinks otherwise: chi-squared of 100,000 draws against the model."""
    model, draft = (
        tiny(vocab_size=5, block_size=4, n_embd=8),
        tiny(seed=3, vocab_size=5, block_size=4, n_embd=8),
    )
    count, prompt = 100_000, torch.tensor([1])
    logits = {True: model(prompt[None])[0][0, -1], False: draft(prompt[None])[0][0, -1]}
    second = [model(torch.tensor([[1, n]]))[0][0, -1].softmax(-1) for n in range(5)]
    first = logits[True].softmax(-1)
    numbers = torch.rand(2, count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for n in range(600):  # the first of them are those of the texts that stream writes below
        numbers[:, n] = torch.rand(
            2, dtype=torch.float64, generator=torch.Generator().manual_seed(n)
        )
    # The rule of stream, for all texts at once: guess by the draft, draw by the model with the same number.
    sampling = Sampling()
    drawn = sample_next_token(logits[True].expand(count, -1), sampling, numbers[0])
    guessed = sample_next_token(logits[False].expand(count, -1), sampling, numbers[0])
    assert 0.1 < (drawn == guessed).double().mean() < 0.99
    expected = first * count
    assert (
        (torch.bincount(drawn, minlength=5) - expected) ** 2 / expected
    ).sum() < 18.5  # p = 0.001 at 4 degrees of freedom
    then = sample_next_token(torch.stack(second)[drawn].log(), sampling, numbers[1])
    for n in range(5):
        after, expected = then[drawn == n], second[n] * (drawn == n).sum()
        assert ((torch.bincount(after, minlength=5) - expected) ** 2 / expected).sum() < 18.5
    for n in range(600):  # stream with a draft, text by text, draws just that
        u = RandomStream([torch.Generator().manual_seed(n)])
        guess = Draft(draft, sampling, u)
        assert [
            t.item() for t, _ in stream(Session(model, [prompt]), 2, sampling, u, guess=guess)
        ] == [drawn[n], then[n]]


def test_drawing():
    """Catches top_k, top_p and min_p that let others through, and greedy that is not."""
    logits, u = (
        torch.tensor([[1.0, 5.0, 3.0, 4.0, 9.0]]).repeat(2000, 1),
        torch.linspace(0, 1, 2001)[:-1],
    )
    drawn = lambda **how: set(sample_next_token(logits, Sampling(**how), u).tolist())  # noqa: E731
    assert drawn(top_k=2, temperature=10.0) == {1, 4}
    assert (
        drawn(temperature=0) == {4} == drawn(temperature=1e-30) == drawn(top_k=1, temperature=9.0)
    )
    assert drawn(temperature=100.0) == {0, 1, 2, 3, 4} == drawn(temperature=100.0, top_k=99)
    p = (logits[0] / 4).softmax(-1)  # 0.50 0.21 0.16 ... of 4, 1, 3, 2, 0
    assert drawn(temperature=4.0, top_p=p[4].item() + 1e-6) == {1, 4}
    assert drawn(temperature=4.0, top_p=p[4].item() - 1e-6) == {4}
    assert drawn(temperature=4.0, min_p=(p[1] / p[4]).item() - 1e-6) == {1, 4}
    assert (
        drawn(temperature=4.0, min_p=(p[1] / p[4]).item() + 1e-6)
        == {4}
        == drawn(temperature=4.0, top_p=1e-9)
    )
    assert drawn(temperature=4.0, top_k=3, top_p=0.999) == {1, 3, 4}


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(2, 40),
    st.integers(0, 50),
    st.floats(0.05, 1.0),
    st.floats(0.3, 3.0),
)
def test_drawn_shares_are_the_probabilities(seed, V, top_k, top_p, temperature):
    """Catches a token that gets more or less of the interval than its share among those that are left."""
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    drawn = sample_next_token(
        logits.expand(4000, -1), Sampling(temperature=temperature, top_k=top_k, top_p=top_p), u
    )
    p, ids = (logits.float().double() / temperature).softmax(-1).sort(descending=True)
    p[min(top_k or V, V) :] = 0
    p = p / p.sum()
    p[p.cumsum(-1) - p >= top_p] = 0
    share = torch.zeros(V, dtype=torch.float64).scatter_(0, ids, p / p.sum())
    torch.testing.assert_close(
        torch.bincount(drawn, minlength=V) / 4000, share, rtol=0, atol=1e-3, check_dtype=False
    )


def test_repetition_penalty():
    """Catches a penalty that rewards tokens with negative logits, or that counts the padding of shorter texts."""
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.1]]).repeat(2, 1)
    text = torch.tensor([[0, 0, 0], [-1, -1, 1]])
    best = sample_next_token(
        logits, Sampling(temperature=0, repetition_penalty=1.5), torch.zeros(2), text
    )
    assert best.tolist() == [1, 0]
    text = torch.tensor([[0, 1, 2], [-1, -1, -1]])
    last = [
        sample_next_token(
            -logits, Sampling(temperature=0, repetition_penalty=1.5), torch.zeros(2), text
        )[n].item()
        for n in (0, 1)
    ]
    assert last == [3, 3]
    model = tiny()
    session = Session(model, [torch.tensor([4]), torch.tensor([1, 2, 3])])
    assert session.without_padding(3)[:, :4].tolist() == [[-1, -1, 4, -1], [1, 2, 3, -1]]
    assert session.without_padding(2)[:, :4].tolist() == [[-1, -1, -1, -1], [1, 2, -1, -1]]


@pytest.mark.parametrize(
    "change",
    [
        dict(temperature=-1.0),
        dict(temperature=float("nan")),
        dict(top_k=-1),
        dict(top_p=0.0),
        dict(top_p=1.5),
        dict(min_p=-0.1),
        dict(min_p=2.0),
        dict(repetition_penalty=0.0),
        dict(repetition_penalty=float("inf")),
    ],
)
def test_impossible_sampling(change):
    """Catches settings that surface as an error of torch, or as text that means nothing."""
    with pytest.raises(ValueError, match=next(iter(change))):
        Sampling(**change)


def test_a_conversation_outgrows_its_room():
    """Catches a session whose memory was sized for the first turn."""
    model = tiny(block_size=200)
    session = Session(model, [torch.randint(33, (3,))], room=2)
    for _ in range(20):
        session.append(torch.randint(33, (1, 4)))
        text = session.text()[None]
        torch.testing.assert_close(
            session.logits()[:, -1], model(text)[0][:, -1], rtol=0, atol=1e-12
        )
