"""One word, two senses: attention gives the same embedding two meanings.

python -m experiments.senses [--seeds=3]
"""

import random
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.shared import trials
from experiments.shared.ambiguity import new_gpt, number_words, words_of
from experiments.shared.grammar import BEFORE, NOUNS, table
from experiments.shared.translation import END, padded

# A word, its translation in one sense, and verbs that tell this sense. A _ stands for a space.
SENSES = table("""
    bank rive          swam_to nagé_vers  slept_on dormi_sur  walked_along longé  left quitté
    bat  chauve-souris fed nourri         woke réveillé       chased chassé       saw vu
    bank banque        robbed cambriolé   paid payé           sued poursuivi      phoned contacté
    bat  batte         swung balancé      carved taillé       varnished verni     snapped cassé
""")
WORDS = ["bank", "bat"]
TRAINED, UNTRAINED = "trained", "as it begins"
STAGES = ["embedding", "attention 1", "MLP 1", "attention 2", "MLP 2"]
ACCURACY = "accuracy"


class Example(NamedTuple):
    english: str
    french: str
    word: str
    sense: int  # 0 or 1
    verb: int  # 0 to 3, among those that tell the sense


def examples(number, seed, tested=False):
    """Return Examples; all senses and verbs are as frequent. A fifth of nouns is for the test."""
    rng = random.Random(seed)
    nouns = [noun for n, noun in enumerate(NOUNS) if (n % 5 == 0) == tested]
    found = []
    for n in range(number):
        word, translation, *verbs = SENSES[n % 4]
        sense = n % 4 // 2
        verb = n // 4 % 4
        did, fait = verbs[2 * verb : 2 * verb + 2]
        noun = rng.choice(nouns)
        adjective = rng.choice(BEFORE)
        female = noun[4] == "f"
        english = f"the {adjective[0]} {noun[0]} {did} the {word}"
        le = ["le", "la"][female]
        french = f"{le} {adjective[1 + female]} {noun[2]} a {fait} la {translation}"
        found.append(Example(english, french, word, sense, verb))
    return found


def encode(examples, numbers):
    """Return both languages as one text: ids (B, T), and the French words to predict, or -1."""
    texts, starts = [], []
    for example in examples:
        english = [numbers[word] for word in words_of(example.english)]
        french = [numbers[word] for word in words_of(example.french)]
        texts.append([*english, END, *french, END])
        starts.append([len(english)])
    ids, real = padded(texts)
    is_french = real & (torch.arange(ids.shape[1]) > torch.tensor(starts))
    targets = ids.masked_fill(~is_french, -1)
    return ids[:, :-1], targets[:, 1:]


# ---- The probe


@torch.no_grad()
def states(model, ids, place):
    """Return the residual stream (B, C) at a place (B,) of ids (B, T), for each of STAGES."""
    norms = []
    for block in model.transformer.h:
        norms += [block.ln_1, block.ln_2]
    norms.append(model.transformer.ln_f)
    found = []
    handles = []
    for norm in norms:
        hook = norm.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        handles.append(hook)
    model.hidden(ids)
    for handle in handles:
        handle.remove()
    return [x[torch.arange(len(ids)), place] for x in found]


def probe(x, sense, known):
    """Return how often the nearest mean is that of the right sense, and distances.

    x (B, C): states of a word; sense (B,): 0 or 1. Means are those of the known ones (B,), and the
    others are told apart. Distances are means over pairs.
    """
    centres = torch.stack([x[known & (sense == n)].mean(0) for n in (0, 1)])
    nearest = torch.cdist(x[~known], centres).argmin(1)
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    same = sense[:, None] == sense
    other = ~same
    same.fill_diagonal_(False)  # a state and itself are no pair
    return {
        ACCURACY: (nearest == sense[~known]).double().mean().item(),
        "distance within a sense": apart[same].mean().item(),
        "between": apart[other].mean().item(),
    }


def measure(model, examples, numbers):
    """Return {word: a dict for each of STAGES} of sentences that the model was not trained with."""
    found = {}
    for word in WORDS:
        own = [example for example in examples if example.word == word]
        sense = torch.tensor([example.sense for example in own])
        verb = torch.tensor([example.verb for example in own])
        ids, _ = encode(own, numbers)
        place = (ids == numbers[word]).int().argmax(1)
        found[word] = []
        for x in states(model, ids, place):
            probes = [probe(x, sense, verb != unknown) for unknown in range(4)]
            means = {title: statistics.fmean(p[title] for p in probes) for title in probes[0]}
            found[word].append(means | {"points": principal(x).tolist()})
        found[word][0]["senses"] = sense.tolist()
    return found


def principal(x):
    """Return states (B, C) in the two directions in which they differ most, (B, 2)."""
    x = x - x.mean(0)
    return x @ torch.linalg.svd(x, full_matrices=False).Vh[:2].T


# ---- Runs


def run(kind, config, seed):
    """Train a GPT to translate, unless it is to stay as it begins; return its measurements."""
    torch.manual_seed(seed)
    train = examples(2000, seed)
    test = examples(480, seed, tested=True)
    numbers = number_words([example[:2] for example in train + test])
    x, y = encode(train, numbers)
    model = new_gpt(len(numbers) + 1)

    def loss(step):
        rows = torch.randint(len(x), (32,))
        return model(x[rows], y[rows], only_loss=True)[1]

    if kind == TRAINED:
        trials.fit(model, loss, config.steps, 5e-3)
    x, y = encode(test, numbers)
    with torch.no_grad():
        logits, _ = model(x, y)
    right = (logits.argmax(-1) == y)[y >= 0]
    return {"right": right.float().mean().item()} | measure(model, test, numbers)


def draw(runs):
    """Draw accuracies by stage, and the states of the first word in the first trained model."""
    shown = "embedding", "attention 1", "MLP 2"
    figure, panels = trials.make_figure(13, 3.6, 1, 1 + len(shown), width_ratios=[1.4, 1, 1, 1])
    first, *others = panels
    for kind, line in ((TRAINED, "o-"), (UNTRAINED, "o:")):
        for n, word in enumerate(WORDS):
            values = [[stage[ACCURACY] for stage in run[word]] for run in runs[kind]]
            means, errors = trials.mean_and_error(np.transpose(values))
            first.errorbar(STAGES, means, errors, fmt=line, color=f"C{n}", label=f"{word}, {kind}")
    first.axhline(0.5, color="grey", linewidth=0.8)
    first.set_title("sense told by the nearest mean (grey: a guess)")
    first.tick_params("x", rotation=30)
    first.set_ylim(0, 1.03)
    first.legend()

    word = WORDS[0]
    found = runs[TRAINED][0][word]
    most = max(np.abs(stage["points"]).max() for stage in found)
    for panel, stage in zip(others, shown):
        points = found[STAGES.index(stage)]["points"]
        for sense, (_, translation, *_) in enumerate(SENSES[::2]):
            own = [point for point, label in zip(points, found[0]["senses"]) if label == sense]
            panel.plot(*zip(*own), ".", color=f"C{2 + sense}", label=translation)
        panel.set_title(f"{word}, {stage}")
        panel.set(xticks=(), yticks=(), xlim=(-most, most), ylim=(-most, most))
    others[0].legend()
    return figure


def main(config):
    runs = trials.run_seeds(run, (TRAINED, UNTRAINED), config)
    tables = {}
    for kind, found in runs.items():
        right = trials.plus_minus([run["right"] for run in found])
        for word in WORDS:
            stages = {stage: [run[word][n] for run in found] for n, stage in enumerate(STAGES)}
            title = f"{word}, {kind} ({right} of French words right; a guess of the sense: 0.5)"
            tables[title] = trials.make_table("after", stages)
    trials.write_result("senses", config, tables, draw(runs))


if __name__ == "__main__":
    trials.run_script(main)
