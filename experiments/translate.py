"""What attention was made for: translation that does not pass through one vector.

    python -m experiments.translate [--seeds=5]          sentences of a grammar, English to French
    python -m experiments.translate --source=train.en.gz --target=train.fr.gz

Claim (Bahdanau et al. 2014, arXiv:1409.0473, figure 2): a network that reads a sentence into one
vector, and writes the translation from that, fails at long sentences; one that looks back at all
states of the reader does not. Luong et al. 2015 (arXiv:1508.04025): simpler scores do as well, and
it may look after each step. Vaswani et al. 2017 (arXiv:1706.03762): with attention, no recurrence
is needed.

none, additive, general and dot differ in what the writer sees of the source alone: the same vector
at each step, or an average of the reader's states by one of attention.py's scores, looked at after
the step. bahdanau looks before it, and reads what it sees; so does loop, as lectures write it, with
queries, keys and values of their own, from a state of zeros. Unlike in the papers, all know
positions (sinusoidal) and begin with short sentences. transformer has one block on each side;
transformer2017 is the paper's, with --n_layer blocks, label smoothing, and a rate that falls as
1/sqrt(step).

Found (5 seeds): BLEU of sentences of 1 to 10 and of 41 to 50 words is 71.0 ± 1.5 and 10.5 ± 0.2
without attention; 99.8 ± 0.1 and 95.5 ± 0.7 with additive, 99.3 ± 0.3 and 95.9 ± 0.2 with general,
98.6 ± 0.7 and 94.3 ± 0.7 with dot scores, 99.2 ± 0.2 and 97.1 ± 0.2 for bahdanau, 91.6 ± 0.7 and
93.7 ± 0.4 for loop, 99.9 ± 0.0 and 94.0 ± 0.3 for transformer, which has twice as many steps (none
2.5 times as many). In the time of transformer, transformer2017 stays behind: 96.7 ± 1.8 and 81.1 ±
2.1. More training, on more sentences, and a wider vector move the drop (--steps=4160
--sentences=40000, --n_embd=512).

Multi30k, test 2016, five seeds (benchmarks/translate_multi30k_seeds.json): 28.4 ± 0.1 without, 44.3
± 0.1 with general; one of 7,000 steps has 34.2 and 47.3 (benchmarks/translate_multi30k.json). The
transformers in equal time, three seeds, rates tuned there on another: transformer 42.4 ± 0.2 at
3e-3, transformer2017 36.4 ± 0.6 at 2e-3 (benchmarks/translate_multi30k_transformer*.json).
--task=into_english by loop, five seeds (benchmarks/translate_into_english.json): 97.5 ± 0.3, and of
41 to 50 words 96.6 ± 0.7. Of "ne ... pas", "does" looks at "ne" with 0.86 to 0.98, and "sat" at
"s'est"; the first word, whose query is of zeros, looks at all alike. --task=summarize: to write the
sentence of four that is marked needs hardly any looking. --task=docstrings, to summarise real text,
is not learned from two thousand docstrings: 5.0 ± 0.3 by transformer, 3.2 ± 0.2 by additive, 3.2 ±
0.1 without attention, sentences like the library's, but not of this body (five seeds,
benchmarks/translate_docstrings.json).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch.nn.functional as F

from engine.errors import UserError, at_least, choose
from experiments.shared import grammar, labelled, translation, translators, trials
from experiments.shared.translation import bleu, padded, shifted
from experiments.shared.translators import MODELS, Shape
from tools.shared import heatmaps

MOST_TESTED = 500
TASKS = {
    "translate": grammar.pairs,
    "into_english": grammar.into_english,
    "summarize": grammar.summaries,
    "docstrings": labelled.first_sentences,
}
FACTORS = {"transformer": 2, "transformer2017": 0.86}  # of the steps: both take the same time


@dataclass
class Settings(trials.Settings, Shape):
    seeds: int = 1
    source: str = ""
    """Sentences, one a line (also .gz); empty: those of experiments/shared/grammar.py, English."""
    target: str = ""
    """Their translations; empty: French."""
    test_source: str = ""
    """Sentences of the test; empty: a tenth of the others, at most 500, not used in training."""
    test_target: str = ""
    """Their translations."""
    task: str = "translate"
    """Of the grammar's sentences; into_english, from French; summarize: of four in a row, write the
    one behind a mark; docstrings: of Python's library, write the first sentence after the rest."""
    sentences: int = 8000
    """From the grammar, those of the test included."""
    models: str = ",".join(MODELS)
    """Recurrent networks without attention, with Luong's by one of the scores, with Bahdanau's;
    transformers."""
    steps: int = 600
    """Training steps of each model; twice as many for the transformer."""
    patience: float = 2.5
    """A factor of the steps without attention, which takes longer to learn short sentences too."""
    batch_tokens: int = 1000
    """Pieces of the longer language in each step."""
    label_smoothing: float = 0.0
    """0.1 for transformer2017."""
    learning_rate: float = 3e-3
    """The highest of each model's training."""
    vocab_size: int = 830
    """Pieces of words (bpe:VOCAB) that are learned from both languages."""
    beam: int = 4
    """Translations that beam search keeps at each step."""
    bin: int = 10
    """Lengths of test sentences are told apart in steps of this number of words."""
    save: str = ""
    """A new folder for the best of all that were trained, for tools.translate; empty: none."""
    example: str = "my young friend that the red dog follows does not like this horse"
    """A sentence whose alignments are drawn."""

    def __post_init__(self):
        trials.Settings.__post_init__(self)
        Shape.__post_init__(self)
        at_least(100, self, "sentences")
        at_least(1, self, "patience", "batch_tokens", "beam", "bin")
        choose("task", self.task, TASKS)
        for name in self.models.split(","):
            choose("models", name, MODELS)
        if self.save and Path(self.save).exists():
            raise UserError(f"save={self.save} is there already: choose another folder")


# ---- Runs


def load_pairs(config):
    """Return pairs for training and for the test, from the files of the settings or the grammar."""
    if config.source or config.target:
        pairs = translation.read_pairs(config.source, config.target)
    else:
        pairs = TASKS[config.task](config.sentences, 0)
    if config.test_source or config.test_target:
        return pairs, translation.read_pairs(config.test_source, config.test_target)
    tested = min(len(pairs) // 10, MOST_TESTED)
    known = {source for source, _ in pairs[tested:]}
    test = [(source, target) for source, target in pairs[:tested] if source not in known]
    if not test:
        raise UserError(f"{config.source} has too few sentences to set a tenth aside for the test")
    return pairs[tested:], test


def train_model(model, name, config, pairs, seed):
    """Train by the recipe of the kind of model; return the seconds. pairs: of numbers."""
    lengths = [max(map(len, pair)) for pair in pairs]
    batches = translation.batches(np.array(lengths), config.batch_tokens, seed)
    factors = FACTORS | {"none": config.patience}
    steps = round(config.steps * factors.get(name, 1))
    smoothing = config.label_smoothing
    schedule = None
    if name == "transformer2017":
        smoothing = 0.1
        schedule = trials.inverse_sqrt

    def loss(step):
        batch = [pairs[n] for n in next(batches)]
        sources, targets = zip(*batch)
        target, real = padded(targets)
        memory = model.encode(*padded(sources))
        logits, _ = model.decode(shifted(target), memory)
        return F.cross_entropy(logits[real], target[real], label_smoothing=smoothing)

    return trials.fit(model, loss, steps, config.learning_rate, schedule=schedule)


def run(name, config, vocabulary, train, test, seed):
    """Train a model; return the BLEU of its translations of the test, in all and by length."""
    model = MODELS[name](len(vocabulary), config)
    seconds = train_model(model, name, config, train, seed)
    sources, right = zip(*test)
    greedy = translation.translate(model, vocabulary, sources, 1)
    best = translation.translate(model, vocabulary, sources, config.beam)
    found = {"seconds": seconds, "greedy": bleu(greedy, right)}
    found[f"beam {config.beam}"] = bleu(best, right)
    for length, rows in translation.by_length(sources, config.bin).items():
        title = f"{length - config.bin + 1}-{length} words"
        found[title] = bleu([best[n] for n in rows], [right[n] for n in rows])
    found["alignment"] = translation.alignment(model, vocabulary, config.example, config.beam)
    if config.save:
        found["weights"] = {name: p.detach().numpy() for name, p in model.named_parameters()}
    return found


def draw(runs):
    """Draw BLEU by length, and where the first run of each model that has attention looks."""
    with_attention = [name for name in runs if name != "none"]
    columns = 1 + len(with_attention)
    width = 5 + 3 * columns
    figure, panels = trials.make_figure(width, 4, 1, columns, squeeze=False)
    first, *others = panels[0]
    for name, found in runs.items():
        scores = trials.by_kind(found)
        titles = [title for title in scores if title.endswith(" words")]
        means, errors = trials.mean_and_error([scores[title] for title in titles])
        first.errorbar(titles, means, errors, fmt="o-", label=name)
    first.tick_params("x", rotation=30)
    first.set_ylabel("BLEU")
    first.set_ylim(0)
    first.legend()
    for panel, name in zip(others, with_attention):
        source, target, weights = runs[name][0]["alignment"]
        heatmaps.cells(panel, weights, target, source)
        panel.set_title(name)
        panel.set_aspect("auto")
    return figure


def main(config):
    bleu(["a"], ["a"])  # before anything is trained
    train, test = load_pairs(config)
    texts = [text for pair in train for text in pair]
    vocabulary = translation.learn_vocabulary(texts, config.vocab_size)
    numbers = [[vocabulary.encode(text) for text in pair] for pair in train]
    names = config.models.split(",")
    runs = trials.run_seeds(run, names, config, vocabulary, numbers, test)
    if config.save:
        translators.save_best(runs, config, vocabulary)

    title = f"BLEU of {len(test):,} sentences, and by their length, with beam {config.beam}"
    tables = {title: trials.make_table("attention", runs, digits=1)}
    trials.write_result("translate", config, tables, draw(runs), runs=runs)


if __name__ == "__main__":
    trials.run_script(main, Settings)
