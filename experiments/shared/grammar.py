"""English sentences and their French translations, by a grammar: as many as one wants, each with exactly one right answer.

French asks for more than words: articles and adjectives agree with the noun in gender and number, verbs with the subject in
number; most adjectives follow the noun; not is ne ... pas around the verb, after which un becomes de; a vowel elides the word
before it. So a translator must look at the right words, some of them far away.
"""

import itertools
import random

NOUNS = [  # English and French, each one or many; feminine
    (("cat", "cats"), ("chat", "chats"), 0),
    (("dog", "dogs"), ("chien", "chiens"), 0),
    (("boy", "boys"), ("garçon", "garçons"), 0),
    (("girl", "girls"), ("fille", "filles"), 1),
    (("man", "men"), ("homme", "hommes"), 0),
    (("woman", "women"), ("femme", "femmes"), 1),
    (("bird", "birds"), ("oiseau", "oiseaux"), 0),
    (("horse", "horses"), ("cheval", "chevaux"), 0),
    (("cow", "cows"), ("vache", "vaches"), 1),
    (("mouse", "mice"), ("souris", "souris"), 1),
    (("bear", "bears"), ("ours", "ours"), 0),
    (("wolf", "wolves"), ("loup", "loups"), 0),
    (("queen", "queens"), ("reine", "reines"), 1),
    (("king", "kings"), ("roi", "rois"), 0),
    (("friend", "friends"), ("amie", "amies"), 1),
    (("teacher", "teachers"), ("professeur", "professeurs"), 0),
    (("neighbour", "neighbours"), ("voisine", "voisines"), 1),
    (("child", "children"), ("enfant", "enfants"), 0),
    (("student", "students"), ("étudiante", "étudiantes"), 1),
    (("singer", "singers"), ("chanteuse", "chanteuses"), 1),
    (("doctor", "doctors"), ("médecin", "médecins"), 0),
    (("ant", "ants"), ("fourmi", "fourmis"), 1),
    (("bee", "bees"), ("abeille", "abeilles"), 1),
    (("lion", "lions"), ("lion", "lions"), 0),
]
# French forms: masculine, feminine, and both of many.
DETERMINERS = [
    (("the", "the"), "le la les les"),
    (("a", "some"), "un une quelques quelques"),
    (("this", "these"), "ce cette ces ces"),
    (("my", "my"), "mon ma mes mes"),
    (("every", "all the"), "chaque chaque tous_les toutes_les"),
]
BEFORE = [
    ("small", "petit petite petits petites"),
    ("big", "grand grande grands grandes"),
    ("pretty", "joli jolie jolis jolies"),
    ("young", "jeune jeune jeunes jeunes"),
]
AFTER = [
    ("green", "vert verte verts vertes"),
    ("red", "rouge rouge rouges rouges"),
    ("blue", "bleu bleue bleus bleues"),
    ("tired", "fatigué fatiguée fatigués fatiguées"),
    ("happy", "heureux heureuse heureux heureuses"),
    ("funny", "drôle drôle drôles drôles"),
    ("hungry", "affamé affamée affamés affamées"),
]
ALONE = [
    (("sleeps", "sleep"), ("dort", "dorment")),
    (("sings", "sing"), ("chante", "chantent")),
    (("dances", "dance"), ("danse", "dansent")),
    (("laughs", "laugh"), ("rit", "rient")),
    (("runs", "run"), ("court", "courent")),
    (("waits", "wait"), ("attend", "attendent")),
]
WITH_OBJECT = [
    (("sees", "see"), ("voit", "voient")),
    (("likes", "like"), ("aime", "aiment")),
    (("watches", "watch"), ("regarde", "regardent")),
    (("follows", "follow"), ("suit", "suivent")),
    (("hears", "hear"), ("entend", "entendent")),
    (("finds", "find"), ("trouve", "trouvent")),
    (("looks for", "look for"), ("cherche", "cherchent")),
    (("knows", "know"), ("connaît", "connaissent")),
]
WHERE = [("behind", "derrière"), ("with", "avec"), ("in front of", "devant"), ("without", "sans")]
JOINED = [
    ("and", "et"),
    ("but", "mais"),
    ("because", "parce que"),
    ("while", "pendant que"),
    ("when", "quand"),
    ("so", "donc"),
    ("or", "ou"),
    ("if", "si"),
    ("since", "puisque"),
]
BEFORE_VOWEL = {
    "le": "l'",
    "la": "l'",
    "ne": "n'",
    "de": "d'",
    "que": "qu'",
    "puisque": "puisqu'",
    "ce": "cet",
    "ma": "mon",
    "a": "an",
}


def noun_phrase(rng, nouns, denied=False):
    """English, French, and which form agrees with it: 0 to 3, masculine, feminine, and both of many. denied: after not.

    The noun is the last of those left.
    """
    english, french, feminine = nouns.pop()
    many = rng.random() < 0.4
    form = feminine + 2 * many
    determiner = rng.choice(DETERMINERS)
    before = [rng.choice(BEFORE)] * (rng.random() < 0.25)
    after = [rng.choice(AFTER)] * (rng.random() < 0.25)
    article = (
        "de"
        if denied and determiner[0][many] == "a"
        else determiner[1].split()[form].replace("_", " ")
    )
    return (
        [determiner[0][many], *(en for en, _ in before + after), english[many]],
        [
            article,
            *(fr.split()[form] for _, fr in before),
            french[many],
            *(fr.split()[form] for _, fr in after),
        ],
        form,
    )


def predicate(rng, nouns, form):
    """What a subject of this form does, or is."""
    many, denied, kind = form // 2, rng.random() < 0.25, rng.random()
    if kind < 0.2:
        adjective = rng.choice(AFTER)
        verb, rest = (
            (("is", "are"), ("est", "sont")),
            ([adjective[0]], [adjective[1].split()[form]]),
        )
        english = [verb[0][many], *["not"] * denied]
    else:
        verb, rest = rng.choice(ALONE if kind < 0.45 else WITH_OBJECT), ([], [])
        if kind >= 0.45:
            rest = noun_phrase(rng, nouns, denied)
        english = [("does", "do")[many], "not", verb[0][1]] if denied else [verb[0][many]]
    french = ["ne", verb[1][many], "pas"] if denied else [verb[1][many]]
    return english + rest[0], french + rest[1]


def clause(rng, nouns):
    """A subject, perhaps with a place or a relative clause, and a predicate."""
    english, french, form = noun_phrase(rng, nouns)
    kind = rng.random()
    if kind < 0.15:
        where, other = rng.choice(WHERE), noun_phrase(rng, nouns)
        english, french = english + [where[0]] + other[0], french + [where[1]] + other[1]
    elif kind < 0.3:  # the cat that sees the dog
        more = predicate(rng, nouns, form)
        english, french = english + ["that"] + more[0], french + ["qui"] + more[1]
    elif kind < 0.4:  # the cat that the dog sees
        other, verb = noun_phrase(rng, nouns), rng.choice(WITH_OBJECT)
        english = english + ["that"] + other[0] + [verb[0][other[2] // 2]]
        french = french + ["que"] + other[1] + [verb[1][other[2] // 2]]
    more = predicate(rng, nouns, form)
    return english + more[0], french + more[1]


def written(phrases, vowels):
    """Phrases as a text, in which some words change before a vowel."""
    words = " ".join(phrases).split()
    changed = [
        BEFORE_VOWEL.get(word, word) if after[0] in vowels else word
        for word, after in zip(words, words[1:])
    ]
    return " ".join([*changed, *words[-1:]]).replace("' ", "'")


def pair(rng, most):
    """A sentence of at most `most` English words, and few fewer, and its translation: clauses, as long as one more fits."""
    english, french, nouns = [], [], rng.sample(NOUNS, len(NOUNS))  # each noun once
    joints = itertools.cycle(rng.sample(JOINED, len(JOINED)))
    for _ in range(most // 2):
        joint = [[word] for word in next(joints)] if english else ([], [])
        more = clause(rng, left := nouns[:])
        if len(" ".join(english + joint[0] + more[0]).split()) <= most:
            english, french, nouns = english + joint[0] + more[0], french + joint[1] + more[1], left
    return written(english, "aeiou"), written(french, "aeiouéh")


def pairs(number, seed, most=50):
    """Different pairs, of all lengths from 3 words to `most` about equally often."""
    rng, found = random.Random(seed), {}
    while len(found) < number:
        english, french = pair(rng, rng.randint(4, most))
        if english:
            found[english] = french
    return [*found.items()]
