"""experiments.documents: where a learned query looks, what the documents are, and one's own."""

import json
import random

import pytest
import torch
from conftest import complaint, run_here

from experiments import documents
from experiments.shared import labelled, trials


@pytest.fixture
def sentences():
    """Sentences without sense: 400 about nothing, 60 with a word of one of two topics, 60 that return it, 20 that return."""
    chance = random.Random(0)
    words = ["".join(chance.choices("aeioubdgklmnprst", k=6)) for _ in range(150)]
    plain, topics = (
        [" ".join(chance.sample(words, 6)) for _ in range(540)],
        ["widget", "socket"] * 30,
    )
    endings = [*topics, *(f"returns {word}" for word in topics), *["returned"] * 20]
    return [*plain[:400], *map(" ".join, zip(plain[400:], endings))]


@pytest.fixture
def two_topics(monkeypatch):
    monkeypatch.setattr(labelled, "TOPICS", {"windows": "widget", "network": "socket"})


@pytest.mark.parametrize("crowded", [False, True])
def test_documents_are_what_they_say(sentences, two_topics, crowded):
    """Catches a test that holds sentences of the training, a second sentence that counts, a wrong label or place."""
    train, test = labelled.composed(sentences, 80, 0, crowded)
    assert len(train) == 80 and len(test) == 20
    assert not {s for document, *_ in train for s in document} & {
        s for document, *_ in test for s in document
    }
    others = 0
    for document, label, at in train + test:
        assert 20 <= len(document) <= 40
        about = [
            n for n, sentence in enumerate(document) if {"widget", "socket"} & {*sentence.split()}
        ]
        others += len(about) - 1
        assert [n for n in about if not crowded or "returns" in document[n]] == [at]
        assert [n for n in about if labelled.TOPICS[label] in document[n]] == [at]
    assert (others > 30) == crowded


def test_a_library_without_a_topic(sentences, monkeypatch):
    """Catches a traceback where a part of Python's library is not installed."""
    monkeypatch.setattr(labelled, "TOPICS", {"windows": "widget", "tasks": "coroutine"})
    with pytest.raises(ValueError, match="says nothing about tasks"):
        labelled.composed(sentences, 80, 0)


def test_docstrings(tmp_path, monkeypatch):
    """Catches code among the sentences, sentences that are cut at a line's end, and doubles."""
    code = '"""The first sentence here has seven words. Short one.\n\n>>> this is not a sentence at all, no\n"""\n'
    (tmp_path / "a.py").write_text(
        code + 'def f():\n    """This one goes on\n    in the next line of it."""\n'
    )
    (tmp_path / "b.py").write_text(code)
    monkeypatch.setattr(labelled.sysconfig, "get_path", lambda name: str(tmp_path))
    assert labelled.docstrings() == [
        "The first sentence here has seven words.",
        "This one goes on in the next line of it.",
    ]


def test_a_query_of_zeros_averages():
    """Catches padding that counts, and an average that is none."""
    torch.manual_seed(0)
    pool, x, real = (
        documents.Pool(4, learned=False),
        torch.randn(2, 3, 4),
        torch.tensor([[True, True, False], [False] * 3]),
    )
    pooled, weights = pool(x, real)
    assert torch.allclose(weights, torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]))
    assert torch.allclose(pooled, torch.stack([x[0, :2].mean(0), torch.zeros(4)]))


def test_attention_finds_what_averages_miss(sentences, two_topics, monkeypatch, tmp_path):
    """Catches weights of the wrong sentences, and a query that does not learn."""
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    monkeypatch.setattr(documents, "docstrings", lambda: sentences)
    both = "average of words", documents.HIERARCHICAL
    monkeypatch.setattr(documents, "MODELS", {name: documents.MODELS[name] for name in both})
    runs = documents.main(
        documents.Settings(seeds=1, documents=400, steps=60, out_dir=str(tmp_path))
    )
    for (kind, found), others in zip(runs.items(), (both[:1], (*both[:1], documents.BAYES))):
        (hierarchical,) = found[documents.HIERARCHICAL]
        assert hierarchical["first"] > 0.3  # by chance 0.03
        for name in others:
            assert hierarchical["accuracy"] > found[name][0]["accuracy"] + 0.05, (kind, name, found)
    assert len([*tmp_path.glob("*.png")]) == 1


def test_own_documents(tmp_path):
    """Catches a traceback for a file from which nothing can be learned, and labels in the wrong order."""
    path = tmp_path / "own.jsonl"
    path.write_text(
        "".join(
            json.dumps({"text": f"One here. And {n} more!", "label": "ab"[n % 2]}) + "\n"
            for n in range(10)
        )
    )
    assert documents.read(path)[1] == (["One here.", "And 1 more!"], "b", None)
    for content, message in (
        ("{", "line 1 is not {"),
        ('{"text": "a", "label": "b"}\n{"text": "a"}', "line 2 is not {"),
        ('{"text": null, "label": "a"}', "line 1 is not {"),
        ('{"text": "a", "label": "b"}\n' * 20, "20 documents with 1 label"),
    ):
        path.write_text(content)
        assert message in complaint(run_here("-m", "experiments.documents", f"--data={path}"))
    assert "missing.jsonl" in complaint(
        run_here("-m", "experiments.documents", f"--data={tmp_path / 'missing.jsonl'}")
    )
    assert "documents=3 must be at least 50" in complaint(
        run_here("-m", "experiments.documents", "--documents=3")
    )
