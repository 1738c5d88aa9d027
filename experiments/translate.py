"""What attention was made for: translation that does not pass through one vector.

    python -m experiments.translate                             English and French of a grammar; minutes on two cores
    python -m experiments.translate --source=train.en.gz --target=train.fr.gz --test_source=test.en --test_target=test.fr

Claim (Bahdanau et al. 2014, arXiv:1409.0473, figure 2): a network that reads a sentence into one vector, and writes the
translation from that, fails at long sentences; one that looks back at all states of the reader does not. Luong et al. 2015
(arXiv:1508.04025): simpler scores do as well. Vaswani et al. 2017 (arXiv:1706.03762): with attention, no recurrence is needed.

The recurrent networks differ in nothing but what the writer sees of the source: the same vector at each step, or an average
of the reader's states with the weights of one of attention.py's scores. Unlike Bahdanau's and Luong's, they know positions
(sinusoidal), without which they lose their place in long sentences for much longer, and begin with short sentences.

Found (--seeds=3): BLEU of sentences of 1 to 10 and of 41 to 50 words is 64.9 ± 0.3 and 8.2 ± 0.4 without attention; 99.6 and
96.1 ± 0.6 with additive, 99.7 and 97.8 ± 0.1 with general, 98.3 and 96.3 ± 0.8 with dot scores, 100.0 and 97.7 ± 0.1 for the
transformer, which has twice as many steps (without attention 2.5 times as many). Beam search gains 0.8 at most.

More training, on more sentences, moves the drop to longer ones: without attention each ten words more have 86.1, 50.9, 24.9,
15.7 and 11.1 by --steps=1040 --sentences=20000 (with general 99.7 to 98.8), and 96.8, 84.3, 54.9, 36.3 and 22.1 by --steps=4160
--sentences=40000 (one seed each; whether a wider vector moves it is not measured).

Multi30k, English to French, test 2016, 7,000 steps of both (one seed; benchmarks/translate_multi30k.json has the command): 34.2
without attention, 47.3 with general; 44.2 and 52.4 for 6 to 10 words, 16.1 and 28.8 for 21 to 25. Here beam search gains 2.6
and 2.1. (Lower case, tokenization 13a, beam 4.)
"""

import functools
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attention import (
    ATTENTION,
    Additive,
    CrossAttention,
    General,
    attention_weights,
    dot,
    present,
    sinusoidal,
)
from engine.common.checks import at_least, check_heads, choose
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from engine.plotting import heatmaps
from experiments.shared import translation, trials
from experiments.shared.translation import (
    END,
    Vocabulary,
    alignment,
    batches,
    bleu,
    by_length,
    padded,
    sentences,
    translated,
)
from model import Block, GPTConfig

HEADS = 4  # of the transformer


@dataclass(kw_only=True)
class Settings(translation.Settings):
    seeds: int = 1
    models: str = "none,additive,general,dot,transformer"
    """What is trained: a recurrent network with attention of one kind, or none; a transformer."""
    steps: int = 600
    """Of training, for each model; twice as many for the transformer."""
    patience: float = 2.5
    """Times the steps without attention, with which short sentences take longer to learn too."""
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
    """Translations that are pursued at the same time."""
    bin: int = 10
    """Words by which the lengths of test sentences are told apart."""
    example: str = "my young friend that the red dog follows does not like this horse"
    """A sentence whose alignments are drawn."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps", "patience", "batch_tokens", "beam", "bin")
        at_least(0, self, "learning_rate")
        at_least(0, self, "dropout", "label_smoothing", most=0.99)
        at_least(257, self, "vocab_size")
        check_heads(self.n_embd, HEADS)
        for name in self.models.split(","):
            choose("models", name, MODELS)


# ---- Models: encode(source, real) -> memory · decode(target, memory, past) -> logits of what follows each piece, and the past


class Embedding(nn.Module):
    """Vectors for pieces and where they stand, which also score the pieces that may follow. The first stands at `start`."""

    def __init__(self, vocab_size, config):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(vocab_size, config.n_embd) / math.sqrt(config.n_embd)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, numbers, start=0):
        T, C = start + numbers.shape[1], self.weight.shape[1]
        return self.dropout(
            F.embedding(numbers, self.weight) * math.sqrt(C) + sinusoidal(T, C)[start:].float()
        )

    def scores(self, y):
        return self.dropout(y) @ self.weight.T


class Recurrent(nn.Module):
    """A GRU reads, in both directions, and another writes. score None: it knows of the source what one vector holds.

    As in Luong et al., the writer looks after it has read a piece, so that for a known translation all its states look at
    once. Bahdanau's looks before, and reads what it has seen too (Luong's input feeding), which takes a loop over pieces.
    """

    def __init__(self, vocab_size, config, score=None):
        super().__init__()
        C = config.n_embd
        self.patience = config.patience if score is None else 1  # times the steps
        self.embed = Embedding(vocab_size, config)
        self.encoder, self.decoder = (
            nn.GRU(C, C // 2, batch_first=True, bidirectional=True),
            nn.GRU(C, C, batch_first=True),
        )
        self.begin, self.combine = nn.Linear(C, C), nn.Linear(2 * C, C)
        self.attention, self.score = ATTENTION["masked_fill"], score and score(C)

    def encode(self, source, real):
        packed = pack_padded_sequence(
            self.embed(source), real.sum(1), batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        return (
            pad_packed_sequence(states, batch_first=True)[0][:, None],
            last.transpose(0, 1).flatten(1),
            real,
        )  # (B, 1, S, C)

    def new_past(self, memory, longest):
        return torch.tanh(self.begin(memory[1]))[None], 0

    def select(self, past, rows):
        return past[0][:, rows], past[1]

    def decode(self, target, memory, past=None):
        states, vector, real = memory
        before, start = past or self.new_past(memory, 0)
        state, _ = self.decoder(self.embed(target, start), before)
        if self.score is None:
            seen = vector[:, None].expand_as(state)
        else:
            seen = self.attention(state[:, None], states, states, present(real), self.score)[:, 0]
        y = torch.tanh(self.combine(torch.cat([state, seen], -1)))
        return self.embed.scores(y), (state[:, -1:].transpose(0, 1), start + target.shape[1])


class Whole:
    """What an encoder's block asks in the place of a cache: each piece sees all of its sentence."""

    def __init__(self, real):
        self.real = real

    def visible(self, predicate):
        return present(self.real)

    def append(self, k, v):
        return k, v


class Transformer(nn.Module):
    """No recurrence (Vaswani et al. 2017): one block of a GPT reads, another writes, and looks at what the first has read."""

    patience = 2  # times the steps

    def __init__(self, vocab_size, config):
        super().__init__()
        shape = GPTConfig(
            n_embd=config.n_embd, n_head=HEADS, mlp_size=2 * config.n_embd, dropout=config.dropout
        )
        self.embed = Embedding(vocab_size, config)
        self.reader, self.writer = Block(shape, 0), Block(shape, 0)
        self.look = CrossAttention(config.n_embd, HEADS, dropout=config.dropout)
        self.ln_memory, self.ln_look, self.ln = (nn.LayerNorm(config.n_embd) for _ in range(3))

    def encode(self, source, real):
        return self.ln_memory(self.reader(self.embed(source), cache=Whole(real))), real

    def new_past(self, memory, longest):
        return self.writer.attn.new_cache(len(memory[0]), longest)

    def select(self, past, rows):
        return past.select(rows)

    def decode(self, target, memory, past=None):
        x = self.writer(self.embed(target, 0 if past is None else len(past)), cache=past)
        x = x + self.look(self.ln_look(x), memory[0], present(memory[1]))
        return self.embed.scores(self.ln(x)), past


SCORES = {
    "none": None,
    "additive": lambda C: Additive(C, C // 4),
    "general": General,
    "dot": lambda C: dot,
}
MODELS = {name: functools.partial(Recurrent, score=score) for name, score in SCORES.items()} | {
    "transformer": Transformer
}
COLOR = dict(zip(MODELS, ("C3", "C0", "C9", "C2", "C4")))


# ---- Training and testing


def trained(config, name, vocabulary, train, test, seed):
    """BLEU of a model for all sentences of the test, greedily and by beam search, and for those of each length."""
    torch.manual_seed(seed)
    model = MODELS[name](len(vocabulary), config)
    endless = batches(np.array([max(map(len, pair)) for pair in train]), config.batch_tokens, seed)

    def loss(step):
        rows = next(endless)
        (source, real), (target, known) = (
            padded([train[n][side] for n in rows]) for side in (0, 1)
        )
        logits, _ = model.decode(F.pad(target, (1, -1), value=END), model.encode(source, real))
        return F.cross_entropy(logits[known], target[known], label_smoothing=config.label_smoothing)

    trials.fit(model, loss, round(config.steps * model.patience), config.learning_rate)
    sources, right = zip(*test)
    greedy, found = (translated(model, vocabulary, sources, beam) for beam in (1, config.beam))
    return {
        "greedy": bleu(greedy, right),
        "beam": bleu(found, right),
        "alignment": alignment(model, vocabulary, config.example, config.beam, attention_weights),
        "lengths": {
            length: bleu([found[n] for n in rows], [right[n] for n in rows])
            for length, rows in by_length(sources, config.bin).items()
        },
    }


def draw(config, runs):
    """BLEU by length, and where the first run of each model that has attention looks."""
    maps = {name: found[0]["alignment"] for name, found in runs.items() if found[0]["alignment"][2]}
    drawn, panels = trials.figure(
        5 + 3 * len(maps), 4, 1, 1 + len(maps), width_ratios=[1.6] + [1] * len(maps), squeeze=False
    )
    first, *others = panels[0]
    for name, found in runs.items():
        lengths = [*found[0]["lengths"]]
        means, errors = zip(
            *(trials.mean(run["lengths"][length] for run in found) for length in lengths)
        )
        middles = [length - (config.bin - 1) / 2 for length in lengths]
        first.errorbar(
            middles, means, errors, fmt="o-", color=COLOR[name], markersize=4, capsize=3, label=name
        )
    first.set(xlabel="words of the sentence", ylabel="BLEU", ylim=(0, None))
    first.legend(frameon=False)
    for panel, (name, (source, target, weights)) in zip(others, maps.items()):
        heatmaps.cells(panel, weights, target, source)
        panel.set(title=name, aspect="auto")
    return drawn


def main(config):
    bleu(["a"], ["a"])  # before anything is trained
    train, test = sentences(config)
    vocabulary = Vocabulary([text for pair in train for text in pair], config.vocab_size)
    numbers = [[vocabulary.encode(text) for text in pair] for pair in train]
    names = config.models.split(",")
    jobs = [
        (config, name, vocabulary, numbers, test, seed)
        for name in names
        for seed in range(config.seeds)
    ]
    found = trials.every(trained, jobs)
    runs = trials.by_kind(names, found)

    rows = []
    for name, found in runs.items():
        row = {
            "greedy": [run["greedy"] for run in found],
            f"beam {config.beam}": [run["beam"] for run in found],
        }
        row |= {
            f"{n - config.bin + 1}-{n} words": [run["lengths"][n] for run in found]
            for n in found[0]["lengths"]
        }
        rows.append(
            {"attention": name}
            | {column: trials.plus_minus(values, 1) for column, values in row.items()}
        )
    title = f"BLEU of {len(test):,} sentences, and by their length, with beam {config.beam}"
    trials.write_result(config, {title: rows}, draw(config, runs), runs=runs)


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(Settings, sys.argv[1:]))
