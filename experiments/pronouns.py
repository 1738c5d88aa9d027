"""What "it" refers to: a pronoun whose translation needs the noun that it stands for.

python -m experiments.pronouns [--seeds=3]
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from attention import attention_weights
from engine.plotting import heatmaps
from engine.plotting.inspection import recording
from experiments.shared import ambiguity, translators, trials
from experiments.shared.translation import shifted

SHAPE = translators.Shape(n_embd=64)
SENTENCES, TESTED = 4000, 400  # for training, for the test
PRONOUN = "the French pronoun"
RELATIONS = {  # from a word: to which word, rather than to which other one
    PRONOUN: ("referent", "other"),
    "it": ("referent", "other"),
    "adjective": ("referent", "other"),
    "verb": ("subject", "object"),
}


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 800
    easy: bool = True
    """Train with nouns of the same gender too, where the adjective is not needed."""
    example: str = "the dog did not cross the street because it was too tired"
    """A sentence in which attention is drawn."""

    def __post_init__(self):
        super().__post_init__()
        ambiguity.Reading(self.example)


MODELS = {  # name -> (kind, learning rate)
    "none": (translators.MODELS["none"], 5e-3),
    "additive": (translators.MODELS["additive"], 5e-3),
    "dot": (translators.MODELS["dot"], 5e-3),
    "transformer": (translators.MODELS["transformer"], 5e-3),
    "gpt": (ambiguity.Continuation, 5e-3),
}


# ---- Where they look


def evenly(q, k, visible, *_):
    """Return weights spread evenly over all that may be seen: the chance level."""
    return attention_weights(0 * q, k, visible)


@torch.no_grad()
def look(model, source, target, weights):
    """Return the scores of the French words, and all heads' weights on the English words.

    {"French": of French queries (B, heads, T, S), "English": of English ones (B, heads, S, S)}
    """
    real = torch.ones_like(source, dtype=torch.bool)
    with recording(model, weights) as maps:
        logits, _ = model.decode(shifted(target), model.encode(source, real))
    S = source.shape[1]
    found = {"French": [], "English": []}
    for each in maps:
        rows, columns = each.shape[2:]
        if columns == S:
            found["English" if rows == S else "French"].append(each)
        elif columns > target.shape[1]:  # both are one text
            found["French"].append(each[:, :, S:, :S])
            found["English"].append(each[:, :, :S, :S])
    return logits, {language: torch.cat(each, 1) for language, each in found.items() if each}


def on_words(weights, query, places):
    """Return {role: weights (B, heads) of each text's query (B,) on the word of the role}."""
    rows = torch.arange(len(query))
    weights = weights[rows, :, query]  # (B, heads, S)
    return {role: weights[rows, :, place] for role, place in places.items()}


def measure(model, pairs, numbers):
    """Return the share of right pronouns, and where heads look from the words of RELATIONS.

    ValueError for an English text in which "it" stands for nothing, or may stand for either noun.
    """
    readings = [ambiguity.Reading(english) for english, _ in pairs]
    places = {}
    for role in readings[0].places:
        places[role] = torch.tensor([reading.places[role] for reading in readings])
    source, target, _ = ambiguity.encode(pairs, numbers)
    logits, maps = look(model, source, target, attention_weights)
    _, even = look(model, source, target, evenly)
    is_pronoun = torch.isin(target, torch.tensor([numbers[word] for word in ambiguity.IT]))
    queries = places | {PRONOUN: is_pronoun.int().argmax(1)}
    right = logits.argmax(-1)[is_pronoun] == target[is_pronoun]
    found = {"right": right.float().mean().item()}
    for query, roles in RELATIONS.items():
        language = "French" if query == PRONOUN else "English"
        if language in maps:
            weights = on_words(maps[language], queries[query], places)
            chance = on_words(even[language], queries[query], places)
            found[query] = summary(weights, *roles) | {"evenly": chance[roles[0]].mean().item()}
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
    for role in (wanted, other):
        found[f"{role}, best head"] = weights[role][half:, head].mean().item()
    for role in dict.fromkeys((wanted, other, "it", "adjective")):
        found[role] = weights[role].mean().item()
    return found


# ---- Runs


def run(name, config, seed):
    """Train a model; return its measurements, and its weights in the example."""
    torch.manual_seed(seed)
    train = ambiguity.pronouns(SENTENCES, seed, config.easy)
    test = ambiguity.pronouns(TESTED, seed, tested=True)
    example = config.example, ambiguity.Reading(config.example).french()
    numbers = ambiguity.number_words([*train, *test, example])
    sources, targets, real = ambiguity.encode(train, numbers)
    kind, learning_rate = MODELS[name]
    model = kind(len(numbers) + 1, SHAPE)

    def loss(step):
        rows = torch.randint(len(train), (32,))
        source, target, own = sources[rows], targets[rows], real[rows]
        memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
        logits, _ = model.decode(shifted(target), memory)
        return F.cross_entropy(logits[own], target[own])

    trials.fit(model, loss, config.steps, learning_rate)
    found = measure(model, test, numbers)
    source, target, _ = ambiguity.encode([example], numbers)
    _, maps = look(model, source, target, attention_weights)
    found["maps"] = {language: weights[0].tolist() for language, weights in maps.items()}
    return found


def draw(config, runs):
    """Draw accuracies, and where the best heads of the first runs look in the example."""
    english = [*ambiguity.words_of(config.example), "(end)"]
    french = [*ambiguity.words_of(ambiguity.Reading(config.example).french()), "(end)"]
    figure, panels = trials.make_figure(12, 8, 2, 3)
    first, *others = panels.flat
    right = [[run["right"] for run in found] for found in runs.values()]
    means, errors = trials.mean_and_error(right)
    first.bar([*runs], means, yerr=errors)
    first.axhline(0.5, color="black", linestyle=":")
    first.set_title("pronouns that are right (dotted: a guess)")
    shown = [(name, PRONOUN) for name in runs if name != "none"]
    for panel, (name, query) in zip(others, [*shown, ("transformer", "it")]):
        language, rows = ("English", english) if query == "it" else ("French", french)
        found = runs[name][0]
        head = found[query]["head"]
        maps = found["maps"][language]
        heatmaps.cells(panel, maps[head], rows, english)
        panel.set_title(f"{name}, head {head + 1} of {len(maps)}")
        place = [word in ("it", *ambiguity.IT) for word in rows].index(True)
        panel.get_yticklabels()[place].set(color="C3", weight="bold")
    return figure


def main(config):
    runs = trials.run_seeds(run, MODELS, config)
    tables = {"pronouns that are right; a guess: 0.5": trials.make_table("model", runs)}
    for query in RELATIONS:
        looking = {}
        for name, found in runs.items():
            if query in found[0]:
                looking[name] = [run[query] for run in found]
        title = f"weights from {query}, of the head that most prefers the first word, and of all"
        tables[title] = trials.make_table("model", looking)
    trials.write_result("pronouns", config, tables, draw(config, runs), runs=runs)


if __name__ == "__main__":
    trials.run_script(main, Settings)
