"""Each experiment once, small: it runs, draws its picture, and finds what its text says."""

import importlib
import random
import re

import pytest
from claims import claims_of, holds
from conftest import ROOT, parametrize

from engine.files import read_json
from experiments.shared import grammar, labelled

PAIRS = grammar.pairs(400, 0)
# In these, the noun is told by the verb.
SAID = {"socket": "hears", "widget": "draws", "mailbox": "keeps"}
TOLD = [f"the {noun} {verb} {n} things" for noun, verb in SAID.items() for n in "abcdefgh"]


def made_sentences():
    """Senseless sentences: 400 about nothing, 60 about topics, 60 that return these, 20 others."""
    chance = random.Random(0)
    words = ["".join(chance.choices("aeioubdgklmnprst", k=6)) for _ in range(150)]
    topics = ["widget", "socket"] * 30
    endings = [""] * 400 + topics + [f"returns {word}" for word in topics] + ["returned"] * 20
    return [" ".join([*chance.sample(words, 6), ending]) for ending in endings]


TOPICS = {"windows": "widget", "network": "socket"}
STEPS = {
    "blanks": 100,
    "choices": 4,
    "convolution": 30,
    "distance": 60,
    "documents": 60,
    "efficient": 1,
    "heads": 250,
    "images": 60,
    "induction": 270,
    "parallel": 1,
    "positions": 80,
    "pronouns": 300,
    "questions": 80,
    "reading": 300,
    "recall": 70,
    "retrieval": 80,
    "routing": 40,
    "scaling": 2,
    "scores": 60,
    "senses": 100,
    "vector": 60,
}
REPLACED = {
    "blanks": {"shared.grammar.pairs": lambda *_: [(s, "") for s in 3 * TOLD]},
    "convolution": {"convolution.SIZES": [50, 100]},
    "distance": {
        "distance.DISTANCES": [1, 32],
        "distance.TRAINED_ALONE": [32],
        "distance.NAMES": ["tanh RNN", "attention"],
    },
    "documents": {
        "documents.DOCUMENTS": 400,
        "shared.labelled.sentences": made_sentences,
        "shared.labelled.TOPICS": TOPICS,
    },
    "efficient": {
        "efficient.LENGTHS": [256, 512, 1024, 2048, 4096],
        "shared.trials.milliseconds": lambda call: 1.0,  # no test can rely on time
        "shared.trials.text_loss": lambda *_: 2.5,
    },
    "heads": {"heads.LANGUAGES": ["English"]},
    "parallel": {
        "parallel.LENGTHS": {("GRU", "attention"): [8], ("additive", "dot"): [64]},
        "parallel.SIZES": {41: (40, 32)},
    },
    "positions": {"positions.T": 16},
    "reading": {"reading.KINDS": ["words", "back"]},
    "recall": {"recall.PAIRS": [4, 8, 16], "recall.KEYS": 32},
    "scaling": {"scaling.SIZES": (128,)},
}
SLOW = """
blanks choices convolution documents efficient heads images induction positions pronouns
questions reading recall retrieval routing scaling vector
""".split()
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in STEPS]
# experiment, number of its table: what is larger > what is smaller. A cell is: row | column.
CLAIMS = """
blanks 0:       commonest word | loss > 2 > looks back | loss > 0.7 > sees both sides | loss
blanks 0:       fits both neighbours | right > follows the word before | right > 0.5
choices 0:      4 heads | heads differ > 0.01 > 4 heads, one W_Q and W_K | heads differ
choices 0:      8.51 > chunks of 16 | keys with a weight > 8.49
choices 0:      25 > sparsemax | keys with a weight
convolution 0:  convolutions, changed images | 100 > vision transformer, changed images | 100
distance 0:     attention | 32 > -2 > -7 > tanh RNN | 32
distance 1:     attention | 32 > -1 > -4 > tanh RNN | 32
distance 3:     attention | 32 > 0.8 > 0.3 > tanh RNN | 32
documents 0:    hierarchical attention, GRUs | test accuracy > average of sentences | test accuracy
documents 0:    hierarchical attention, GRUs | largest weight on the carrying sentence > 0.3
efficient 0:    masked_fill | MB ~ n^ > 1.9 > 1.3 > linear | MB ~ n^ > tiled | MB ~ n^
efficient 0:    fused | pairs ~ n^ > 1.9 > strided, as a mask | pairs ~ n^ > 1.3
efficient 0:    1.1 > sliding window, 64 | pairs ~ n^ > 0.9
heads 0:        English | previous token > 0.1 > English | first token
images 0:       support vector machine | test accuracy > 0.97 > vision transformer | test accuracy
images 1:       has one vector, their mean | left or right > 0.7
induction 0:    1 | loss, again > 1.5 > 2 | loss, again
induction 0:    1 | loss, new tokens > 3
induction 0:    2 | runs with an induction head > 0.5 > 1 | runs with an induction head
parallel 3:     additive | 64 > 3 > 0.2 > dot | 64
positions 0:    causal | largest difference > 0.1 > 1e-12 > full | largest difference
positions 1:    none | up to T=16 > alibi | up to T=16 > rope | up to T=16
positions 1:    rope | to 8T > alibi | to 8T
pronouns 0:     gpt | right > 0.9 > transformer | right > 0.6
pronouns 1:     gpt | referent, best head > gpt | other, best head
pronouns 1:     transformer | referent, best head > transformer | other, best head
pronouns 5:     gpt | subject, best head > 0.5 > gpt | object, best head
questions 0:    question and image | all > 0.6 > 0.55 > question alone | all > 0.4
questions 0:    0.55 > image alone | all > 0.4
reading 0:      words | finds the referent > 0.9 > 0.7 > back | finds the referent
reading 0:      words | right > 0.95 > 0.6 > back | right
reading 2:      back | finds the subject > 0.9 > 0.1 > back | finds the object
recall 0:       softmax | 16 > 0.95 > 0.5 > linear | 16
recall 0:       0.9 > sliding_window:32 | 16
retrieval 0:    contrastive pair | digit of an image > 0.5 > a guess | digit of an image
retrieval 0:    contrastive pair | caption of an image > 0.3 > a guess | caption of an image
routing 0:      routed, not balanced | ask the most asked expert > 0.5
routing 0:      0.5 > routed | ask the most asked expert > 0.25
routing 0:      0.27 > routed | MFLOP of a token > dense | MFLOP of a token
routing 0:      routed | parameters > dense, as large as all experts | parameters
scaling 0:      512 | variance, dot > 460 > 1.1 > 512 | variance, scaled_dot > 0.9
scaling 0:      512 | entropy, scaled_dot > 5.2 > 0.5 > 512 | entropy, dot
scaling 0:      4 | slope, dot > 4 | slope, scaled_dot
scaling 0:      512 | slope, scaled_dot > 512 | slope, dot
scaling 1:      [128, 'zero_out', 'scaled_dot'] | entropy before training (bits) > 5 > 2
scaling 1:      2 > [128, 'zero_out', 'dot'] | entropy before training (bits)
scores 0:       general | turned > 0.9 > 0.1 > dot | turned
scores 0:       additive | turned and folded > 0.08 > additive | the same
senses 0:       trained | MLP 2 > 0.9 > 0.51 > trained | embedding > 0.49
senses 0:       0.6 > as it begins | MLP 2
vector 0:       0 | bits lacking > 64 | bits lacking
"""


def columns(report):
    """The columns of all its tables whose names do not depend on sizes."""
    rows = [row for table in report["tables"].values() for row in table]
    return {name for row in rows for name in row if not re.search(r"\d", name)}


@parametrize("name", NAMES)
def test_claims(name, small_experiment, monkeypatch):
    """Catches an experiment that fails, has no picture, or does not find what it is about; and a
    record of an older version, in which other things were measured.
    """
    pytest.importorskip("sklearn")
    for target, value in REPLACED.get(name, {}).items():
        monkeypatch.setattr(f"experiments.{target}", value)
    report = small_experiment(importlib.import_module(f"experiments.{name}"), steps=STEPS[name])
    recorded = read_json(ROOT / f"experiments/{name}.json")
    assert columns(report) == columns(recorded)
    tables = [*report["tables"].values()]
    for table, claim in claims_of(name, CLAIMS):
        assert holds(tables[table], claim), (claim, tables[table])


def test_documents(monkeypatch):
    """Catches known sentences in the test, a second sentence that counts, a wrong label."""
    monkeypatch.setattr(labelled, "TOPICS", TOPICS)
    train, test, long = labelled.compose(made_sentences(), 80, 0)
    assert len(train) == 80 and len(test) == 20
    known, unknown = ({s for document, *_ in part for s in document} for part in (train, test))
    assert not known & unknown
    for document, label, place in [*train, *test, long]:
        about = [n for n, text in enumerate(document) if {"widget", "socket"} & {*text.split()}]
        assert [n for n in about if "returns" in document[n]] == [place]
        assert [n for n in about if TOPICS[label] in document[n]] == [place]
