"""What "it" refers to: a pronoun whose translation needs the noun that it stands for.

    python -m experiments.pronouns [--seeds=5]

Claim (Vaswani et al. 2017, arXiv:1706.03762, figure 4; Voita et al. 2018, arXiv:1805.10163): "the
dog did not cross the street because it was too tired", or "too wide": attention finds the noun that
"it" stands for, though nobody marks it.

In French it is "il" or "elle", by the noun's gender. In the test the nouns have different genders,
and an adjective tells which one is meant: neither a noun, nor both, nor the adjective alone is
better than a guess, 0.5. Training lacks these pairs of nouns. Learning rates are the best of 0.002,
0.005, 0.01 and 0.02 for another seed and 400 steps.

Found (5 seeds, 800 steps): pronouns are right in 0.998 ± 0.001 without attention, 1.000 ± 0.000
with additive scores, 0.887 ± 0.066 with dot, 1.000 ± 0.000 for the transformer and for the GPT. So
for twelve words one vector will do. The additive score gives 0.241 ± 0.057 to the referent, 0.050 ±
0.011 to the other noun (evenly: 0.077); the transformer's best head 0.168 ± 0.055 and 0.055 ±
0.018, the GPT's 0.329 ± 0.043 and 0.076 ± 0.045 (evenly: 0.051). But "it" itself does not look at
its noun: the transformer's best head gives it 0.141 ± 0.045 and the other noun 0.117 ± 0.044, the
GPT's 0.046 ± 0.041 to each. (It does where words are read again: reading.py.)

Alignment is plainer: in each run, who writes the French subject gives the English one more than the
object, which gets less than 0.04: 0.877 ± 0.031 by additive, 0.618 ± 0.155 by dot scores, 0.851 ±
0.023 in the transformer's best head, 0.826 ± 0.095 in the GPT's. How much depends on the run. And
weights do not explain the pronoun: with dot, it depends on the run, and the one that is always
right gives both nouns less than 0.001. In the transformer's encoder the adjective looks at its noun
in some runs, 0.189 ± 0.058, hardly at the other, 0.039 ± 0.007; verbs at subjects in the GPT, 0.345
± 0.033 (evenly: 0.152).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attention import attention_weights
from experiments.shared import ambiguity, translators, trials
from experiments.shared.translation import shifted
from tools.shared import heatmaps
from tools.shared.inspection import recording

SHAPE = translators.Shape(n_embd=64)
SENTENCES = 4000  # for training
TESTED = 400
MODELS = {name: translators.MODELS[name] for name in ("none", "additive", "dot", "transformer")}
MODELS["gpt"] = ambiguity.Continuation
LEARNING_RATES = dict.fromkeys(MODELS, 1e-2) | {"transformer": 5e-3}
PRONOUN = "the French pronoun"
SUBJECT = "the French subject"
RELATIONS = {  # from a word: to which word, rather than to which other one
    PRONOUN: ("referent", "other"),
    "it": ("referent", "other"),
    "adjective": ("referent", "other"),
    "verb": ("subject", "object"),
    SUBJECT: ("subject", "object"),  # alignment: the word that it translates
}


@dataclass
class Settings(trials.Settings):
    steps: int = 800
    example: str = "the dog did not cross the street because it was too tired"
    """A sentence in which attention is drawn."""


# ---- Where they look


def evenly(q, k, visible, *_):
    """Return weights spread evenly over all that may be seen: the chance level."""
    return attention_weights(0 * q, k, visible)


def look(model, source, target, weights):
    """Return the scores of the French words, and all heads' weights on the English words.

    {"French": of French queries (B, heads, T, S), "English": of English ones (B, heads, S, S)}
    """
    with recording(model, weights) as maps:
        memory = model.encode(source, source >= 0)  # nothing is padding
        logits, _ = model.decode(shifted(target), memory)
    if isinstance(model, ambiguity.Continuation):  # both languages are one text
        S = source.shape[1]
        english, french = torch.cat(maps, 1)[..., :S].tensor_split([S], 2)
        return logits, {"French": french, "English": english}
    found = {"French": maps[-1]} if maps else {}
    if len(maps) > 1:  # a transformer: then come French words on each other
        found["English"] = maps[0]
    return logits, found


def on_words(weights, query, places):
    """Return {role: weights (B, heads) of each text's query (B,) on the word of the role}."""
    rows = torch.arange(len(query))
    weights = weights[rows, :, query]  # (B, heads, S)
    return {role: weights[rows, :, place] for role, place in places.items()}


def measure(model, pairs, numbers):
    """Return the share of right pronouns, and where heads look from the words of RELATIONS.

    UserError for an English text in which "it" stands for nothing, or may stand for either noun.
    """
    readings = [ambiguity.Reading(english) for english, _ in pairs]
    places = trials.by_kind([reading.places for reading in readings])
    places = {role: torch.tensor(found) for role, found in places.items()}
    subjects = torch.tensor([reading.french_subject() for reading in readings])
    source, target, _ = ambiguity.encode(pairs, numbers)
    logits, maps = look(model, source, target, attention_weights)
    _, even = look(model, source, target, evenly)
    il_or_elle = [numbers[word] for word in ambiguity.IT]
    is_pronoun = torch.isin(target, torch.tensor(il_or_elle))
    queries = places | {PRONOUN: is_pronoun.int().argmax(1), SUBJECT: subjects}
    found = {"right": trials.accuracy(logits[is_pronoun], target[is_pronoun])}
    for query, (wanted, other) in RELATIONS.items():
        language = "French" if query in (PRONOUN, SUBJECT) else "English"
        if language in maps:
            weights = on_words(maps[language], queries[query], places)
            chance = on_words(even[language], queries[query], places)
            found[query] = summary(weights, wanted, other)
            found[query]["evenly"] = chance[wanted].mean().item()
    return found


def summary(weights, wanted, other):
    """Return mean weights on words, of all heads and of the one that most prefers one to another.

    weights: {role: (B, heads)}. That head is chosen on half of the sentences, and measured on the
    other half.
    """
    half = len(weights[wanted]) // 2
    preference = weights[wanted] - weights[other]
    head = preference[:half].mean(0).argmax().item()
    found = {"head": head}
    for role in wanted, other:
        found[f"{role}, best head"] = weights[role][half:, head].mean().item()
        found[role] = weights[role].mean().item()
    return found


# ---- Runs


def run(name, config, example, seed):
    """Train a model; return its measurements, and its weights in the example, a pair of texts."""
    train = ambiguity.pronouns(SENTENCES, seed)
    test = ambiguity.pronouns(TESTED, seed, tested=True)
    numbers = ambiguity.number_words([*train, *test, example])
    sources, targets, real = ambiguity.encode(train, numbers)
    model = MODELS[name](len(numbers) + 1, SHAPE)

    def loss(step):
        rows = torch.randint(len(train), (32,))
        source = sources[rows]
        target = targets[rows]
        own = real[rows]
        memory = model.encode(source, source >= 0)
        logits, _ = model.decode(shifted(target), memory)
        return F.cross_entropy(logits[own], target[own])

    trials.fit(model, loss, config.steps, LEARNING_RATES[name])
    found = measure(model, test, numbers)
    source, target, _ = ambiguity.encode([example], numbers)
    _, maps = look(model, source, target, attention_weights)
    if "French" in maps:
        head = found[PRONOUN]["head"]
        found["example"] = maps["French"][0, head].tolist()
    return found


def draw(example, runs):
    """Draw accuracies, and where the best heads of the first runs look in the example."""
    english, french = ([*ambiguity.words_of(text), "(end)"] for text in example)
    figure, panels = trials.make_figure(19, 3.8, 1, 5)
    first, *others = panels
    trials.draw_means(first, runs, "right")
    first.axvline(0.5, color="black", linestyle=":")
    first.set_title("pronouns that are right (dotted: a guess)")
    for panel, name in zip(others, [name for name in runs if name != "none"]):
        heatmaps.cells(panel, runs[name][0]["example"], french, english)
        panel.set_title(f"{name}, best head")
        [place] = [n for n, word in enumerate(french) if word in ambiguity.IT]
        panel.get_yticklabels()[place].set(color="C3", weight="bold")
    return figure


def main(config):
    example = config.example, ambiguity.Reading(config.example).french()
    runs = trials.run_seeds(run, MODELS, config, example)
    tables = {"pronouns that are right; a guess: 0.5": trials.make_table("model", runs)}
    for query in RELATIONS:
        looking = {name: found for name, found in runs.items() if query in found[0]}
        weights = trials.select(looking, query)
        title = f"weights from {query}, of the head that most prefers the first word, and of all"
        tables[title] = trials.make_table("model", weights)
    trials.write_result("pronouns", config, tables, draw(example, runs), runs=runs)


if __name__ == "__main__":
    trials.run_script(main, Settings)
