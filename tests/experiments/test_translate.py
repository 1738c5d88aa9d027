"""Translation: the grammar, searches, BLEU by length, and the experiment's claim, small."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, parametrize, refused

from engine.files import read_json
from experiments import translate
from experiments.shared import grammar, translation, trials
from experiments.shared.blocks import LookingBlock
from experiments.shared.translation import END, padded, shifted
from model import GPTConfig

PAIRS = grammar.pairs(400, 0)
TINY = dict(n_embd=32, batch_tokens=300, sentences=200, beam=2)


def new_model(name):
    torch.manual_seed(0)
    return translate.MODELS[name](40, translate.Settings(**TINY)).eval()


# ---- The grammar


def test_agreement():
    """Catches what does not agree, "un" after "ne ... pas", and a vowel without elision."""
    right = {
        "some teachers sat on the bed because my friend is blue": "quelques professeurs"
        " se sont assis sur le lit parce que mon amie est bleue",
        "a woman sat on the bed": "une femme s'est assise sur le lit",
        "these wolves are not green": "ces loups ne sont pas verts",
        "my friend that a green ant watches is not hungry": "mon amie qu'une fourmi verte"
        " regarde n'est pas affamée",
        "the wolf follows my singers but this ant dances because my big girl does not know"
        " a small lion": "le loup suit mes chanteuses mais cette fourmi danse parce que"
        " ma grande fille ne connaît pas de petit lion",
    }
    assert right.items() <= dict(grammar.pairs(400, 1)).items()


def test_train_and_test_are_apart():
    """Catches a test with sentences that were trained."""
    train, test = translate.load_pairs(translate.Settings(**TINY))
    assert len(test) == 20 and len(train) == 180 and not dict(train).keys() & dict(test).keys()


def test_summaries():
    """Catches a summary that is another sentence than the marked one, and a place that gives it."""
    places = []
    for document, summary in grammar.summaries(100, 0):
        before, after = document.split(f"{grammar.MARK} ")
        assert after.split(". ")[0] == summary and document.count(".") == 3
        places.append(before.count("."))
    assert min(places.count(n) for n in range(4)) > 10


# ---- Pieces and batches


def test_vocabulary():
    """Catches texts that do not come back, and a number for a piece that training never saw."""
    vocabulary = translation.learn_vocabulary([text for pair in PAIRS for text in pair], 700)
    for text in PAIRS[0]:
        numbers = vocabulary.encode(text)
        assert max(numbers) < len(vocabulary) and vocabulary.decode([*numbers, 5]) == text
    assert vocabulary.decode(vocabulary.encode("猫")) == ""


def test_batches():
    """Catches sentences left out or repeated, large batches, a first epoch out of order."""
    lengths = np.random.default_rng(0).integers(1, 50, 300)
    endless = translation.batches(lengths, 200, 0)
    longest = []
    for _ in range(2):
        rows = []
        while sum(map(len, rows)) < 300:
            rows.append(next(endless))
        assert sorted(itertools.chain(*rows)) == [*range(300)]
        assert all(lengths[batch].sum() < 250 and np.ptp(lengths[batch]) < 8 for batch in rows)
        longest.append([lengths[batch].max() for batch in rows])
    first, second = longest
    assert first == sorted(first) and second != sorted(second)


# ---- Models and searches


@torch.no_grad()
@parametrize("name", translate.MODELS)
def test_searches(name):
    """Catches a beam of 1 that is not greedy, a state of another beam, padding that is seen.

    And a decoder that step by step differs from training.
    """
    model = new_model(name)
    model.embed.weight[END] += 0.2  # so that some end early
    sources = [torch.randint(1, 40, (n,)) for n in (3, 7, 5)]
    for beam in (1, 5):
        tokens, scores = translation.search(model, *padded(sources), beam)
        logits, _ = model.decode(shifted(tokens), model.encode(*padded(sources)))
        each = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        own = (tokens == END).cumsum(1) - (tokens == END).int() == 0  # up to END
        means = (each * own).sum(1) / own.sum(1)
        assert torch.allclose(means, scores, atol=1e-4)
        if beam == 1:
            assert torch.equal(logits.argmax(-1)[own], tokens[own])
    alone, _ = model.decode(shifted(tokens)[:1], model.encode(*padded(sources[:1])))
    assert torch.allclose(alone, logits[:1], atol=1e-5)


@parametrize("name", ["bahdanau", "loop"])
def test_loops_by_hand(name):
    """Catches a query after the step, a context that the recurrence or the output lacks, another
    first state, and in the lectures' loop a query, key or value that is a state.
    """
    model = new_model(name).double()
    source, real = padded([torch.randint(1, 40, (n,)) for n in (6, 4)])
    target = torch.randint(1, 40, (2, 5))
    memory = model.encode(source, real)
    logits, _ = model.decode(target, memory)
    words = model.embed(target)
    [s], _ = model.new_past(memory, 0)
    assert s.any() == (name == "bahdanau")
    for i in range(5):
        if name == "loop":
            k, v = memory[0][:, 0], memory[1][:, 0]
            e = (k @ model.qkv.c_q(s)[..., None])[..., 0] / 32**0.5
        else:
            k = v = memory[0][:, 0]
            e = torch.tanh((s @ model.score.W1)[:, None] + k @ model.score.W2) @ model.score.v
        alpha = e.masked_fill(~real, -torch.inf).softmax(1)
        c = (alpha[..., None] * v).sum(1)
        x = torch.cat([words[:, i], model.qkv.c_proj(c) if name == "loop" else c], 1)
        s = model.decoder(x[:, None], s[None])[1][0]
        t = model.combine(torch.cat([s, x], 1)).tanh()
        assert torch.allclose(logits[:, i], t @ model.embed.weight.T, atol=1e-12)


@parametrize("norm_first", [False, True])
def test_the_block_of_2017(norm_first):
    """Catches a norm in another place, a missing look, and parts in another order."""
    block = LookingBlock(GPTConfig(n_embd=32, n_head=4), 0, norm_first=norm_first)
    memory, x = torch.randn(2, 2, 5, 32)
    parts = [(block.ln_1, block.attn), (block.ln_x, lambda x: block.look(x, memory))]
    found, y = block(x, memory=memory), x
    for norm, part in [*parts, (block.ln_2, block.mlp)]:
        y = y + part(norm(y)) if norm_first else norm(y + part(y))
    torch.testing.assert_close(found, y)


def test_the_learning_rate_of_2017():
    """Catches a rate that is not the paper's."""
    d, warmup = 512, 4000
    for step in (1, 10, 4000, 9000):
        paper = d**-0.5 * min(step**-0.5, step * warmup**-1.5)
        ours = (d * warmup) ** -0.5 * trials.inverse_sqrt(step - 1, warmup)
        assert ours == pytest.approx(paper, rel=1e-12)


class Table:
    """A model whose next piece depends on the last one alone."""

    def encode(self, source, real):
        return [source]

    def new_past(self, memory, longest):
        return None

    def decode(self, target, memory, past):
        [tables] = memory
        return tables[torch.arange(len(target)), target[:, -1], None], past

    def select(self, past, rows):
        return past


def test_length_normalization():
    """Catches a search that misses the translation with the best mean, or wants short ones."""
    tables = torch.randn(20, 3, 3).log_softmax(-1)
    found, _ = translation.search(Table(), tables, None, 31, longest=4)
    every = [[*words, END] for n in range(4) for words in itertools.product((1, 2), repeat=n)]
    every += map(list, itertools.product((1, 2), repeat=4))
    for table, tokens in zip(tables, found.tolist()):

        def mean(row):
            return table[[END, *row[:-1]], row].mean()

        best = max(every, key=mean)
        assert tokens == best + [END] * (len(tokens) - len(best))


def test_bleu():
    """Catches a score that counts capitals, and sentences among those of another length."""
    pytest.importorskip("sacrebleu")
    right = ["the small cat sees the dog", "a man sleeps behind the house"]
    assert translation.bleu([text.upper() for text in right], right) == pytest.approx(100)
    assert translation.by_length(["a b c", "a", "a b c d", "a b"], 2) == {2: [1, 3], 4: [0, 2]}


# ---- The experiment


def test_what_a_translator_looks_at():
    """Catches a record in which "does" does not look at "ne", or "sat" not at "s'est"."""
    found = read_json(ROOT / "benchmarks/translate_into_english.json")
    for run in found["runs"]["loop"]:
        source, target, weights = run["alignment"]
        seen = {word: source[np.argmax(row)] for word, row in zip(target, weights)}
        assert seen["does"] == "ne" and seen["sat"] in "s'est"


def test_attention_frees_from_one_vector():
    """Catches a network without attention that sees the source, and attention that sees nothing."""
    pytest.importorskip("sacrebleu")
    rng = np.random.default_rng(0)
    rows = [np.append(rng.integers(1, 20, rng.integers(4, 13)), END) for _ in range(500)]
    config = translate.Settings(**TINY, learning_rate=1e-2, steps=100, patience=1)
    found = {}
    for name in ("none", "dot"):  # words to copy
        torch.manual_seed(0)
        model = translate.MODELS[name](20, config)
        translate.train_model(model, name, config, [(row, row) for row in rows], 0)
        target, real = padded(rows)
        logits, _ = model.decode(shifted(target), model.encode(target, real))
        found[name] = trials.accuracy(logits[real], target[real])
    assert found["none"] < 0.6 < 0.8 < found["dot"], found


def test_a_run(tmp_path, small_experiment):
    """Catches compressed files that cannot be read, and a model that is not the best."""
    pytest.importorskip("sacrebleu")
    english, french = zip(*sorted(PAIRS, key=lambda pair: len(pair[0]))[:60])
    (tmp_path / "en.gz").write_bytes(gzip.compress("\n".join(english).encode()))
    (tmp_path / "fr").write_text("\n".join(french))
    report = small_experiment(
        translate,
        **TINY,
        source=str(tmp_path / "en.gz"),
        target=str(tmp_path / "fr"),
        vocab_size=400,
        models="none,bahdanau,transformer2017",
        steps=20,
        learning_rate=1e-2,
        save=str(tmp_path / "saved"),
    )
    for name, [found] in report["runs"].items():
        source, target, weights = found["alignment"]
        assert name == "none" or np.shape(weights) == (len(target), len(source))
    scores = {name: found["beam 2"] for name, [found] in report["runs"].items()}
    saved = read_json(tmp_path / "saved" / "translator.json")["model"]
    assert scores[saved] == max(scores.values()) > 0


@parametrize(
    "source, target, message",
    [
        ("one", "two", "one has 1 lines"),
        ("latin", "two", "cannot read latin"),
        ("fake.gz", "two", "cannot read fake.gz"),
        ("two", "", "belong together"),
        ("two", "two", "too few sentences"),
    ],
)
def test_bad_files(tmp_path, monkeypatch, source, target, message):
    """Catches files that do not fit together and are read, and another error than ValueError."""
    monkeypatch.chdir(tmp_path)
    files = {"one": b"a\n", "two": b"a\nb\n", "latin": b"\xe9\n", "fake.gz": b"a"}
    for name, content in files.items():
        Path(name).write_bytes(content)
    with refused(message):
        translate.load_pairs(translate.Settings(source=source, target=target))
