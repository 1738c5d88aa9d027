"""Translation: the grammar, searches, BLEU by length, and the experiment's claim, small."""

import gzip
import itertools
import pickle

import numpy as np
import pytest
import torch
from conftest import complaint, run_here

from experiments import translate
from experiments.shared import grammar, translation, trials
from experiments.shared.translation import END, padded, shifted

PAIRS = grammar.pairs(400, 0)
TINY = dict(n_embd=32, batch_tokens=300, sentences=200, beam=2)


def new_model(name):
    torch.manual_seed(0)
    return translate.MODELS[name](40, translate.Settings(**TINY)).eval()


# ---- The grammar


def test_agreement():
    """Catches an article that does not agree, un after ne ... pas, a vowel without elision."""
    nouns = {}
    for _, _, one, many, gender in grammar.NOUNS:
        nouns |= {many: None, one: gender}  # one souris, many souris: the article tells
    articles = {"ce": "m", "cet": "m", "cette": "f", "le": "m", "la": "f"}
    checked = 0
    for _, french in grammar.pairs(400, 1):
        words = french.replace("'", "' ").split()
        for word, after in zip(words, words[1:]):
            if word in articles and after in nouns:
                assert nouns[after] == articles[word], french
                checked += 1
            if word in ("le", "la", "ne", "que", "de", "ce", "ma", "puisque"):
                assert after[0] not in "aeiouéh", french
            if word == "pas":
                assert after not in ("un", "une"), french
        for place, word in enumerate(words):
            assert word != "pas" or words[place - 2] in ("ne", "n'"), french
    assert checked > 100


def test_train_and_test_are_apart():
    """Catches a test with sentences that were trained."""
    train, test = translation.load_pairs(translate.Settings(**TINY))
    assert len(test) == 20 and len(train) == 180 and not dict(train).keys() & dict(test).keys()


def test_summaries():
    """Catches a summary that is another sentence than the marked one, and a place that gives it."""
    places = []
    for document, summary in grammar.summaries(100, 0):
        before, after = document.split(f"{grammar.MARK} ")
        assert after.split(". ")[0] == summary and document.count(".") == 3
        places.append(before.count("."))
    assert {places.count(n) > 10 for n in range(4)} == {True}
    train, test = translation.load_pairs(translate.Settings(**TINY, task="summarize"))
    assert len(train) + len(test) == 200 and grammar.MARK in test[0][0]


# ---- Pieces and batches


def test_vocabulary():
    """Catches texts that do not come back, and a number for a piece that training never saw."""
    vocabulary = translation.Vocabulary([text for pair in PAIRS for text in pair], 700)
    for text in PAIRS[0]:
        numbers = vocabulary.encode(text)
        assert numbers[-1] == END and max(numbers) < len(vocabulary)
        assert vocabulary.decode([*numbers, 5]) == text
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


@pytest.mark.parametrize("name", translate.MODELS)
def test_padding_and_the_past(name):
    """Catches padding that a model sees, and a step by step decoder that differs from training."""
    model = new_model(name)
    source, target = torch.randint(1, 40, (1, 6)), torch.randint(1, 40, (1, 5))
    alone, _ = model.decode(target, model.encode(source, torch.ones(1, 6, dtype=torch.bool)))
    memory = model.encode(*padded([source[0], torch.randint(1, 40, (9,))]))
    both = target.expand(2, -1)
    among, _ = model.decode(both, memory)
    assert torch.allclose(alone, among[:1], atol=1e-5)
    past = model.new_past(memory, 5)
    for n in range(5):
        logits, past = model.decode(both[:, n : n + 1], memory, past)
        assert torch.allclose(logits[:, 0], among[:, n], atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", translate.MODELS)
def test_searches(name):
    """Catches a beam of 1 that is not greedy, a state of another beam, a beam that finds worse."""
    model = new_model(name)
    model.embed.weight[END] += 0.2  # so that some end early
    source, real = padded([torch.randint(1, 40, (n,)) for n in (3, 7, 5)])
    scores = {}
    for beam in (1, 5):
        tokens, scores[beam] = translation.search(model, source, real, beam)
        logits, _ = model.decode(shifted(tokens), model.encode(source, real))
        each = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        own = (tokens == END).cumsum(1) - (tokens == END).int() == 0  # up to END
        means = (each * own).sum(1) / own.sum(1)
        assert torch.allclose(means, scores[beam], atol=1e-4)
        if beam == 1:
            assert torch.equal(logits.argmax(-1)[own], tokens[own])
    assert scores[5].mean() >= scores[1].mean()


def test_bleu():
    """Catches a score that does not rise with the right words, or that counts capitals."""
    right = ["the small cat sees the dog", "a man sleeps behind the house"]
    some = ["the small cat sees a bird", "a man sleeps behind the tree"]
    capitals = [text.upper() for text in right]
    scores = [translation.bleu(texts, right) for texts in (["it is", "no"], some, capitals)]
    assert scores[0] < scores[1] < scores[2] == pytest.approx(100)
    assert translation.by_length(["a b c", "a", "a b c d", "a b"], 2) == {2: [1, 3], 4: [0, 2]}


# ---- The experiment


def test_attention_frees_from_one_vector(monkeypatch):
    """Catches a network without attention that sees the source, and attention that sees nothing."""
    rng = np.random.default_rng(0)
    rows = [np.append(rng.integers(1, 20, rng.integers(4, 13)), END) for _ in range(500)]
    config = translate.Settings(**TINY, learning_rate=1e-2, steps=100, patience=1)
    fit, losses = trials.fit, {}

    def keep(model, loss, *settings):
        fit(model, loss, *settings)
        losses[name] = loss(0).item()

    monkeypatch.setattr(trials, "fit", keep)
    monkeypatch.setattr(translation, "translate", lambda *args: ["a"])
    monkeypatch.setattr(translation, "alignment", lambda *args: None)
    for name in ("none", "dot"):  # words to copy
        translate.run(name, config, range(20), [(row, row) for row in rows], [("a", "a")], 0)
    assert losses["dot"] < 0.5 * losses["none"] and losses["none"] > 1, losses


def test_a_run(tmp_path, small_experiment, monkeypatch):
    """Catches compressed files that cannot be read, and what cannot go to another process."""
    english, french = zip(*sorted(PAIRS, key=lambda pair: len(pair[0]))[:60])
    (tmp_path / "en.gz").write_bytes(gzip.compress("\n".join(english).encode()))
    (tmp_path / "fr").write_text("\n".join(french), encoding="utf-8")
    run = translate.run
    monkeypatch.setattr(translate, "run", lambda *job: run(*pickle.loads(pickle.dumps(job))))
    report = small_experiment(
        translate,
        **TINY,
        source=str(tmp_path / "en.gz"),
        target=str(tmp_path / "fr"),
        vocab_size=400,
        models="none,general,transformer",
        steps=2,
        example="the cat sleeps",
    )
    [rows] = report["tables"].values()
    assert [row["attention"] for row in rows] == ["none", "general", "transformer"]
    (none,), (general,), _ = report["runs"].values()
    assert none["alignment"][2] is None and np.allclose(np.sum(general["alignment"][2], 1), 1)


@pytest.mark.parametrize(
    "source, target, message",
    [
        ("one", "two", "one has 1 lines"),
        ("latin", "two", "is not UTF-8"),
        ("fake.gz", "two", "fake.gz is not"),
        ("two", "", "belong together"),
        ("two", "two", "too few sentences"),
    ],
)
def test_bad_files(tmp_path, source, target, message):
    """Catches a traceback for files that do not fit together."""
    files = {"one": b"a\n", "two": b"a\nb\n", "latin": b"\xe9\n", "fake.gz": b"a"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    flags = [f"--source={tmp_path / source}", f"--target={target and tmp_path / target}"]
    assert message in complaint(run_here("-m", "experiments.translate", *flags))
