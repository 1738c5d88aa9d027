"""Documents with labels, made of docstrings of Python's own library.

A document is (its sentences, its topic, the number of the sentence that carries the topic).
"""

import ast
import itertools
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch

from engine.errors import UserError
from experiments.shared.translation import padded

WORDS = 16  # of the longest sentence
SENTENCES = 60  # of the longest document
# A sentence with words of only one topic is about that topic. Models are not told these words.
TOPICS = {
    "windows": "widget window menu button canvas mouse scrollbar listbox cursor",
    "network": "socket server client network address host connection url proxy port",
    "tasks": "process thread loop coroutine lock threads task processes scheduled semaphore",
    "mail": "header headers email mime mailbox smtp mail imap folder recipient",
    "time": "time date timeout year month day seconds timezone timestamp calendar clock hour",
    "numbers": "integer decimal digits sign exponent rounding fraction median variance"
    " probability logarithm",
}
RETURNS = {"return", "returns", "returned", "returning"}
NOT_READ = {"test", "tests", "site-packages", "dist-packages", "lib2to3"}  # folders
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def words_of(sentence):
    return re.findall(r"[^\W\d_]+", sentence.lower())


def sentences_of(text):
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
    parts = filter(words_of, parts)
    return [" ".join(part.split()) for part in parts]


# ---- From docstrings


def docstrings():
    """Yield the sentences of each docstring of Python's library."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if NOT_READ.intersection(path.relative_to(library).parts):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, DOCUMENTED):
                yield sentences_of(ast.get_docstring(node) or "")


def sentences():
    """Return the sentences of 6 to WORDS words in docstrings, each once."""
    found = {}
    for sentence in itertools.chain(*docstrings()):
        words = tuple(words_of(sentence))
        if 6 <= len(words) <= WORDS and ">>>" not in sentence:
            found.setdefault(words, sentence)
    return [*found.values()]


def first_sentences(number, seed):
    """Return pairs of texts: what follows the first sentence of a docstring, and that sentence."""
    found = {}
    for first, *others in filter(None, docstrings()):
        summary = words_of(first)
        body = words_of(" ".join(others))[: 2 * WORDS]
        if 4 <= len(summary) <= WORDS <= len(body):
            found[" ".join(body)] = " ".join(summary)
    pairs = random.Random(seed).sample([*found.items()], len(found))
    return pairs[:number]


# ---- Documents


def group_by_topic(sentences):
    """Return {(topic or None, whether it says what is returned): sentences}.

    Sentences about two topics are left out.
    """
    topics = {topic: set(words.split()) for topic, words in TOPICS.items()}
    keys = itertools.product((*TOPICS, None), (False, True))
    groups = {key: [] for key in keys}
    for sentence in sentences:
        words = set(words_of(sentence))
        about = [topic for topic in TOPICS if topics[topic] & words] or [None]
        if len(about) == 1:
            returns = bool(RETURNS & words)
            groups[about[0], returns].append(sentence)
    return groups


def compose_document(chance, groups, topic, number):
    """Return a document in which one sentence says what is returned, and is about the topic.

    number: of other sentences.
    """
    sentences = chance.sample(groups[None, False], number)
    # Half of these, in place of others.
    keys = [(None, True)]
    keys += [(other, False) for other in TOPICS if other != topic]
    others = [chance.choice(groups[key]) for key in keys]
    others = [sentence for sentence in others if chance.random() < 0.5]
    sentences[: len(others)] = others
    chance.shuffle(sentences)
    place = chance.randrange(len(sentences) + 1)
    carrying = chance.choice(groups[topic, True])
    sentences.insert(place, carrying)
    return sentences, topic, place


def compose(sentences, number, seed):
    """Return documents of 20 to 40 sentences to train on, a quarter as many to test, one of 51.

    Training has sentences of its own.
    """
    chance = random.Random(seed)
    groups = group_by_topic(sentences)
    groups = {key: chance.sample(group, len(group)) for key, group in groups.items()}
    for topic in TOPICS:
        if len(groups[topic, True]) < 2:  # some systems leave out tkinter
            raise UserError(f"this Python's library says nothing about {topic}: use a full one")
    splits = []
    for first, size in enumerate((number, number // 4)):
        own = {key: group[first::2] for key, group in groups.items()}
        topics = itertools.islice(itertools.cycle(TOPICS), size)
        splits.append(
            [compose_document(chance, own, topic, chance.randint(19, 39)) for topic in topics]
        )
    return *splits, compose_document(chance, own, next(iter(TOPICS)), 50)


# ---- As numbers: 0 is padding, 1 a word that the vocabulary lacks


def vocabulary_of(documents):
    """Return {word: its number, from 2} of all words that occur more than once."""
    counts = Counter()
    for sentences, *_ in documents:
        for sentence in sentences:
            counts.update(words_of(sentence))
    frequent = [word for word, count in counts.items() if count > 1]
    return {word: n for n, word in enumerate(frequent, 2)}


def numbers_of(sentences, vocabulary):
    """Return word ids (N, T), with at least one 0 after each sentence."""
    rows = []
    for sentence in sentences:
        words = [vocabulary.get(word, 1) for word in words_of(sentence)]
        rows.append([*words, 0])
    numbers, _ = padded(rows)
    return numbers


def tensors_of(documents, vocabulary):
    """Return word ids (B, S, W), topics (B,) in alphabetical order, carrying sentences (B,)."""
    documents, topics, places = zip(*documents)
    ids = torch.zeros(len(documents), SENTENCES, WORDS, dtype=torch.int32)
    for n, sentences in enumerate(documents):
        words = numbers_of(sentences, vocabulary)[:, :WORDS]
        ids[n, : len(sentences), : words.shape[1]] = words
    order = sorted(TOPICS)
    numbers = [order.index(topic) for topic in topics]
    return ids, torch.tensor(numbers), torch.tensor(places)
