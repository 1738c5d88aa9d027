"""English sentences with a word that may mean two things, and French ones, which must tell which.

"it" is "il" or "elle", by the gender of the noun that it stands for, and only the adjective tells
which noun that is: "the dog did not cross the street because it was too tired", or "too wide".
"""

import random
import re
import tomllib

import torch
import torch.nn as nn

from engine.errors import UserError
from engine.files import ROOT
from experiments.shared import trials
from experiments.shared.grammar import NOUNS, elide, table
from experiments.shared.translation import END, padded


def dictionary(text):
    """Return {English: French, with a gender or in the feminine} from a table of words."""
    return {row[0]: row[1:] for row in table(text)}


# A noun's French has a gender, an adjective's a feminine.
FRENCH = {row[0]: [row[2], row[4]] for row in NOUNS} | dictionary("""
    cross       traversé
    leave       quitté
    reach       atteint
    fit         tenu_dans
    street      rue         f
    road        route       f
    river       rivière     f
    forest      forêt       f
    meadow      prairie     f
    bridge      pont        m
    field       champ       m
    park        parc        m
    garden      jardin      m
    path        sentier     m
    tired       fatigué     fatiguée
    hungry      affamé      affamée
    ill         malade      malade
    lazy        paresseux   paresseuse
    frightened  effrayé     effrayée
    wide        large       large
    long        long        longue
    dark        sombre      sombre
    muddy       boueux      boueuse
    crowded     bondé       bondée
    trophy      trophée     m
    vase        vase        m
    book        livre       m
    helmet      casque      m
    cake        gâteau      m
    lamp        lampe       f
    statue      statue      f
    doll        poupée      f
    guitar      guitare     f
    chair       chaise      f
    suitcase    valise      f
    box         boîte       f
    crate       caisse      f
    pocket      poche       f
    bag         sac         m
    basket      panier      m
    drawer      tiroir      m
    cupboard    placard     m
    big         grand       grande
    tall        haut        haute
    thick       épais       épaisse
    bulky       encombrant  encombrante
    small       petit       petite
    narrow      étroit      étroite
    full        plein       pleine
    low         bas         basse
""")
ROLES = "subject", "verb", "object", "of the subject", "of the object"


def read_scenes(*forms):
    """Return the scenes of data/words, a dict for each: role or form of a sentence -> words."""
    text = (ROOT / "data/words/scenes.toml").read_text(encoding="utf-8")
    scenes = tomllib.loads(text)["scenes"]
    return [{role: scene[role].split() for role in (*ROLES, *forms)} for scene in scenes]


def with_french(scenes):
    """Return the scenes with the words alone that have a French."""
    known = [
        {role: [word for word in words if word in FRENCH] for role, words in scene.items()}
        for scene in scenes
    ]
    return [scene for scene in known if scene["verb"]]


SCENES = with_french(read_scenes())
THE = dictionary("""
    the     le      la
    this    ce      cette
    my      mon     ma
""")
IT = ["il", "elle"]
FACT = (
    r"(?P<one>the|this|my) (?P<subject>\w+) did not (?P<verb>\w+)"
    r" (?P<two>the|this|my) (?P<object>\w+)"
)
REASON = r"because (?P<it>it) was too (?P<adjective>\w+)"


def words_of(text):
    return text.replace("'", "' ").split()


class Reading:
    """What an English sentence says: its words by their roles, and which noun "it" stands for.

    UserError for another sentence, and if "it" may stand for neither noun, or for either.
    """

    def __init__(self, english):
        found = re.fullmatch(f"{FACT} {REASON}", english)
        self.reason_first = not found
        found = found or re.fullmatch(f"{REASON} {FACT}", english)
        if not found:
            raise UserError(
                f"{english!r} is not like 'the dog did not cross the street because it was too "
                "tired', or with its halves exchanged"
            )
        self.words = found.groupdict()
        nouns = [self.words["subject"], self.words["object"]]
        if self.words["adjective"] in self.find_scene(english)["of the object"]:
            nouns.reverse()
        self.words["referent"], self.words["other"] = nouns
        order = english.split()
        self.places = {role: order.index(word) for role, word in self.words.items()}

    def find_scene(self, english):
        """Return the scene that has all the words."""
        for scene in SCENES:
            known = [self.words[role] in scene[role] for role in ("subject", "verb", "object")]
            adjectives = scene["of the subject"] + scene["of the object"]
            if all(known) and self.words["adjective"] in adjectives:
                return scene
        raise UserError(f"{english!r} does not tell what 'it' stands for, in the words known here")

    def french(self):
        """Return the translation."""

        def phrase(article, noun):
            translation, gender = FRENCH[self.words[noun]]
            return f"{THE[self.words[article]][gender == 'f']} {translation}"

        verb = FRENCH[self.words["verb"]][0]
        female = FRENCH[self.words["referent"]][1] == "f"
        adjective = FRENCH[self.words["adjective"]][female]
        fact = f"{phrase('one', 'subject')} ne a pas {verb} {phrase('two', 'object')}"
        reason = f"parce que {IT[female]} était trop {adjective}"
        halves = f"{reason} {fact}" if self.reason_first else f"{fact} {reason}"
        return elide(halves, "aeiouéh")

    def french_subject(self):
        """Return the place of the subject among the words of the translation."""
        return words_of(self.french()).index(FRENCH[self.words["subject"]][0])


def draw_nouns(rng, scene, genders, tested):
    """Return a subject and an object of these genders. A fifth of all pairs are for the test."""
    found = []
    for n, subject in enumerate(scene["subject"]):
        for m, object in enumerate(scene["object"]):
            own = FRENCH[subject][1] + FRENCH[object][1]
            if own == genders and ((n + m) % 5 == 0) == tested:
                found.append((subject, object))
    return rng.choice(found)


def similar_sentences(rng, genders, tested):
    """Return English sentences that differ in the nouns' genders, and in what "it" stands for.

    With nouns of different genders, mf and fm, each adjective comes with "il" as often as with
    "elle", and so does each pair of nouns: neither tells the gender without the other.
    """
    scene = rng.choice(SCENES)
    verb = rng.choice(scene["verb"])
    one = rng.choice([*THE])
    two = rng.choice([*THE])
    of_subject = rng.choice(scene["of the subject"])
    of_object = rng.choice(scene["of the object"])
    reason_first = rng.random() < 0.5
    found = []
    for both in genders:
        subject, object = draw_nouns(rng, scene, both, tested)
        fact = f"{one} {subject} did not {verb} {two} {object}"
        for adjective in (of_subject, of_object):
            reason = f"because it was too {adjective}"
            found.append(f"{reason} {fact}" if reason_first else f"{fact} {reason}")
    return found


def pronouns(number, seed, tested=False):
    """Return pairs of sentences. Those of the test have pairs of nouns that the others lack.

    Half of the others have nouns of the same gender, so that the adjective is not needed.
    """
    rng = random.Random(seed)
    genders = ["mf", "fm"] if tested else ["mf", "fm", "mm", "ff"]
    found = []
    while len(found) < number:
        found += similar_sentences(rng, genders, tested)
    found = found[:number]
    return [(english, Reading(english).french()) for english in found]


def number_words(pairs):
    """Return {word: its number, from 1} of all words of both languages."""
    words = {word for pair in pairs for text in pair for word in words_of(text)}
    return {word: n for n, word in enumerate(sorted(words), 1)}


def rows_of(texts, numbers):
    """Return the numbers of each text's words, and END."""
    return [[*(numbers[word] for word in words_of(text)), END] for text in texts]


def encode(pairs, numbers):
    """Return tensors of the English texts and the French, (B, S) and (B, T), and which are real.

    All English texts have the same number of words.
    """
    english, french = (rows_of(texts, numbers) for texts in zip(*pairs))
    return torch.tensor(english), *padded(french)


def new_gpt(vocab_size):
    """Return a small GPT for such sentences and their translations as one text."""
    return trials.new_gpt(
        block_size=64,
        vocab_size=vocab_size,
        n_head=4,
        n_embd=64,
        mlp_size=128,
        position="rope",
        rope_base=100.0,
    )


class Continuation(nn.Module):
    """A GPT that reads the English and goes on in French, with a translator's methods."""

    def __init__(self, vocab_size, shape):
        super().__init__()
        self.gpt = new_gpt(vocab_size)

    def encode(self, source, real):
        return source

    def decode(self, target, source):
        ids = torch.cat([source, target], 1)
        logits, _ = self.gpt(ids, ids)  # with targets, it scores at all positions
        return logits[:, source.shape[1] :], None
