"""Documents with labels: of a file, or made of docstrings of Python's own library, so that one sentence carries the label.

A document is (its sentences, its label, the number of the sentence that carries it, or None).
"""

import ast
import json
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch

from experiments.shared import trials

WORDS, SENTENCES = 40, 60  # of a sentence, of a document, that are read
TOPICS = {  # a sentence with words of one topic only is about that; a model is never told the words
    "windows": "widget window menu button canvas mouse scrollbar listbox cursor",
    "network": "socket server client network address host connection url proxy port",
    "tasks": "process thread loop coroutine lock threads task processes scheduled semaphore",
    "mail": "header headers email mime mailbox smtp mail imap folder recipient",
    "time": "time date timeout year month day seconds timezone timestamp calendar clock hour",
    "numbers": "integer decimal digits sign exponent rounding fraction median variance probability logarithm",
}
RETURNS = {"return", "returns", "returned", "returning"}


def words_of(sentence):
    return re.findall(r"[^\W\d_]+", sentence.lower())


def sentences_of(text):
    return [
        " ".join(part.split())
        for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
        if words_of(part)
    ]


# ---- From docstrings


def docstrings():
    """The sentences of 6 to 16 words in the docstrings of Python's own library, each once (its words, whatever the signs)."""
    library, found = Path(sysconfig.get_path("stdlib")), {}
    for path in sorted(library.rglob("*.py")):
        if {"test", "tests", "site-packages", "dist-packages", "lib2to3"} & {
            *path.relative_to(library).parts
        }:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in sentences_of(ast.get_docstring(node) or ""):
                    if 6 <= len(words_of(sentence)) <= 16 and ">>>" not in sentence:
                        found.setdefault((*words_of(sentence),), sentence)
    return [*found.values()]


def composed(sentences, number, seed, crowded=False):
    """Documents for training and for testing: 20 to 40 sentences about nothing in particular, and among them one about a topic.

    crowded: sentences about all other topics may stand among them, and the one that counts is that which says what is returned.
    The sentences are shared out first, so that no document of the test holds one that was trained on.
    """
    chance, words = (
        random.Random(seed),
        {topic: {*words.split()} for topic, words in TOPICS.items()},
    )
    about = {(topic, returns): [] for topic in (*TOPICS, None) for returns in (False, True)}
    for sentence in sentences:
        found = {*words_of(sentence)}
        topics = [topic for topic in TOPICS if words[topic] & found]
        if len(topics) < 2:
            about[topics[0] if topics else None, crowded and bool(RETURNS & found)].append(sentence)
    parts = {key: chance.sample(found, len(found)) for key, found in about.items()}
    for topic in TOPICS:
        if len(parts[topic, crowded]) < 2:  # tkinter, say, is not everywhere
            raise ValueError(
                f"this Python's library says nothing about {topic}: give your own documents by --data=FILE.jsonl"
            )
    splits = []
    for size, part in ((number, slice(0, None, 2)), (number // 4, slice(1, None, 2))):
        splits.append([])
        for n in range(size):
            topic = [*TOPICS][n % len(TOPICS)]
            document = chance.sample(parts[None, False][part], chance.randint(19, 39))
            if crowded:  # half of these, in place of others
                keys = [(None, True), *((other, False) for other in TOPICS if other != topic)]
                others = [chance.choice(parts[key][part]) for key in keys]
                others = [sentence for sentence in others if chance.random() < 0.5]
                document[: len(others)] = others
                chance.shuffle(document)
            at = chance.randrange(len(document) + 1)
            document.insert(at, chance.choice(parts[topic, crowded][part]))
            splits[-1].append((document, topic, at))
    return splits


# ---- From a file


def read(path):
    """Return the documents of a .jsonl file; ValueError if there is nothing to learn from them."""
    documents = []
    for number, line in enumerate(trials.read_lines(path), 1):
        try:
            record = json.loads(line)
            sentences = sentences_of(record["text"])
            label = str(record["label"])
        except (ValueError, KeyError, TypeError):
            expected = '{"text": "...", "label": "..."}'
            raise ValueError(f"{path}, line {number} is not {expected}") from None
        if sentences:
            documents.append((sentences, label, None))
    labels = {label for _, label, _ in documents}
    if len(labels) < 2 or len(documents) < 10:
        counts = f"{path} has {len(documents)} documents with {len(labels)} labels"
        raise ValueError(f"{counts}: give at least 10 with 2 of them")
    return documents


def shared_out(documents, seed):
    """Four fifths for training, the others for testing."""
    mixed = random.Random(seed).sample(documents, len(documents))
    return mixed[len(mixed) // 5 :], mixed[: len(mixed) // 5]


# ---- As numbers


def vocabulary_of(documents):
    """{word: its number, from 2} of all words that occur more than once."""
    counts = Counter(
        word for document, *_ in documents for sentence in document for word in words_of(sentence)
    )
    return {
        word: n for n, word in enumerate((word for word, count in counts.items() if count > 1), 2)
    }


def ids_of(documents, vocabulary):
    """Word ids (B, S, W), 0 where a document has no more words; a word that the vocabulary lacks is 1."""
    ids = [
        [
            [vocabulary.get(word, 1) for word in words_of(sentence)[:WORDS]]
            for sentence in document[:SENTENCES]
        ]
        for document, *_ in documents
    ]
    padded = torch.zeros(
        len(ids),
        max(map(len, ids)),
        max(len(sentence) for d in ids for sentence in d),
        dtype=torch.int32,
    )
    for n, document in enumerate(ids):
        for m, sentence in enumerate(document):
            padded[n, m, : len(sentence)] = torch.tensor(sentence)
    return padded
