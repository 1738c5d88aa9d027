"""What attention was made for: translation that does not pass through one vector.

    python -m experiments.translate [--seeds=3]
    python -m experiments.translate --source=train.en.gz --target=train.fr.gz

The first translates sentences of a grammar from English to French, in minutes on two cores.

Claim (Bahdanau et al. 2014, arXiv:1409.0473, figure 2): a network that reads a sentence into one
vector, and writes the translation from that, fails at long sentences; one that looks back at all
states of the reader does not. Luong et al. 2015 (arXiv:1508.04025): simpler scores do as well.
Vaswani et al. 2017 (arXiv:1706.03762): with attention, no recurrence is needed.

The recurrent networks differ in nothing but what the writer sees of the source: the same vector at
each step, or an average of the reader's states with the weights of one of attention.py's scores.
Unlike Bahdanau's and Luong's, they know positions (sinusoidal), without which they lose their place
in long sentences for much longer, and begin with short sentences.

Found (--seeds=3): BLEU of sentences of 1 to 10 and of 41 to 50 words is 64.9 ± 0.3 and 8.2 ± 0.4
without attention; 99.6 and 96.1 ± 0.6 with additive, 99.7 and 97.8 ± 0.1 with general, 98.3 and
96.3 ± 0.8 with dot scores, 100.0 and 97.7 ± 0.1 for the transformer, which has twice as many steps
(without attention 2.5 times as many). Beam search gains 0.8 at most.

More training, on more sentences, moves the drop to longer ones: without attention each ten words
more have 86.1, 50.9, 24.9, 15.7 and 11.1 by --steps=1040 --sentences=20000 (with general 99.7 to
98.8), and 96.8, 84.3, 54.9, 36.3 and 22.1 by --steps=4160 --sentences=40000 (one seed each; whether
a wider vector moves it is not measured).

Multi30k, English to French, test 2016, 7,000 steps of both (one seed;
benchmarks/translate_multi30k.json has the command): 34.2 without attention, 47.3 with general; 44.2
and 52.4 for 6 to 10 words, 16.1 and 28.8 for 21 to 25. Here beam search gains 2.6 and 2.1. (Lower
case, tokenization 13a, beam 4.)

Summaries (--task=summarize --models=none,general,transformer --seeds=3 --steps=400, 2026-11-25): to
write the one sentence of four that is marked needs hardly any looking, for it is short, and a
reader that knows the mark can forget the others: BLEU 98.1 ± 0.1 from one vector (with 2.5 times
the steps), 99.8 ± 0.0 with general, 97.4 ± 0.8 for the transformer.
"""

import functools
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

sys.path.insert(0, str(Path(__file__).parents[1]))

from attention import Additive, CrossAttention, General, dot, masked_fill, present, sinusoidal
from engine.common.checks import at_least, choose
from engine.plotting import heatmaps
from experiments.shared import grammar, translation, trials
from experiments.shared.translation import bleu, padded, shifted
from model import Block, GPTConfig

HEADS = 4  # of the transformer
SCORES = {
    "none": None,
    "additive": lambda C: Additive(C, C // 4),
    "general": General,
    "dot": lambda C: dot,
}


@dataclass(kw_only=True)
class Settings(trials.Settings):
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
    """Of the grammar's sentences; or summarize: of four in a row, write the one behind a mark."""
    sentences: int = 8000
    """From the grammar, those of the test included."""
    models: str = "none,additive,general,dot,transformer"
    """Recurrent networks with attention by one of the scores, or without; a transformer."""
    steps: int = 600
    """Training steps of each model; twice as many for the transformer."""
    patience: float = 2.5
    """A factor of the steps without attention, which takes longer to learn short sentences too."""
    batch_tokens: int = 1000
    """Pieces of the longer language in each step."""
    n_embd: int = 128
    """Width of all layers."""
    dropout: float = 0.0
    """On embeddings, before the output, and in the transformer's layers."""
    label_smoothing: float = 0.0
    learning_rate: float = 3e-3
    vocab_size: int = 830
    """Pieces of words (bpe:VOCAB) that are learned from both languages."""
    beam: int = 4
    """Translations that beam search keeps at each step."""
    bin: int = 10
    """Lengths of test sentences are told apart in steps of this number of words."""
    example: str = "my young friend that the red dog follows does not like this horse"
    """A sentence whose alignments are drawn."""

    def __post_init__(self):
        super().__post_init__()
        at_least(100, self, "sentences")
        at_least(1, self, "patience", "batch_tokens", "beam", "bin")
        choose("task", self.task, grammar.TASKS)
        for name in self.models.split(","):
            choose("models", name, MODELS)


# ---- Models, with the methods that translation.search calls


class Embedding(nn.Module):
    """Vectors for pieces and their positions, from `start` on, and scores of the next pieces."""

    def __init__(self, vocab_size, config):
        super().__init__()
        C = config.n_embd
        self.weight = nn.Parameter(torch.randn(vocab_size, C) / math.sqrt(C))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, numbers, start=0):
        T = start + numbers.shape[1]
        C = self.weight.shape[1]
        x = F.embedding(numbers, self.weight) * math.sqrt(C)
        positions = sinusoidal(T, C)[start:]
        return self.dropout(x + positions.float())

    def scores(self, y):
        return self.dropout(y) @ self.weight.T


class Recurrent(nn.Module):
    """A GRU reads, in both directions, and another writes. score None: it sees only one vector.

    As in Luong et al., the writer looks after it has read a piece, so that for a known translation
    all its states look at once. Bahdanau's looks before, and reads what it has seen too (Luong's
    input feeding), which takes a loop over pieces.
    """

    def __init__(self, vocab_size, config, score=None):
        super().__init__()
        C = config.n_embd
        self.embed = Embedding(vocab_size, config)
        self.encoder = nn.GRU(C, C // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(C, C, batch_first=True)
        self.begin = nn.Linear(C, C)
        self.combine = nn.Linear(2 * C, C)
        self.attention = masked_fill
        self.score = score and score(C)

    def encode(self, source, real):
        x = self.embed(source)
        lengths = real.sum(1)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        vector = last.transpose(0, 1).flatten(1)
        return states[:, None], vector, real  # (B, 1, S, C), (B, C), (B, S)

    def new_past(self, memory, longest):
        _, vector, _ = memory
        state = self.begin(vector).tanh()
        return state[None], 0

    def select(self, past, rows):
        return past[0][:, rows], past[1]

    def decode(self, target, memory, past=None):
        states, vector, real = memory
        before, start = past or self.new_past(memory, 0)
        x = self.embed(target, start)
        state, _ = self.decoder(x, before)
        if self.score is None:
            seen = vector[:, None].expand_as(state)
        else:
            q = state[:, None]
            y = self.attention(q, states, states, present(real), self.score)
            seen = y[:, 0]
        y = self.combine(torch.cat([state, seen], -1))
        last = state[:, -1:].transpose(0, 1)
        past = last, start + target.shape[1]
        return self.embed.scores(y.tanh()), past


class Whole:
    """Stands in the place of a cache in the reader: each piece sees all of its sentence."""

    def __init__(self, real):
        self.real = real

    def visible(self, predicate):
        return present(self.real)

    def append(self, k, v):
        return k, v


class Transformer(nn.Module):
    """No recurrence (Vaswani et al. 2017): a block of a GPT reads, another writes and looks."""

    def __init__(self, vocab_size, config):
        super().__init__()
        C = config.n_embd
        shape = GPTConfig(n_embd=C, n_head=HEADS, mlp_size=2 * C, dropout=config.dropout)
        self.embed = Embedding(vocab_size, config)
        self.reader = Block(shape, 0)
        self.writer = Block(shape, 0)
        self.look = CrossAttention(C, HEADS, dropout=config.dropout)
        self.ln_memory = nn.LayerNorm(C)
        self.ln_look = nn.LayerNorm(C)
        self.ln = nn.LayerNorm(C)

    def encode(self, source, real):
        x = self.embed(source)
        x = self.reader(x, cache=Whole(real))
        return self.ln_memory(x), real

    def new_past(self, memory, longest):
        return self.writer.attn.new_cache(len(memory[0]), longest)

    def select(self, past, rows):
        return past.select(rows)

    def decode(self, target, memory, past=None):
        states, real = memory
        start = 0 if past is None else len(past)
        x = self.embed(target, start)
        x = self.writer(x, cache=past)
        x = x + self.look(self.ln_look(x), states, present(real))
        return self.embed.scores(self.ln(x)), past


MODELS = {name: functools.partial(Recurrent, score=score) for name, score in SCORES.items()}
MODELS["transformer"] = Transformer


# ---- Runs


def run(name, config, vocabulary, train, test, seed):
    """Train a model; return the BLEU of its translations of the test, in all and by length."""
    torch.manual_seed(seed)
    model = MODELS[name](len(vocabulary), config)
    lengths = [max(map(len, pair)) for pair in train]
    batches = translation.batches(np.array(lengths), config.batch_tokens, seed)
    smoothing = config.label_smoothing

    def loss(step):
        batch = [train[n] for n in next(batches)]
        sources, targets = zip(*batch)
        target, real = padded(targets)
        memory = model.encode(*padded(sources))
        logits, _ = model.decode(shifted(target), memory)
        return F.cross_entropy(logits[real], target[real], label_smoothing=smoothing)

    factor = {"none": config.patience, "transformer": 2}.get(name, 1)
    steps = round(config.steps * factor)
    trials.fit(model, loss, steps, config.learning_rate)
    sources, right = zip(*test)
    greedy = translation.translate(model, vocabulary, sources, 1)
    best = translation.translate(model, vocabulary, sources, config.beam)
    found = {"greedy": bleu(greedy, right)}
    found[f"beam {config.beam}"] = bleu(best, right)
    for length, rows in translation.by_length(sources, config.bin).items():
        title = f"{length - config.bin + 1}-{length} words"
        best_of_length = [best[n] for n in rows]
        right_of_length = [right[n] for n in rows]
        found[title] = bleu(best_of_length, right_of_length)
    found["alignment"] = translation.alignment(model, vocabulary, config.example, config.beam)
    return found


def draw(runs):
    """Draw BLEU by length, and where the first run of each model that has attention looks."""
    with_attention = [name for name in runs if name != "none"]
    columns = 1 + len(with_attention)
    width = 5 + 3 * columns
    figure, panels = trials.make_figure(width, 4, 1, columns, squeeze=False)
    first, *others = panels[0]
    for name, found in runs.items():
        titles = [title for title in found[0] if title.endswith(" words")]
        values = [[run[title] for run in found] for title in titles]
        means, errors = trials.mean_and_error(values)
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
    train, test = translation.load_pairs(config)
    texts = [text for pair in train for text in pair]
    vocabulary = translation.Vocabulary(texts, config.vocab_size)
    numbers = [[vocabulary.encode(text) for text in pair] for pair in train]
    names = config.models.split(",")
    runs = trials.run_seeds(run, names, config, vocabulary, numbers, test)

    title = f"BLEU of {len(test):,} sentences, and by their length, with beam {config.beam}"
    tables = {title: trials.make_table("attention", runs, digits=1)}
    trials.write_result("translate", config, tables, draw(runs), runs=runs)


if __name__ == "__main__":
    trials.run_script(main, Settings)
