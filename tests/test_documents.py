"""experiments.documents: where a learned query looks, what the documents are, and one's own."""

import json
import random

import pytest
import torch
from conftest import complaint, run_here

from engine import trials
from experiments import documents


@pytest.fixture
def sentences():
    """Sentences without sense: 400 about nothing, 30 with a word of each of two topics."""
    chance = random.Random(0)
    words = ["".join(chance.choices("aeioubdgklmnprst", k=6)) for _ in range(150)]
    plain = [" ".join(chance.sample(words, 6)) for _ in range(460)]
    about = [f"{sentence} {word}" for sentence, word in zip(plain, ["widget", "socket"] * 30)]
    return about + plain[60:]


@pytest.fixture
def two_topics(monkeypatch):
    monkeypatch.setattr(documents, "TOPICS", {"windows": "widget", "network": "socket"})


def test_documents_are_what_they_say(sentences, two_topics):
    """Catches a test that holds sentences of the training, a second sentence that carries a topic, a wrong label or place."""
    train, test = documents.composed(sentences, 80, 0)
    assert len(train) == 80 and len(test) == 20
    assert not {s for document, *_ in train for s in document} & {s for document, *_ in test for s in document}
    for document, label, at in train + test:
        assert 20 <= len(document) <= 40
        assert [n for n, sentence in enumerate(document) if {"widget", "socket"} & {*sentence.split()}] == [at]
        assert documents.TOPICS[label] in document[at]


def test_docstrings(tmp_path, monkeypatch):
    """Catches code among the sentences, sentences that are cut at a line's end, and doubles."""
    code = '"""The first sentence here has seven words. Short one.\n\n>>> this is not a sentence at all, no\n"""\n'
    (tmp_path / "a.py").write_text(code + 'def f():\n    """This one goes on\n    in the next line of it."""\n')
    (tmp_path / "b.py").write_text(code)
    monkeypatch.setattr(documents.sysconfig, "get_path", lambda name: str(tmp_path))
    assert documents.docstrings() == ["The first sentence here has seven words.", "This one goes on in the next line of it."]


def test_a_query_of_zeros_averages():
    """Catches padding that counts, and an average that is none."""
    torch.manual_seed(0)
    pool, x, real = documents.Pool(4, learned=False), torch.randn(2, 3, 4), torch.tensor([[True, True, False], [False] * 3])
    pooled, weights = pool(x, real)
    assert torch.allclose(weights, torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]))
    assert torch.allclose(pooled, torch.stack([x[0, :2].mean(0), torch.zeros(4)]))


def test_attention_finds_what_averages_miss(sentences, two_topics, monkeypatch, tmp_path):
    """Catches weights of the wrong sentences, and a query that does not learn."""
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    monkeypatch.setattr(documents, "docstrings", lambda: sentences)
    both = "average of words", documents.HIERARCHICAL
    monkeypatch.setattr(documents, "MODELS", {name: documents.MODELS[name] for name in both})
    runs = documents.main(documents.Settings(seeds=1, documents=400, steps=60, out_dir=str(tmp_path)))
    (average,), (hierarchical,) = runs["average of words"], runs[documents.HIERARCHICAL]
    assert hierarchical["accuracy"] > average["accuracy"] + 0.1 and hierarchical["first"] > 0.3  # by chance 0.03
    assert len([*tmp_path.glob("*.png")]) == 1


def test_own_documents(tmp_path):
    """Catches a traceback for a file from which nothing can be learned, and labels in the wrong order."""
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"text": f"One here. And {n} more!", "label": "ab"[n % 2]}) + "\n" for n in range(10)))
    assert documents.read(path)[1] == (["One here.", "And 1 more!"], "b", None)
    for content, message in (
        ("{", "is not JSON"), ('{"text": "a"}', "has no 'label'"), ('{"label": "a"}', "has no 'text'"),
        ('{"text": "a", "label": 1}', "'label' is a int"), ('{"text": "a", "label": "b"}\n' * 20, "20 documents with 1 label"),
    ):
        path.write_text(content)
        assert message in complaint(run_here("-m", "experiments.documents", f"--data={path}"))
    assert "missing.jsonl" in complaint(run_here("-m", "experiments.documents", f"--data={tmp_path / 'missing.jsonl'}"))
    assert "documents=3 must be at least 50" in complaint(run_here("-m", "experiments.documents", "--documents=3"))
