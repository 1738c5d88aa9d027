"""One word, two senses: what attention adds to an embedding.

    python -m experiments.senses [--seeds=3]

Claim (Peters et al. 2018, arXiv:1802.05365; Ethayarajh 2019, arXiv:1909.00512): a word has one
embedding, whatever it means. Its states in a network differ with the context, and those of
different senses lie apart.

A GPT learns sentences in which the verb tells which bank it is, and the next word depends on that:
"robbed the bank for the money", "swam to the bank near the water". The probe takes the state of the
word, in sentences that were not trained, for the sense whose mean is nearest. As long as nobody has
looked at the verb, all states are the same, and it can but guess: 0.5. Afterwards they hold which
verb it was, in a model without training too. So the probe is also asked about a verb that its means
lack: that needs states that hold the sense.

Found (3 seeds, 200 steps): 0.500 for embeddings, and 1.000 ± 0.000 from the first attention on, for
both words, with a verb that the means lack too. There states of different senses of "bank" are
0.706 ± 0.063 apart, those of one sense 0.135 ± 0.013; at the end 5.053 ± 0.290 and 0.455 ± 0.051.
Without training, known verbs have 0.79 to 0.85, an unseen one 0.33 to 0.55, a guess: attention
brings the context, but to sort it by sense is learned.
"""

import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.shared import trials
from experiments.shared.ambiguity import new_gpt, number_words
from experiments.shared.grammar import BEFORE, NOUNS, table
from experiments.shared.translation import END, padded

# A word, verbs that tell one of its senses, and what may follow in that sense. A _ is a space.
SENSES = table("""
    bank swam_to slept_on walked_along left  near_the_water  under_the_trees  beside_the_boats
    bat  fed     woke     chased       saw   inside_its_cave while_it_flew    until_it_slept
    bank robbed  paid     sued         rang  for_the_money   about_the_loan   with_a_cheque
    bat  swung   carved   varnished    broke made_of_wood    against_the_ball before_the_match
""")
WORDS = ["bank", "bat"]
VERBS = 4  # of a sense
TRAINED, UNTRAINED = "trained", "as it begins"
STAGES = ["embedding", "attention 1", "MLP 1", "attention 2", "MLP 2"]
KNOWN, UNSEEN = "accuracy, known verbs", "accuracy, unseen verb"


@dataclass(kw_only=True)
class Settings(trials.Settings):
    steps: int = 200


class Example(NamedTuple):
    text: str
    word: str
    sense: int  # 0 or 1
    verb: int  # among those of the sense


def examples(number, seed, tested=False):
    """Return Examples; all senses and verbs are as frequent. Nouns of the test have other verbs."""
    rng = random.Random(seed)
    found = []
    while len(found) < number:
        n = len(found)
        word, *rest = SENSES[n % 4]
        verb = n // 4 % VERBS
        noun = rng.randrange(len(NOUNS))
        if ((noun + verb) % 5 == 0) == tested:
            adjective = rng.choice(BEFORE)[0]
            ending = rng.choice(rest[VERBS:])
            text = f"the {adjective} {NOUNS[noun][0]} {rest[verb]} the {word} {ending}"
            found.append(Example(text, word, n % 4 // 2, verb))
    return found


def encode(examples, numbers):
    """Return ids (B, T) of words, and of the next ones, or -1."""
    texts = [[*(numbers[word] for word in example.text.split()), END] for example in examples]
    ids, real = padded(texts)
    targets = ids.masked_fill(~real, -1)
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


def nearest_mean(x, sense, known):
    """Return how often a state is nearest to the mean of its own sense.

    x (B, C): states of a word; sense (B,): 0 or 1. Means are those of the known ones (B,); the
    others are asked.
    """
    means = torch.stack([x[known & (sense == n)].mean(0) for n in (0, 1)])
    nearest = torch.cdist(x[~known], means).argmin(1)
    return (nearest == sense[~known]).double().mean().item()


def distances(x, sense):
    """Return the mean distances of pairs of states of the same sense, and of different senses."""
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    same = sense[:, None] == sense
    other = ~same
    same.fill_diagonal_(False)  # a state and itself are no pair
    return apart[same].mean().item(), apart[other].mean().item()


def measure(model, examples, numbers):
    """Return {word: a dict for each of STAGES} of sentences that the model was not trained with."""
    found = {}
    for word in WORDS:
        own = [example for example in examples if example.word == word]
        sense = torch.tensor([example.sense for example in own])
        verb = torch.tensor([example.verb for example in own])
        first_half = torch.arange(len(own)) < len(own) // 2
        ids, _ = encode(own, numbers)
        place = (ids == numbers[word]).int().argmax(1)
        found[word] = []
        for x in states(model, ids, place):
            unseen = [nearest_mean(x, sense, verb != asked) for asked in range(VERBS)]
            within, between = distances(x, sense)
            row = {KNOWN: nearest_mean(x, sense, first_half), UNSEEN: statistics.fmean(unseen)}
            row |= {"distance within a sense": within, "between": between}
            found[word].append(row | {"points": principal(x).tolist()})
        found[word][0]["senses"] = sense.tolist()
    return found


def principal(x):
    """Return states (B, C) in the two directions in which they differ most, (B, 2)."""
    x = x - x.mean(0)
    return x @ torch.linalg.svd(x, full_matrices=False).Vh[:2].T


# ---- Runs


def run(kind, config, seed):
    """Train a GPT, unless it is to stay as it begins; return its measurements."""
    torch.manual_seed(seed)
    train = examples(2000, seed)
    test = examples(480, seed, tested=True)
    numbers = number_words([[example.text] for example in train + test])
    x, y = encode(train, numbers)
    model = new_gpt(len(numbers) + 1)

    def loss(step):
        rows = torch.randint(len(x), (32,))
        return model(x[rows], y[rows], only_loss=True)[1]

    if kind == TRAINED:
        trials.fit(model, loss, config.steps, 5e-3)
    return measure(model.eval(), test, numbers)


def draw(runs):
    """Draw accuracies by stage, and the states of the first word in the first trained model."""
    word = WORDS[0]
    states = runs[TRAINED][0][word]
    figure, panels = trials.make_figure(13, 3.6, 1, 4, width_ratios=[1.4, 1, 1, 1])
    first, *others = panels
    for kind, color in ((TRAINED, "C0"), (UNTRAINED, "C1")):
        for title, line in ((KNOWN, "o:"), (UNSEEN, "o-")):
            values = [[stage[title] for stage in run[word]] for run in runs[kind]]
            means, errors = trials.mean_and_error(np.transpose(values))
            label = f"{title}, {kind}"
            first.errorbar(STAGES, means, errors, fmt=line, color=color, label=label)
    first.axhline(0.5, color="grey", linewidth=0.8)
    first.set_title(f"senses of {word} told apart (grey: a guess)")
    first.tick_params("x", rotation=30)
    first.set_ylim(0, 1.03)
    first.legend()

    most = 1.1 * max(np.abs(stage["points"]).max() for stage in states)
    for panel, stage in zip(others, ("embedding", "attention 1", "MLP 2")):
        points = np.array(states[STAGES.index(stage)]["points"])
        for sense, (_, verb, *_) in enumerate(SENSES[::2]):
            x, y = points[np.array(states[0]["senses"]) == sense].T
            panel.plot(x, y, ".", color=f"C{2 + sense}", label=f"{verb}, ...")
        panel.set_title(f"{word}, {stage}")
        panel.set(xticks=(), yticks=(), xlim=(-most, most), ylim=(-most, most))
    others[0].legend()
    return figure


def main(config):
    runs = trials.run_seeds(run, (TRAINED, UNTRAINED), config)
    tables = {}
    for kind, found in runs.items():
        for word in WORDS:
            stages = {stage: [run[word][n] for run in found] for n, stage in enumerate(STAGES)}
            title = f"{word}, {kind} (a guess of the sense: 0.5)"
            tables[title] = trials.make_table("after", stages)
    trials.write_result("senses", config, tables, draw(runs))


if __name__ == "__main__":
    trials.run_script(main, Settings)
