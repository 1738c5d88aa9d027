"""experiments.documents: where a learned query looks, what the documents are."""

import random

import pytest
import torch

from experiments import documents
from experiments.shared import labelled


@pytest.fixture
def sentences(monkeypatch):
    """Senseless sentences: 400 about nothing, 60 about topics, 60 that return these, 20 others."""
    monkeypatch.setattr(labelled, "TOPICS", {"windows": "widget", "network": "socket"})
    chance = random.Random(0)
    words = ["".join(chance.choices("aeioubdgklmnprst", k=6)) for _ in range(150)]
    topics = ["widget", "socket"] * 30
    endings = [""] * 400 + topics + [f"returns {word}" for word in topics] + ["returned"] * 20
    return [" ".join(chance.sample(words, 6) + [ending]) for ending in endings]


def test_documents_are_what_they_say(sentences):
    """Catches known sentences in the test, a second sentence that counts, a wrong label."""
    train, test = labelled.compose(sentences, 80, 0)
    assert len(train) == 80 and len(test) == 20
    known, unknown = ({s for document, *_ in part for s in document} for part in (train, test))
    assert not known & unknown
    others = 0
    for document, label, place in train + test:
        assert 20 <= len(document) <= 40
        about = [n for n, text in enumerate(document) if {"widget", "socket"} & {*text.split()}]
        assert [n for n in about if "returns" in document[n]] == [place]
        assert [n for n in about if labelled.TOPICS[label] in document[n]] == [place]
        others += len(about) - 1
    assert others > 30


def test_docstrings(tmp_path, monkeypatch):
    """Catches code among the sentences, sentences that are cut at a line's end, and doubles."""
    text = "The first sentence here has seven words. Short one.\n\n>>> no sentence at all but code"
    code = f'"""{text}\n"""\n'
    more = 'def f():\n    """This one goes on\n    in the next line of it."""\n'
    (tmp_path / "a.py").write_text(code + more)
    (tmp_path / "b.py").write_text(code)
    monkeypatch.setattr(labelled.sysconfig, "get_path", lambda name: str(tmp_path))
    first = "The first sentence here has seven words."
    assert labelled.docstrings() == [first, "This one goes on in the next line of it."]


def test_context():
    """Catches padding that is read, states in other places, and a direction that is not read."""
    torch.manual_seed(0)
    context = documents.Context(4)
    x = torch.randn(2, 5, 4)
    real = torch.tensor([[True, False, True, True, False], [True] * 5])
    y = context(x, real)
    alone = context(x[:1, [0, 2, 3]], torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(y[:1, [0, 2, 3]], alone)
    onwards, _ = context.grus[0](x[1:])
    torch.testing.assert_close(y[1:, :, :2], onwards)
    backwards, _ = context.grus[1](x[1:].flip(1))
    torch.testing.assert_close(y[1:, :, 2:], backwards.flip(1))


@torch.no_grad()
def test_a_flat_reader_knows_the_sentences():
    """Catches a rival of the hierarchy that cannot know where a sentence ends."""
    torch.manual_seed(0)
    reader = documents.Reader(10, hierarchical=False, recurrent=True, learned=True)
    one, _ = reader(torch.tensor([[[1, 2, 3], [4, 0, 0]]]))
    other, weights = reader(torch.tensor([[[1, 2, 0], [3, 4, 0]]]))
    assert not torch.allclose(one, other)
    assert weights.shape == (1, 2) and weights.sum().item() == pytest.approx(1)


@pytest.mark.slow
def test_attention_finds_what_averages_miss(sentences, small_experiment, monkeypatch):
    """Catches weights of the wrong sentences, and a query that does not learn."""
    monkeypatch.setattr(labelled, "docstrings", lambda: sentences)
    names = "average of sentences", documents.HIERARCHICAL
    readers = {name: documents.READERS[name] for name in names}
    monkeypatch.setattr(documents, "READERS", readers)
    monkeypatch.setattr(documents, "DOCUMENTS", 400)
    [rows] = small_experiment(documents, steps=60)["tables"].values()
    bayes, average, hierarchical = (float(row["test accuracy"]) for row in rows)
    assert hierarchical > max(bayes, average) + 0.05, rows
    assert float(rows[2]["largest weight on the carrying sentence"]) > 0.3  # by chance 0.03
