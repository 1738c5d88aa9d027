"""Sentences in which "it" and "they" have one meaning, a token for each word: no download.

    python data/words/prepare.py

"the dogs didn't cross the street because it was too wide": the words of scenes.toml, with nouns of
one or many. "it" stands for a noun of one, "they" for one of many; where both nouns would do, for
either. Each noun has two adjectives of its own, so that nobody can tell what comes after "too"
without the noun that the pronoun stands for.
"""

import random
import sys
import tomllib
from pathlib import Path

import tokenizers

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import prepare
from engine.errors import one_line_errors
from engine.tokenizer import PublishedTokenizer

SENTENCES = 20_000
END = "."  # between two sentences
UNKNOWN = "?"  # in place of a word that the grammar lacks
ROLES = "subject", "object"
WORDS = tomllib.loads(Path(__file__).with_name("scenes.toml").read_text(encoding="utf-8"))


def agree(word, many):
    """Return a word, or its form for many."""
    return WORDS["many"].get(word, word + "s") if many else word


def sentence(rng):
    """Return one sentence."""
    scene = WORDS["scenes"][rng.randrange(len(WORDS["scenes"]))]
    nouns = {role: rng.choice(scene[role].split()) for role in ROLES}
    many = {role: rng.random() < 0.5 for role in ROLES}
    said = {role: agree(noun, many[role]) for role, noun in nouns.items()}
    said |= {"verb": rng.choice(scene["verb"].split())}
    said |= {"doesn't": agree("doesn't", many["subject"])}
    meant = rng.choice(ROLES)
    be = rng.random() < 0.5
    words = scene[f"of the {meant}" if be else f"the {meant}"].split()
    place = scene[meant].split().index(nouns[meant])  # two of these words are its own
    reason = rng.choice([words[place % len(words)], words[(place + 1) % len(words)]])
    if be:
        reason = f"{agree(scene['trait'], many[meant])} {reason}"
    return f"{scene['fact'].format(**said)} because {agree('it', many[meant])} {reason}"


def word_tokenizer(sentences):
    """Return a tokenizer with a token for each word."""
    words = sorted({word for text in sentences for word in text.split()})
    vocabulary = {word: n for n, word in enumerate([END, UNKNOWN, *words])}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, UNKNOWN))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return PublishedTokenizer({"tokenizer.json": library.to_str()}, [vocabulary[END]])


if __name__ == "__main__":
    with one_line_errors():
        rng = random.Random(0)
        sentences = [sentence(rng) for _ in range(SENTENCES)]
        tokenizer = word_tokenizer(sentences)
        source = "a grammar of pronouns"
        prepare.write_dataset(Path(__file__).parent, sentences, tokenizer, source)
