"""Each experiment once, small: it runs, draws its picture, and finds what its text says."""

import importlib

import pytest

from experiments.shared import grammar

SAID = {"socket": "hears", "widget": "draws", "mailbox": "keeps"}
TEXTS = [f"the {word} {verb} {n} things" for word, verb in SAID.items() for n in "abcdefgh"]
PAIRS = grammar.pairs(400, 0)
SMALL = {  # settings, and what is replaced
    "blanks": (
        {"steps": 100},
        {"shared.grammar.pairs": lambda *_: PAIRS, "shared.labelled.docstrings": lambda: 3 * TEXTS},
    ),
    "convolution": ({"steps": 30}, {"convolution.SIZES": [50, 100]}),
    "distance": (
        {"steps": 60},
        {
            "distance.DISTANCES": [1, 32],
            "distance.TRAINED_ALONE": [32],
            "distance.NAMES": ["tanh RNN", "attention"],
        },
    ),
    "efficient": ({"steps": 2}, {"efficient.LENGTHS": [256, 512, 1024, 2048, 4096]}),
    "images": ({"steps": 60}, {}),
    "induction": ({"steps": 270}, {}),
    "parallel": ({}, {"parallel.LENGTHS": {("GRU", "attention"): [8], ("additive", "dot"): [64]}}),
    "positions": ({"steps": 80}, {"positions.T": 16}),
    "pronouns": ({"steps": 300}, {}),
    "questions": ({"steps": 80}, {}),
    "recall": (
        {"steps": 70},
        {"recall.PAIRS": [4, 8, 16], "recall.TIMED": [4, 8, 16], "recall.KEYS": 32},
    ),
    "retrieval": ({"steps": 80}, {}),
    "routing": ({"steps": 40}, {}),
    "scaling": ({"steps": 2}, {"scaling.SIZES": (128,)}),
    "senses": ({"steps": 100}, {}),
    "values": ({"steps": 8}, {}),
}


@pytest.mark.parametrize("name", SMALL)
def test_claims(name, small_experiment, monkeypatch):
    settings, replaced = SMALL[name]
    for target, value in replaced.items():
        monkeypatch.setattr(f"experiments.{target}", value)
    report = small_experiment(importlib.import_module(f"experiments.{name}"), **settings)
    import json

    with open(f"/tmp/exper_claims/{name}.json", "w") as f:
        json.dump(report["tables"], f, indent=1)
