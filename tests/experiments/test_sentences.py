"""Sentences: what is hidden, asked for and drawn, what stands in documents, and what probes see."""

import collections
import random

import pytest
import torch
from conftest import ROOT, data_of, parametrize, refused

from engine.files import read_json
from experiments import blanks, documents, pronouns, reading, senses
from experiments.shared import ambiguity, labelled, masking
from experiments.shared.ambiguity import Reading, number_words
from model import GPTConfig

V = 50
TIRED = "the dog did not cross the street because it was too tired"


# ---- Blanks


def test_corruption():
    """Catches other proportions than BERT's, padding that is chosen, words changed unasked."""
    ids = torch.randint(V - 1, (8000, 17))
    given, words = masking.corrupted(ids, V)
    chosen = words >= 0
    assert (ids[chosen] > masking.UNKNOWN).all() and given[chosen].min() == 2
    assert torch.equal(words[chosen], ids[chosen]) and torch.equal(given[~chosen], ids[~chosen])
    blank = given[chosen] == V - 1
    stays = given[chosen] == ids[chosen]
    shares = [chosen.sum() / (ids > masking.UNKNOWN).sum(), blank.float().mean()]
    assert [*shares, stays.float().mean()] == pytest.approx([0.15, 0.8, 0.1], abs=0.02)


@parametrize("name, first", [(blanks.FULL, 0), (blanks.BACK, 6), (blanks.NEXT, 7)])
def test_who_sees_a_later_word(name, first):
    """Catches an encoder that looks back only, a decoder that sees ahead, padding that is seen."""
    visible, _ = blanks.KINDS[name]
    config = GPTConfig(**blanks.SHAPE | {"init": "gpt2"}, vocab_size=V, visible=visible)
    model = blanks.Encoder(config, shifted=name == blanks.NEXT).double()
    ids = torch.randint(2, V - 1, (9, 17))
    other = ids.clone()
    other[:, 6] = 2 + (ids[:, 6] - 1) % (V - 3)
    changed = (model.states(ids)[0] != model.states(other)[0]).any(-1)
    assert (changed.int().argmax(1) == first).all()
    ids[:, 5:] = masking.PAD
    torch.testing.assert_close(model.states(ids)[0][:, :5], model.states(ids[:, :6])[0][:, :5])


# ---- Documents


def test_docstrings(tmp_path, monkeypatch):
    """Catches code among the sentences, sentences that are cut at a line's end, and doubles."""
    text = "The first sentence here has seven words. Short one.\n\n>>> no sentence at all but code"
    more = 'def f():\n    """This one goes on\n    in the next line of it."""\n'
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(f'"""{text}\n"""\n{more}')
    monkeypatch.setattr(labelled.sysconfig, "get_path", lambda name: str(tmp_path))
    first = "The first sentence here has seven words."
    assert labelled.sentences() == [first, "This one goes on in the next line of it."]


def test_context():
    """Catches padding that is read, states in other places, and a direction that is not read."""
    context = documents.Context(4)
    x = torch.randn(2, 5, 4)
    real = torch.tensor([[True, False, True, True, False], [True] * 5])
    for words, found, own in zip(x, context(x, real), real):
        onwards, _ = context.grus[0](words[own])
        backwards, _ = context.grus[1](words[own].flip(0))
        right = torch.cat([onwards, backwards.flip(0)], 1)
        torch.testing.assert_close(found[own], right)


def test_a_flat_reader_knows_the_sentences():
    """Catches a rival of the hierarchy that cannot know where a sentence ends."""
    reader = documents.Reader(10, hierarchical=False, recurrent=True, learned=True)
    one, *_ = reader(torch.tensor([[[1, 2, 3], [4, 0, 0]]]))
    other, *_ = reader(torch.tensor([[[1, 2, 0], [3, 4, 0]]]))
    assert not torch.allclose(one, other)


# ---- Pronouns


@parametrize(
    "english, french",
    [
        (TIRED, "le chien n'a pas traversé la rue parce qu'il était trop fatigué"),
        (
            "because it was too full the trophy did not fit my suitcase",
            "parce qu'elle était trop pleine le trophée n'a pas tenu dans ma valise",
        ),
        (
            "this ant did not leave this garden because it was too lazy",
            "cette fourmi n'a pas quitté ce jardin parce qu'elle était trop paresseuse",
        ),
        (
            "the bird did not reach my path because it was too muddy",
            "l'oiseau n'a pas atteint mon sentier parce qu'il était trop boueux",
        ),
    ],
)
def test_translations(english, french):
    """Catches a pronoun or an adjective that agrees with the other noun, and a false elision."""
    assert Reading(english).french() == french


def test_no_word_alone_tells():
    """Catches a noun, an adjective or two nouns that tell the pronoun, or were trained together."""
    answers = collections.defaultdict(collections.Counter)
    nouns = []
    for english, french in ambiguity.pronouns(800, 0, tested=True):
        words = Reading(english).words
        subject, object, adjective = (words[role] for role in ("subject", "object", "adjective"))
        nouns.append((subject, object))
        for cue in {subject}, {object}, {adjective}, {subject, object}, {*nouns[-1], adjective}:
            answers[frozenset(cue)]["elle" in ambiguity.words_of(french)] += 1
    for cue, counts in answers.items():
        assert len(counts) == 1 if len(cue) == 3 else counts[True] == counts[False], cue
    trained = [Reading(english).words for english, _ in ambiguity.pronouns(2000, 0)]
    assert not {(words["subject"], words["object"]) for words in trained} & {*nouns}


@parametrize(
    "example, message",
    [
        ("the dog sleeps", "is not like"),
        (f"{TIRED} and it slept", "is not like"),
        (TIRED.replace("tired", "bulky"), "does not tell what 'it' stands for"),
        (TIRED.replace("street", "cat"), "does not tell what 'it' stands for"),
    ],
)
def test_what_cannot_be_measured(example, message):
    """Catches a number for a sentence without a pronoun, or with one that may mean either."""
    with refused(message):
        Reading(example)


@parametrize("name, heads", [("dot", 1), ("transformer", 4), ("gpt", 8)])
def test_measurement_of_a_made_map(name, heads, monkeypatch):
    """Catches the row before or after the pronoun's, another head, and words of the wrong text."""
    pairs = ambiguity.pronouns(40, 0)
    numbers = number_words(pairs)
    source, target, _ = ambiguity.encode(pairs, numbers)
    S = source.shape[1]

    def looking(q, k, *how):
        """The last head looks from il or elle at the referent."""
        maps = torch.zeros(len(pairs), q.shape[1], q.shape[2], k.shape[2])
        start = S if k.shape[2] > target.shape[1] else 0
        for n, (english, french) in enumerate(pairs):
            words = ambiguity.words_of(french)
            pronoun = start + [word in ambiguity.IT for word in words].index(True)
            if pronoun < q.shape[2]:
                maps[n, -1, pronoun, Reading(english).places["referent"]] = 1
        return maps

    model = pronouns.MODELS[name](len(numbers) + 1, pronouns.SHAPE).eval()
    monkeypatch.setattr(pronouns, "attention_weights", looking)
    found = pronouns.measure(model, pairs, numbers)[pronouns.PRONOUN]
    assert found["referent, best head"] == 1 and found["other, best head"] == 0
    assert found["head"] in (heads - 1, heads // 2 - 1)


# ---- What a word looks at in an encoder


@parametrize("task, roles", [("it", 2), ("bank", 3), ("verb", 2)])
def test_sentences_with_roles(task, roles):
    """Catches a pair of nouns of the test in training, a lost role, an adjective of the other."""
    known, asked = set(), set()
    for tested, found in ((False, known), (True, asked)):
        rng = random.Random(0)
        for _ in range(1500):
            text, _ = reading.TASKS[task](rng, tested)
            said = [word for word in text.split() if "/" in word and "asked" not in word]
            assert len(said) == roles and "/asked" in text
            found.add(" ".join(sorted(word.partition("/")[0] for word in said)))
    assert task == "bank" or not known & asked


def test_the_lectures_sentences():
    """Catches a sentence whose "it" does not find its noun, and a page with other weights."""
    found = read_json(ROOT / "experiments/reading.json")
    nouns = "animal street trophy suitcase cat mat".split()
    for shown, noun in zip(found["examples"], nouns):
        [weights] = shown["weights"]
        on = {word: weight for word, weight in zip(shown["source"], weights) if word in nouns}
        assert max(on, key=on.get) == noun and len(on) == 2
    page = (ROOT / "docs/index.html").read_text()
    assert data_of(page)["alignments"][: len(found["examples"])] == found["examples"]


# ---- Senses


@torch.no_grad()
def test_states():
    """Catches states of another word, and of another stage."""
    model = senses.new_gpt(9).eval()
    ids = torch.randint(9, (3, 6))
    place = torch.tensor([1, 3, 5])
    rows = torch.arange(3)
    embedding, *_, last = senses.states(model, ids, place)
    assert torch.equal(embedding, model.transformer.wte(ids)[rows, place])
    assert torch.allclose(model.transformer.ln_f(last), model.hidden(ids)[rows, place], atol=1e-6)
