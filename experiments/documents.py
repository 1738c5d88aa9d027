"""Reading long documents: a learned query finds the sentence that matters.

    python -m experiments.documents [--data=FILE.jsonl] [--seeds=3]

Claim (Yang et al. 2016, "Hierarchical Attention Networks for Document Classification", NAACL): words make sentences, sentences
a document, and not all of them alike. At each level a learned query is compared with what is there, and softmax of the scores
pools it. That classifies better than averages do, and the weights show on what the label hangs. (Without the paper's recurrent
networks: a sentence is what its words are, in any order.)

The documents are made of real sentences, from the docstrings of Python's own library: 20 to 40 of them, of which one alone is
about the topic that is the label. The sentences are shared out between training and test, so that none can be known by heart.

Found (3 seeds, 4,000 documents): hierarchical attention is right for 0.974 ± 0.009 of the test documents, averages for 0.419 ±
0.058 (of words) and 0.408 ± 0.057 (of sentences); a guess, for 0.167. The carrying sentence has the largest weight in 0.955 ±
0.014 of them. But here the hierarchy gains nothing: attention to all words at once is right for 0.988 ± 0.004. Nor is attention
needed where single words give the topic away, as here: naive Bayes, which only counts words, is right for 0.976 ± 0.001.
"""

import ast
import random
import re
import statistics
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from attention import attention_weights, dot
from engine import configure, corpus, trials
from engine.checks import at_least
from masks import present

TOPICS = {  # a sentence with words of one topic only is about that; a model is never told the words
    "windows": "widget window menu button canvas mouse scrollbar listbox cursor",
    "network": "socket server client network address host connection url proxy port",
    "tasks": "process thread loop coroutine lock threads task processes scheduled semaphore",
    "mail": "header headers email mime mailbox smtp mail imap folder recipient",
    "time": "time date timeout year month day seconds timezone timestamp calendar clock hour",
    "numbers": "integer decimal digits sign exponent rounding fraction median variance probability logarithm",
}
WORDS, SENTENCES = 40, 60  # of a sentence, of a document, that are read
HIERARCHICAL = "hierarchical attention"
MODELS = {  # name -> a model for so many words and labels
    "average of words": lambda *sizes: Reader(*sizes, hierarchical=False, learned=False),
    "attention to words": lambda *sizes: Reader(*sizes, hierarchical=False, learned=True),
    "average of sentences": lambda *sizes: Reader(*sizes, hierarchical=True, learned=False),
    HIERARCHICAL: lambda *sizes: Reader(*sizes, hierarchical=True, learned=True),
}
FOUND = {"largest weight on the carrying sentence": "first", "its weight": "weight"}


@dataclass(kw_only=True)
class Settings(trials.Settings):
    data: str = ""
    """Your own documents, a .jsonl file with {"text": ..., "label": ...} in each line; empty: the built-in ones."""
    documents: int = 4000
    """Built-in documents for training; a quarter as many more are for the test."""
    steps: int = 800
    """Of training, for each model."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps")
        at_least(50, self, "documents", most=1_000_000)


# ---- Documents: (its sentences, its label, the number of the sentence that carries the label or None)

def words_of(sentence):
    return re.findall(r"[^\W\d_]+", sentence.lower())


def sentences_of(text):
    return [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text) if words_of(part)]


def docstrings():
    """The sentences of 6 to 16 words in the docstrings of Python's own library, each once."""
    library, found = Path(sysconfig.get_path("stdlib")), {}
    for path in sorted(library.rglob("*.py")):
        if {"test", "tests", "site-packages", "dist-packages", "lib2to3"} & {*path.relative_to(library).parts}:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in sentences_of(ast.get_docstring(node) or ""):
                    if 6 <= len(words_of(sentence)) <= 16 and ">>>" not in sentence:
                        found[sentence] = None
    return [*found]


def composed(sentences, number, seed):
    """Documents for training and for testing: 20 to 40 sentences about nothing in particular, and among them one about a topic.

    The sentences are shared out first, so that no document of the test holds one that was trained on.
    """
    chance, words = random.Random(seed), {topic: {*words.split()} for topic, words in TOPICS.items()}
    about = {topic: [] for topic in (*TOPICS, None)}
    for sentence in sentences:
        topics = [topic for topic in TOPICS if words[topic] & {*words_of(sentence)}]
        if len(topics) < 2:
            about[topics[0] if topics else None].append(sentence)
    parts = {topic: chance.sample(found, len(found)) for topic, found in about.items()}
    splits = []
    for size, part in ((number, slice(0, None, 2)), (number // 4, slice(1, None, 2))):
        splits.append([])
        for n in range(size):
            topic = [*TOPICS][n % len(TOPICS)]
            document = chance.sample(parts[None][part], chance.randint(19, 39))
            at = chance.randrange(len(document) + 1)
            document.insert(at, chance.choice(parts[topic][part]))
            splits[-1].append((document, topic, at))
    return splits


def column(path, name):
    return [text for text, _ in corpus.json_lines(Path(path), name, 0)]


def read(path):
    """The documents of a file; ValueError if there is nothing to learn from them."""
    documents = [(sentences_of(text), label, None) for text, label in zip(column(path, "text"), column(path, "label"))]
    documents = [document for document in documents if document[0]]
    labels = {label for _, label, _ in documents}
    if len(labels) < 2 or len(documents) < 10:
        raise ValueError(f"{path} has {len(documents)} documents with {len(labels)} labels: give at least 10 with 2 of them")
    return documents


def shared_out(documents, seed):
    """Four fifths for training, the others for testing."""
    mixed = random.Random(seed).sample(documents, len(documents))
    return mixed[len(mixed) // 5 :], mixed[: len(mixed) // 5]


# ---- The models

class Pool(nn.Module):
    """Vectors x (B, N, C), of which some are real (B, N), as one: (B, C), and its weights (B, N).

    A learned query scores tanh of a projection of each (Yang et al., equations 5 to 7). A query that stays zero scores all
    alike: the average.
    """

    def __init__(self, C, learned):
        super().__init__()
        self.key = nn.Linear(C, C)
        self.query = nn.Parameter(torch.zeros(C), requires_grad=learned)

    def forward(self, x, real):
        q, k = self.query.expand(len(x), 1, 1, -1), self.key(x).tanh()[:, None]
        weights = attention_weights(q, k, present(real), dot)[:, 0]  # (B, 1, N)
        return (weights @ x)[:, 0], weights[:, 0]


class Reader(nn.Module):
    """Word ids (B, S, W), 0 where there is none -> scores of the labels, weights of sentences (B, S) and of words (B, S, W)."""

    def __init__(self, vocab_size, labels, hierarchical, learned, C=32):
        super().__init__()
        self.hierarchical = hierarchical
        self.wte = nn.Embedding(vocab_size, C)
        self.words, self.sentences = Pool(C, learned), Pool(C, learned)
        self.head = nn.Linear(C, labels)

    def forward(self, ids):
        B, S, W = ids.shape
        words = ids.view(B * S, W) if self.hierarchical else ids.view(B, S * W)
        x, of_words = self.words(self.wte(words), words > 0)
        of_words = of_words.view(B, S, W)
        if not self.hierarchical:
            return self.head(x), of_words.sum(-1), of_words
        x, of_sentences = self.sentences(x.view(B, S, -1), (ids > 0).any(-1))
        return self.head(x), of_sentences, of_words


# ---- Training

def counted(train, test):
    """The accuracy of naive Bayes on the counts of words, in which each counts wherever it stands (Rennie et al. 2003)."""
    try:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import ComplementNB
    except ImportError:
        raise ValueError("this needs scikit-learn: pip install scikit-learn") from None
    count = CountVectorizer(analyzer=lambda document: [word for sentence in document[0] for word in words_of(sentence)])
    model = ComplementNB().fit(count.fit_transform(train), [label for _, label, _ in train])
    return {"accuracy": model.score(count.transform(test), [label for _, label, _ in test])}


def ids_of(documents, vocabulary):
    """Word ids (B, S, W), 0 where a document has no more words; a word that the vocabulary lacks is 1."""
    ids = [[[vocabulary.get(word, 1) for word in words_of(sentence)[:WORDS]] for sentence in document[:SENTENCES]]
           for document, *_ in documents]
    padded = torch.zeros(len(ids), max(map(len, ids)), max(len(sentence) for d in ids for sentence in d), dtype=torch.int32)
    for n, document in enumerate(ids):
        for m, sentence in enumerate(document):
            padded[n, m, : len(sentence)] = torch.tensor(sentence)
    return padded


def trained(name, train, test, steps, seed):
    """A model's accuracy on the test, how it weighs the carrying sentences there, and its weights of the first document."""
    torch.manual_seed(seed)
    counts = Counter(word for document, *_ in train for sentence in document for word in words_of(sentence))
    vocabulary = {word: n for n, word in enumerate((word for word, count in counts.items() if count > 1), 2)}
    labels = sorted({label for _, label, _ in train})
    x, y = ids_of(train, vocabulary), torch.tensor([labels.index(label) for _, label, _ in train])
    model = MODELS[name](len(vocabulary) + 2, len(labels))

    def loss(step):
        rows = torch.randint(len(x), (32,))
        return F.cross_entropy(model(x[rows])[0], y[rows])

    trials.fit(model, loss, steps, 0.03, weight_decay=0.1)
    with torch.no_grad():
        parts = [model(part) for part in ids_of(test, vocabulary).split(100)]
    scores, weights = (torch.cat([part[n] for part in parts]) for n in (0, 1))
    found = {"accuracy": statistics.fmean(labels[n] == label for n, (_, label, _) in zip(scores.argmax(1), test)),
             "sentences": weights[0].tolist(), "words": parts[0][2][0].tolist()}
    if test[0][2] is not None:
        carriers = torch.tensor([at for *_, at in test])
        found["first"] = (weights.argmax(1) == carriers).float().mean().item()
        found["weight"] = (weights / weights.sum(1, keepdim=True))[torch.arange(len(test)), carriers].mean().item()
    return found


# ---- The picture

def draw(runs, document, label, at):
    """Accuracies; the weights of a document's sentences; those of the words of the heaviest."""
    drawn, panels = trials.figure(14, 0.19 * min(len(document), SENTENCES) + 1.2, 1, 3, width_ratios=[1, 1.2, 1])
    means, errors = zip(*(trials.mean(run["accuracy"] for run in of_seeds) for of_seeds in runs.values()))
    panels[0].barh(range(len(runs)), means, xerr=errors, color=["#c9c7c0"] * (len(runs) - 1) + ["C0"])
    panels[0].set_yticks(range(len(runs)), runs)
    panels[0].set(xlim=(0, 1), title="test accuracy")
    shown = runs[HIERARCHICAL][0]
    sentences = [sentence if len(sentence) < 60 else sentence[:59] + "…" for sentence in document[:SENTENCES]]
    heaviest = max(range(len(sentences)), key=lambda n: shown["sentences"][n])
    words = words_of(document[heaviest])[:WORDS]
    for panel, labels, weights in ((panels[1], sentences, shown["sentences"]), (panels[2], words, shown["words"][heaviest])):
        panel.barh(range(len(labels)), weights[: len(labels)])
        panel.set_yticks(range(len(labels)), [text.replace("$", r"\$") for text in labels], fontsize=8)
    for panel in panels:
        panel.invert_yaxis()
    if at is not None:
        panels[1].get_yticklabels()[at].set(color="C3", weight="bold")
    panels[1].set(xlim=(0, 1), xlabel="weight", title=f"a document about {label}")
    panels[2].set(xlim=(0, 1), xlabel="weight", title="its heaviest sentence")
    return drawn


def main(config):
    own = read(config.data) if config.data else None
    sentences = None if own else docstrings()
    splits = [shared_out(own, seed) if own else composed(sentences, config.documents, seed) for seed in range(config.seeds)]
    jobs = [(name, *split, config.steps, seed) for name in MODELS for seed, split in enumerate(splits)]
    found = trials.every(trained, jobs)
    runs = trials.by_kind(MODELS, found)
    runs = {"naive Bayes on counts": [counted(*split) for split in splits]} | runs
    rows = [{"model": name, "test accuracy": trials.plus_minus(run["accuracy"] for run in of_seeds)}
            | {title: trials.plus_minus(run[key] for run in of_seeds) for title, key in FOUND.items() if key in of_seeds[0]}
            for name, of_seeds in runs.items()]
    document, label, at = splits[0][1][0]
    drawn = draw(runs, document, label, at)
    trials.store(config, {f"{len(splits[0][0])} documents to train on, {len(splits[0][1])} to test": rows}, drawn)
    return runs


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(Settings, sys.argv[1:]))
