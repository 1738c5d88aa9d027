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

from experiments.shared.translation import padded

WORDS = 16  # of the longest sentence
SENTENCES = 40  # of the longest document
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
    """Return the sentences of 6 to WORDS words in the docstrings of Python's library, each once."""
    library = Path(sysconfig.get_path("stdlib"))
    found = {}
    for path in sorted(library.rglob("*.py")):
        if NOT_READ.intersection(path.relative_to(library).parts):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, DOCUMENTED):
                continue
            for sentence in sentences_of(ast.get_docstring(node) or ""):
                words = tuple(words_of(sentence))
                if 6 <= len(words) <= WORDS and ">>>" not in sentence:
                    found.setdefault(words, sentence)
    return [*found.values()]


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


def compose_document(chance, groups, topic):
    """Return 20 to 40 sentences, of which one says what is returned, and is about the topic."""
    number = chance.randint(19, 39)
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
    """Return documents for training, and a quarter as many for the test.

    Both have sentences of their own.
    """
    chance = random.Random(seed)
    groups = group_by_topic(sentences)
    groups = {key: chance.sample(group, len(group)) for key, group in groups.items()}
    for topic in TOPICS:
        if len(groups[topic, True]) < 2:  # some systems leave out tkinter
            raise ValueError(f"this Python's library says nothing about {topic}: use a full one")
    splits = []
    for first, size in enumerate((number, number // 4)):
        own = {key: group[first::2] for key, group in groups.items()}
        topics = itertools.islice(itertools.cycle(TOPICS), size)
        splits.append([compose_document(chance, own, topic) for topic in topics])
    return splits


def about_topics(sentences):
    """Return the sentences that are about a topic, and their topics."""
    found = []
    for (topic, _), group in group_by_topic(sentences).items():
        if topic:
            found += [(sentence, topic) for sentence in group]
    return zip(*found)


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


def counts_of(ids, V):
    """Return how often each of V numbers occurs in ids (N, ...): (N, V)."""
    return torch.stack([row.bincount(minlength=V) for row in ids.flatten(1)])


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
