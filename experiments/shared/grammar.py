"""English sentences and their French translations, by a grammar: each has exactly one right answer.

French asks for more than words. Articles and adjectives agree with the noun in gender and number,
verbs with the subject in number. Most adjectives follow the noun. "not" is "ne ... pas" around the
verb, after which "un" becomes "de". A vowel elides the word before it. So a translator must look at
the right words, some of them far away.
"""

import itertools
import random

LONGEST = 50  # words of an English sentence
MARK = "note:"  # before the sentence of a document that counts


def table(text):
    """Return the rows of a table of words, lists of texts. A _ stands for a space in an entry."""
    rows = [line.split() for line in text.strip().splitlines()]
    return [[word.replace("_", " ") for word in row] for row in rows]


# English and French, one and many of each; gender.
NOUNS = table("""
    cat         cats            chat        chats           m
    dog         dogs            chien       chiens          m
    boy         boys            garçon      garçons         m
    girl        girls           fille       filles          f
    man         men             homme       hommes          m
    woman       women           femme       femmes          f
    bird        birds           oiseau      oiseaux         m
    horse       horses          cheval      chevaux         m
    cow         cows            vache       vaches          f
    mouse       mice            souris      souris          f
    bear        bears           ours        ours            m
    wolf        wolves          loup        loups           m
    queen       queens          reine       reines          f
    king        kings           roi         rois            m
    friend      friends         amie        amies           f
    teacher     teachers        professeur  professeurs     m
    neighbour   neighbours      voisine     voisines        f
    child       children        enfant      enfants         m
    student     students        étudiante   étudiantes      f
    singer      singers         chanteuse   chanteuses      f
    doctor      doctors         médecin     médecins        m
    ant         ants            fourmi      fourmis         f
    bee         bees            abeille     abeilles        f
    lion        lions           lion        lions           m
""")
# English, one and many; French: masculine, feminine, both of many.
DETERMINERS = table("""
    the     the         le      la      les         les
    a       some        un      une     quelques    quelques
    this    these       ce      cette   ces         ces
    my      my          mon     ma      mes         mes
    every   all_the     chaque  chaque  tous_les    toutes_les
""")
# Adjectives before the noun, and after it. English; French: masculine, feminine, both of many.
BEFORE = table("""
    small   petit   petite  petits  petites
    big     grand   grande  grands  grandes
    pretty  joli    jolie   jolis   jolies
    young   jeune   jeune   jeunes  jeunes
""")
AFTER = table("""
    green   vert    verte       verts       vertes
    red     rouge   rouge       rouges      rouges
    blue    bleu    bleue       bleus       bleues
    tired   fatigué fatiguée    fatigués    fatiguées
    happy   heureux heureuse    heureux     heureuses
    funny   drôle   drôle       drôles      drôles
    hungry  affamé  affamée     affamés     affamées
""")
# Verbs without and with an object. English and French, one and many of each.
ALONE = table("""
    sleeps  sleep   dort    dorment
    sings   sing    chante  chantent
    dances  dance   danse   dansent
    laughs  laugh   rit     rient
    runs    run     court   courent
    waits   wait    attend  attendent
""")
WITH_OBJECT = table("""
    sees        see         voit        voient
    likes       like        aime        aiment
    watches     watch       regarde     regardent
    follows     follow      suit        suivent
    hears       hear        entend      entendent
    finds       find        trouve      trouvent
    looks_for   look_for    cherche     cherchent
    knows       know        connaît     connaissent
""")
PLACES = table("""
    behind          derrière
    with            avec
    in_front_of     devant
    without         sans
""")
SAT = ["s'est assis", "s'est assise", "se sont assis", "se sont assises"]
SEATS = table("""
    mat     le_tapis
    bed     le_lit
    chair   la_chaise
""")
CONJUNCTIONS = table("""
    and         et
    but         mais
    because     parce_que
    while       pendant_que
    when        quand
    so          donc
    or          ou
    if          si
    since       puisque
""")
BEFORE_VOWEL = dict(
    table("""
    le          l'
    la          l'
    ne          n'
    de          d'
    que         qu'
    puisque     puisqu'
    ce          cet
    ma          mon
    a           an
""")
)


def perhaps(rng, adjectives):
    """Return an adjective in all its forms or, three times in four, empty texts."""
    adjective = rng.choice(adjectives)
    return adjective if rng.random() < 0.25 else [""] * 5


def noun_phrase(rng, nouns, denied=False):
    """Return English, French, and the form that agrees with the noun, which is taken from nouns.

    Forms are 0 masculine, 1 feminine, 2 and 3 both of many. denied: it is the object after "not".
    """
    noun = nouns.pop()
    many = rng.random() < 0.4
    form = 2 * many + (noun[4] == "f")
    determiner = rng.choice(DETERMINERS)
    before = perhaps(rng, BEFORE)
    after = perhaps(rng, AFTER)
    article = "de" if denied and determiner[many] == "a" else determiner[2 + form]
    english = f"{determiner[many]} {before[0]} {after[0]} {noun[many]}"
    french = f"{article} {before[1 + form]} {noun[2 + many]} {after[1 + form]}"
    return english, french, form


def predicate(rng, nouns, form):
    """Return what a subject of this form does, or is, in English and French."""
    many = form // 2
    denied = rng.random() < 0.25
    kind = rng.random()
    rest = "", ""
    if kind > 0.95:  # sat on the mat
        english, french = rng.choice(SEATS)
        return f"sat on the {english}", f"{SAT[form]} sur {french}"
    if kind < 0.2:  # is happy, is not happy
        verb = ["is", "are", "est", "sont"]
        english_denied = f"{verb[many]} not"
        adjective = rng.choice(AFTER)
        rest = adjective[0], adjective[1 + form]
    else:  # sleeps, does not sleep, sees the dog
        verb = rng.choice(ALONE if kind < 0.45 else WITH_OBJECT)
        english_denied = f"{['does', 'do'][many]} not {verb[1]}"
        if kind >= 0.45:
            rest = noun_phrase(rng, nouns, denied)
    if denied:
        return f"{english_denied} {rest[0]}", f"ne {verb[2 + many]} pas {rest[1]}"
    return f"{verb[many]} {rest[0]}", f"{verb[2 + many]} {rest[1]}"


def clause(rng, nouns):
    """Return a subject, perhaps with a place or a relative clause, and a predicate."""
    english, french, form = noun_phrase(rng, nouns)
    kind = rng.random()
    if kind < 0.15:  # the cat behind the dog
        place = rng.choice(PLACES)
        other = noun_phrase(rng, nouns)
        english = f"{english} {place[0]} {other[0]}"
        french = f"{french} {place[1]} {other[1]}"
    elif kind < 0.3:  # the cat that sees the dog
        more = predicate(rng, nouns, form)
        english = f"{english} that {more[0]}"
        french = f"{french} qui {more[1]}"
    elif kind < 0.4:  # the cat that the dog sees
        other = noun_phrase(rng, nouns)
        verb = rng.choice(WITH_OBJECT)
        many = other[2] // 2
        english = f"{english} that {other[0]} {verb[many]}"
        french = f"{french} que {other[1]} {verb[2 + many]}"
    more = predicate(rng, nouns, form)
    return f"{english} {more[0]}", f"{french} {more[1]}"


def elide(text, vowels):
    """Return a text in which some words have changed before a vowel."""
    words = text.split()
    for n, after in enumerate(words[1:]):
        if after[0] in vowels:
            words[n] = BEFORE_VOWEL.get(words[n], words[n])
    return " ".join(words).replace("' ", "'")


def pair(rng, longest):
    """Return a sentence of nearly `longest` English words, never more, and its translation."""
    english = french = ""
    nouns = rng.sample(NOUNS, len(NOUNS))  # each noun once
    conjunctions = itertools.cycle(rng.sample(CONJUNCTIONS, len(CONJUNCTIONS)))
    for _ in range(longest // 2):
        conjunction = next(conjunctions) if english else ("", "")
        left = nouns[:]
        more = clause(rng, left)
        longer = f"{english} {conjunction[0]} {more[0]}"
        if len(longer.split()) <= longest:
            english = longer
            french = f"{french} {conjunction[1]} {more[1]}"
            nouns = left
    return elide(english, "aeiou"), elide(french, "aeiouéh")


def pairs(number, seed):
    """Return different pairs. All lengths from 3 to LONGEST words are about equally frequent."""
    rng = random.Random(seed)
    found = {}
    while len(found) < number:
        english, french = pair(rng, rng.randint(4, LONGEST))
        if english:
            found[english] = french
    return [*found.items()]


def summaries(number, seed):
    """Return different documents of four short English sentences, and the one behind MARK."""
    rng = random.Random(seed)
    found = {}
    while len(found) < number:
        sentences = [pair(rng, 6)[0] for _ in range(4)]
        if all(sentences):
            place = rng.randrange(4)
            summary = sentences[place]
            sentences[place] = f"{MARK} {summary}"
            found[". ".join(sentences)] = summary
    return [*found.items()]


def into_english(number, seed):
    """Return pairs the other way round."""
    return [(french, english) for english, french in pairs(number, seed)]
