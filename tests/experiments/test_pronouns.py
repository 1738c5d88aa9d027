"""experiments.pronouns: sentences, what their words tell, and where models look."""

import collections

import pytest
import torch
from conftest import complaint, run_here

from experiments import pronouns
from experiments.shared import ambiguity
from experiments.shared.ambiguity import Reading

TIRED = "the dog did not cross the street because it was too tired"


@pytest.mark.parametrize(
    "english, french",
    [
        (TIRED, "le chien n'a pas traversé la rue parce qu'il était trop fatigué"),
        (
            TIRED.replace("tired", "wide"),
            "le chien n'a pas traversé la rue parce qu'elle était trop large",
        ),
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


def best_guess(cues, answers):
    """The share that is right of the best guess from a cue, for whoever knows all answers."""
    counts = collections.defaultdict(collections.Counter)
    for cue, answer in zip(cues, answers):
        counts[cue][answer] += 1
    return sum(max(each.values()) for each in counts.values()) / len(answers)


def test_no_word_alone_tells():
    """Catches a noun, an adjective or a pair of nouns that gives the pronoun away."""
    pairs = ambiguity.pronouns(800, 0, tested=True)
    readings = [Reading(english) for english, _ in pairs]
    answers = [{"il", "elle"}.intersection(ambiguity.words_of(french)).pop() for _, french in pairs]
    cues = {key: [getattr(r, key) for r in readings] for key in ("subject", "object", "adjective")}
    cues["both nouns"] = list(zip(cues["subject"], cues["object"]))
    cues["all but nouns"] = [(r.articles, r.verb, r.adjective, r.reason_first) for r in readings]
    assert {key: best_guess(cue, answers) for key, cue in cues.items()} == dict.fromkeys(cues, 0.5)
    everything = list(zip(cues["both nouns"], cues["adjective"]))
    assert best_guess(everything, answers) == 1


def test_nouns_of_the_test():
    """Catches a pair of nouns in the test that was trained, and a gender that one of them lacks."""
    nouns = []
    for tested in (False, True):
        pairs = ambiguity.pronouns(2000, 0, tested=tested)
        nouns.append({(r.subject, r.object) for r in (Reading(english) for english, _ in pairs)})
    assert not nouns[0] & nouns[1] and len(nouns[1]) > 15


@pytest.mark.parametrize(
    "example, message",
    [
        ("the dog sleeps", "'it' must stand there once, not 0 times"),
        (f"{TIRED} and it slept", "'it' must stand there once, not 2 times"),
        ("it sleeps", "is not like"),
        (TIRED.replace("tired", "old"), "does not tell what 'it' stands for"),
        (TIRED.replace("street", "cat"), "does not tell what 'it' stands for"),
    ],
)
def test_what_cannot_be_measured(example, message):
    """Catches a number for a sentence without a pronoun, or with one that may mean either."""
    with pytest.raises(ValueError, match=message):
        pronouns.measure(None, [(example, "")], {})
    assert message in complaint(run_here("-m", "experiments.pronouns", f"--example={example}"))


def new_model(name, words):
    torch.manual_seed(0)
    return pronouns.MODELS[name](words + 1, pronouns.SHAPE).eval()


@pytest.mark.parametrize("name, heads", [("dot", 1), ("transformer", 4), ("gpt", 8)])
def test_measurement_of_a_made_map(name, heads, monkeypatch):
    """Catches the row before or after the pronoun's, another head, and words of the wrong text."""
    pairs = ambiguity.pronouns(40, 0)
    numbers = ambiguity.number_words(pairs)
    source, target, _ = ambiguity.encode(pairs, numbers)
    S = source.shape[1]

    def looking(q, k, *how):
        """The last head looks from il or elle at the referent, and from the subject at itself.

        All else looks at the first word.
        """
        maps = torch.zeros(len(pairs), q.shape[1], q.shape[2], k.shape[2])
        maps[..., 0] = 1
        start = S if k.shape[2] > target.shape[1] else 0
        for n, (english, french) in enumerate(pairs):
            words, reading = ambiguity.words_of(french), Reading(english)
            pronoun = [word in ambiguity.IT for word in words].index(True)
            looks = {pronoun: "referent", reading.french_subject(): "subject"}
            for row, role in looks.items():
                if start + row < q.shape[2]:
                    maps[n, -1, start + row] = 0
                    maps[n, -1, start + row, reading.places[role]] = 1
        return maps

    model = new_model(name, len(numbers))
    chance = pronouns.measure(model, pairs, numbers)[pronouns.PRONOUN]["evenly"]
    monkeypatch.setattr(pronouns, "attention_weights", looking)
    measured = pronouns.measure(model, pairs, numbers)
    aligned = measured[pronouns.SUBJECT]
    assert aligned["subject, best head"] == 1 and aligned["object, best head"] == 0
    found = measured[pronouns.PRONOUN]
    assert found["referent, best head"] == 1 and found["other, best head"] == 0
    assert found["head"] in (heads - 1, heads // 2 - 1)
    assert chance == pytest.approx(1 / S, rel=1e-5) if name != "gpt" else 1 / 30 < chance < 1 / S


@pytest.mark.slow
def test_attention_finds_the_referent(small_experiment, monkeypatch):
    """Catches pronouns that are not learned, and heads that like a noun whatever the adjective."""
    kinds = {name: pronouns.MODELS[name] for name in ("transformer", "gpt")}
    monkeypatch.setattr(pronouns, "MODELS", kinds)
    report = small_experiment(pronouns, steps=300)
    right, from_french, from_it, *_ = ([*rows] for rows in report["tables"].values())
    assert float(right[1]["right"]) > 0.9 and float(right[0]["right"]) > 0.6
    for row in from_french:  # a query of another word has no reason to prefer either
        assert float(row["referent, best head"]) > 1.4 * float(row["other, best head"])
    assert from_it[1]["referent"] == from_it[1]["other"]  # it stands before the adjective
