"""One word, two senses: what attention adds to an embedding.

    python -m experiments.senses [--seeds=5]

Claim (Peters et al. 2018, arXiv:1802.05365; Ethayarajh 2019, arXiv:1909.00512): a word has one
embedding, whatever it means. Its states in a network differ with the context, and those of
different senses lie apart.

A GPT learns sentences in which the verb tells which bank it is, and the next word depends on that:
"robbed the bank for the money", "swam to the bank near the water". The probe takes the state of the
word, in sentences that were not trained, for the sense whose mean is nearest, and is asked about a
verb that these means lack: to know the verb is not enough.

Found (5 seeds, 200 steps): from embeddings it guesses, 0.500 ± 0.000; from the first attention on
it is right for 1.000 ± 0.000 of the states. Without training it has 0.483 ± 0.059 at the end, no
more than a guess: attention brings the context, but to sort it by sense is learned.
"""

import random
import statistics

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from experiments.shared import trials
from experiments.shared.ambiguity import new_gpt, number_words, rows_of
from experiments.shared.grammar import BEFORE, NOUNS, table
from experiments.shared.translation import padded
from model import RMSNorm

# A word, verbs that tell one of its senses, and what may follow in that sense. A _ is a space.
SENSES = table("""
    bank swam_to slept_on walked_along left  near_the_water  under_the_trees  beside_the_boats
    bat  fed     woke     chased       saw   inside_its_cave while_it_flew    until_it_slept
    bank robbed  paid     sued         rang  for_the_money   about_the_loan   with_a_cheque
    bat  swung   carved   varnished    broke made_of_wood    against_the_ball before_the_match
""")
WORDS = ["bank", "bat"]
VERBS = 4  # of a sense
TRAINED = "trained"
STAGES = ["embedding", "attention 1", "MLP 1", "attention 2", "MLP 2"]


def examples(number, seed, tested=False):
    """Return texts, each with its word, the number of its sense and that of the sense's verb.

    All senses and verbs are as frequent. Nouns of the test have other verbs.
    """
    rng = random.Random(seed)
    found = []
    while len(found) < number:
        n = len(found)
        word, *rest = SENSES[n % 4]
        verb = n // 4 % VERBS
        noun = rng.randrange(len(NOUNS))
        if ((noun + verb) % 5 == 0) == tested:
            adjective, *_ = rng.choice(BEFORE)
            ending = rng.choice(rest[VERBS:])
            text = f"the {adjective} {NOUNS[noun][0]} {rest[verb]} the {word} {ending}"
            found.append((text, word, n % 4 // 2, verb))
    return found


def encode(examples, numbers):
    """Return ids (B, T) of words, and of the next ones, or -1."""
    texts = [text for text, *_ in examples]
    ids, real = padded(rows_of(texts, numbers))
    targets = ids.masked_fill(~real, -1)
    return ids[:, :-1], targets[:, 1:]


# ---- The probe


def states(model, ids, place):
    """Return the residual stream (B, C) at a place (B,) of ids (B, T), for each of STAGES."""
    found = []

    def note(module, inputs):
        if isinstance(module, RMSNorm):  # it reads the stream
            found.append(inputs[0][torch.arange(len(ids)), place])

    with register_module_forward_pre_hook(note):
        model.hidden(ids)
    return found


def nearest_mean(x, sense, known):
    """Return how often a state is nearest to the mean of its own sense.

    x (B, C): states of a word; sense (B,): 0 or 1. Means are those of the known ones (B,); the
    others are asked.
    """
    means = torch.stack([x[known & (sense == n)].mean(0) for n in (0, 1)])
    distances = torch.cdist(x[~known], means)
    return trials.accuracy(-distances, sense[~known])


def measure(model, examples, numbers):
    """Return {stage: how often senses are told} in sentences that the model was not trained with.

    By verbs that the means lack: the mean of all verbs and words.
    """
    found = {stage: [] for stage in STAGES}
    for word in WORDS:
        own = [example for example in examples if example[1] == word]
        sense, verb = torch.tensor([example[2:] for example in own]).T
        ids, _ = encode(own, numbers)
        place = (ids == numbers[word]).int().argmax(1)
        for stage, x in zip(STAGES, states(model, ids, place)):
            found[stage] += [nearest_mean(x, sense, verb != asked) for asked in range(VERBS)]
    return {stage: statistics.fmean(shares) for stage, shares in found.items()}


# ---- Runs


def run(kind, config, seed):
    """Train a GPT, unless it is to stay as it begins; return its measurements."""
    train = examples(2000, seed)
    test = examples(480, seed, tested=True)
    numbers = number_words([[text] for text, *_ in train + test])
    x, y = encode(train, numbers)
    model = new_gpt(len(numbers) + 1)

    def loss(step):
        rows = torch.randint(len(x), (32,))
        return model(x[rows], y[rows], only_loss=True)[1]

    if kind == TRAINED:
        trials.fit(model, loss, config.steps, 5e-3)
    return measure(model.eval(), test, numbers)


def draw(runs):
    figure, panel = trials.make_figure(6, 3)
    for kind, found in runs.items():
        stages = trials.by_kind(found)
        panel.errorbar(STAGES, *trials.mean_and_error([*stages.values()]), fmt="o-", label=kind)
    panel.set_title("senses told by a verb that the means lack")
    panel.legend()
    return figure


def main(config):
    runs = trials.run_seeds(run, (TRAINED, "as it begins"), config)
    tables = {"senses told; a guess: 0.5": trials.make_table("states of a GPT", runs)}
    trials.write_result("senses", config, tables, draw(runs))


if __name__ == "__main__":
    trials.run_script(main, steps=200)
