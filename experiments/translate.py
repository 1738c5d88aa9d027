"""Translation, with one vector between two languages, and with attention.

    python -m experiments.translate [--seeds=2]
    python -m experiments.translate --source=train.en.gz --target=train.fr.gz --test_source=test.en --test_target=test.fr

Found: TO BE WRITTEN
"""

import functools
import itertools
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from attention import ATTENTION, SCORE, CrossAttention, attention_weights, present, sinusoidal
from engine import configure, corpus, grammar, tokenizer, trials
from engine.checks import at_least, choose
from model import MLP, Block, GPTConfig

END = 0  # ends a sentence, and begins its translation; padding too


@dataclass(kw_only=True)
class Settings(trials.Settings):
    seeds: int = 2
    source: str = ""
    """Sentences, one a line (also .gz); empty: those of engine/grammar.py, English."""
    target: str = ""
    """Their translations; empty: French."""
    test_source: str = ""
    """Sentences to test with; empty: a tenth of the others, which is left out of training."""
    test_target: str = ""
    """Their translations."""
    models: str = "none,additive,general,dot,transformer"
    """What is trained: a recurrent network with attention of one kind, or none; a transformer."""
    steps: int = 500
    """Of training, for each model."""
    batch_tokens: int = 2000
    """Of target pieces in each step, with padding."""
    n_embd: int = 128
    """Width of all layers."""
    dropout: float = 0.0
    """On embeddings, on what attention writes, and before the output."""
    label_smoothing: float = 0.0
    learning_rate: float = 3e-3
    vocab_size: int = 800
    """Pieces of words (bpe:VOCAB) that are learned from both languages."""
    beam: int = 4
    """Translations that are pursued at the same time."""
    bin: int = 10
    """Words by which the lengths of test sentences are told apart."""
    example: str = "my young friend that the red dog follows does not like this horse"
    """A sentence whose alignments are drawn."""
    sentences: int = 20_000
    """From the grammar, the tenth to test with included."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "steps", "batch_tokens", "n_embd", "beam", "bin")
        at_least(10, self, "sentences")


# ---- Sentences

class Vocabulary:
    """Pieces of words in lower case, numbered from 1: those that occur in these texts. Others are left out."""

    def __init__(self, texts, size):
        self.bpe = tokenizer.create(f"bpe:{size}", [text.lower() for text in texts])
        used = np.unique(np.concatenate([self.bpe.encode(f" {text.lower()}") for text in texts]))
        self.number, self.piece = np.zeros(self.bpe.vocab_size, int), [END, *used]
        self.number[used] = np.arange(1, len(self.piece))

    def __len__(self):
        return len(self.piece)

    def encode(self, text):
        """With END, which is a place to look at when all else is translated."""
        numbers = self.number[self.bpe.encode(f" {text.lower()}")]
        return np.append(numbers[numbers != END], END)

    def decode(self, numbers):
        """Up to the end of the sentence."""
        pieces = [self.piece[n] for n in itertools.takewhile(lambda n: n != END, numbers)]
        return self.bpe.decode(pieces).strip()


def read_lines(path):
    with open(path, "rb") as file:
        text = corpus.decoded(b"".join(corpus.unpacked(file, Path(path))), path)
    if not text.strip():
        raise ValueError(f"{path} holds no text")
    return text.splitlines()


def read_pairs(source, target):
    both = [read_lines(path) for path in (source, target)]
    if len(both[0]) != len(both[1]):
        raise ValueError(f"{source} has {len(both[0]):,} lines and {target} {len(both[1]):,}: each must translate the other's")
    return [*zip(*both)]


def sentences(config):
    """Pairs to train with, and others to test with."""
    if bool(config.source) != bool(config.target) or bool(config.test_source) != bool(config.test_target):
        raise ValueError("source and target belong together: give both or none")
    pairs = read_pairs(config.source, config.target) if config.source else grammar.pairs(config.sentences, 0)
    if config.test_source:
        return pairs, read_pairs(config.test_source, config.test_target)
    known = len(pairs) - len(pairs) // 10
    seen = {source for source, _ in pairs[:known]}
    return pairs[:known], [pair for pair in pairs[known:] if pair[0] not in seen]


def padded(rows):
    """Numbers (B, T), with END after each row's own, and which of them are its own."""
    lengths = torch.tensor([len(row) for row in rows])
    numbers = pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=END)
    return numbers, torch.arange(numbers.shape[1]) < lengths[:, None]


def batches(lengths, most, seed):
    """For ever, the rows of a batch: sentences about as long as each other, at most `most` pieces with padding.

    The first epoch goes from short sentences to long ones, from which a model learns sooner where to look.
    """
    for epoch in itertools.count():
        rng = np.random.default_rng((seed, epoch))
        order = np.argsort(lengths + rng.random(len(lengths)))
        number = np.cumsum(lengths[order]) // most  # of the batch that a sentence belongs to
        found = np.split(order, np.flatnonzero(np.diff(number)) + 1)
        yield from (found[n] for n in (rng.permutation(len(found)) if epoch else range(len(found))))


# ---- Models: encode(source, real) -> memory · decode(target, memory, past) -> logits of what follows each piece, and the past

class Embedding(nn.Module):
    """Vectors for pieces and where they stand, which also score the pieces that may follow. The first stands at `start`."""

    def __init__(self, vocab_size, config):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, config.n_embd) / math.sqrt(config.n_embd))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, numbers, start=0):
        T, C = start + numbers.shape[1], self.weight.shape[1]
        return self.dropout(F.embedding(numbers, self.weight) * math.sqrt(C) + sinusoidal(T, C)[start:].float())

    def scores(self, y):
        return self.dropout(y) @ self.weight.T


class Recurrent(nn.Module):
    """A GRU reads, in both directions, and another writes. score None: it knows of the source what one vector holds.

    As in Luong et al. (arXiv:1508.04025, section 3), the state looks at the source after it has read a piece, so that all
    states of a known translation look at once. In Bahdanau's network the state before looks, and what it sees is read too.
    """

    def __init__(self, vocab_size, config, score=None):
        super().__init__()
        C = config.n_embd
        self.embed = Embedding(vocab_size, config)
        self.encoder, self.decoder = nn.GRU(C, C // 2, batch_first=True, bidirectional=True), nn.GRU(C, C, batch_first=True)
        self.begin, self.combine = nn.Linear(C, C), nn.Linear(2 * C, C)
        self.attention, self.score = ATTENTION["masked_fill"], score and SCORE[score](C)

    def encode(self, source, real):
        packed = pack_padded_sequence(self.embed(source), real.sum(1), batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        return pad_packed_sequence(states, batch_first=True)[0][:, None], last.transpose(0, 1).flatten(1), real  # (B, 1, S, C)

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


class Look(nn.Module):
    """x + CrossAttention(norm(x)) to a memory, in an encoder x itself, and then an MLP."""

    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.cross = CrossAttention(config.n_embd, config.n_head, dropout=config.dropout)
        self.mlp = MLP["gelu"](config)

    def forward(self, x, visible, memory=None):
        look = self.ln_1(x)
        x = x + self.cross(look, look if memory is None else memory, visible)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Vaswani et al. 2017 (arXiv:1706.03762): no recurrence. The decoder's blocks are a GPT's; after each, it looks at the source."""

    def __init__(self, vocab_size, config, layers=2):
        super().__init__()
        C = config.n_embd
        shape = GPTConfig(n_embd=C, n_head=4, mlp_size=2 * C, dropout=config.dropout)
        self.embed = Embedding(vocab_size, config)
        self.encoder, self.looks = (nn.ModuleList(Look(shape) for _ in range(layers)) for _ in range(2))
        self.blocks = nn.ModuleList(Block(shape, n) for n in range(layers))
        self.ln_memory, self.ln = nn.LayerNorm(C), nn.LayerNorm(C)

    def encode(self, source, real):
        x = self.embed(source)
        for look in self.encoder:
            x = look(x, present(real))
        return self.ln_memory(x), real

    def new_past(self, memory, longest):
        return [block.attn.new_cache(len(memory[0]), longest) for block in self.blocks]

    def select(self, past, rows):
        return [cache.select(rows) for cache in past]

    def decode(self, target, memory, past=None):
        x = self.embed(target, len(past[0]) if past else 0)
        for block, look, cache in zip(self.blocks, self.looks, past or [None] * len(self.blocks)):
            x = look(block(x, cache=cache), present(memory[1]), memory[0])
        return self.embed.scores(self.ln(x)), past


MODELS = {
    "none": Recurrent, **{name: functools.partial(Recurrent, score=name) for name in ("additive", "general", "dot")},
    "transformer": Transformer,
}


LABEL = {"none": "no attention", "additive": "additive (Bahdanau)", "general": "general (Luong)", "dot": "dot (Luong)",
         "transformer": "transformer"}


@torch.no_grad()
def search(model, source, real, beam=1):
    """The translation of each sentence, (B, T) numbers, that `beam` search finds, and the mean log-probability of its pieces.

    At each step the `beam` best of all continuations are kept. beam=1 is greedy.
    """
    B, longest = len(source), 2 * source.shape[1] + 10
    memory = [x.repeat_interleave(beam, 0) for x in model.encode(source, real)]
    past = model.new_past(memory, longest)
    tokens, ended = torch.full((B * beam, 1), END), torch.zeros(B * beam, dtype=torch.bool)
    scores = torch.tensor([0.0] + [-math.inf] * (beam - 1)).repeat(B)  # at first, all are the same
    first = torch.arange(0, B * beam, beam)[:, None]  # each sentence's first row
    length = torch.zeros(B * beam)
    for _ in range(longest):
        logits, past = model.decode(tokens[:, -1:], memory, past)
        more = logits[:, -1].log_softmax(-1)
        more[ended] = -math.inf  # but for one more END, which costs nothing
        more[ended, END] = 0.0
        V = more.shape[1]
        scores, best = (scores[:, None] + more).view(B, -1).topk(beam)
        rows, scores = (first + best // V).flatten(), scores.flatten()
        tokens = torch.cat([tokens[rows], (best % V).view(-1, 1)], 1)
        length = length[rows] + ~ended[rows]
        ended, past = tokens[:, -1] == END, model.select(past, rows)
        if ended.all():
            break
    best, which = (scores / length).view(B, beam).max(1)
    return tokens[first[:, 0] + which, 1:], best


# ---- Training and testing

def bleu():
    """The metric, which takes translations and the right ones as texts."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise ValueError("this experiment needs sacrebleu: pip install sacrebleu") from None
    return BLEU(lowercase=True)


def translated(model, vocabulary, texts, beam, most=100):
    """Translations, `most` sentences of about the same length at a time."""
    numbers = [vocabulary.encode(text) for text in texts]
    order, found = sorted(range(len(texts)), key=lambda n: len(numbers[n])), {}
    for start in range(0, len(order), most):
        rows = order[start : start + most]
        tokens, _ = search(model, *padded([numbers[n] for n in rows]), beam)
        found |= {n: vocabulary.decode(row) for n, row in zip(rows, tokens.tolist())}
    return [found[n] for n in range(len(texts))]


@torch.no_grad()
def alignment(model, vocabulary, text, beam):
    """Where the model looks while it translates a text: its words, those of the translation, and weights (after, before)."""
    maps, source = [], vocabulary.encode(text)
    for module in model.modules():
        if isinstance(module, Recurrent | CrossAttention):
            module.attention = lambda q, k, v, *how: maps.append(attention_weights(q, k, *how)) or maps[-1] @ v
    target, _ = search(model, *padded([source]), beam)
    model.decode(F.pad(target, (1, -1), value=END), model.encode(*padded([source])))  # so that the last map is of all of it
    words = [[vocabulary.decode([n]) or "(end)" for n in side] for side in (source, target[0].tolist())]
    return {"source": words[0], "target": words[1], "weights": maps[-1][0].mean(0).tolist() if maps else []}


def trained(config, name, vocabulary, train, test, seed):
    """BLEU of a model for all sentences of the test, by greedy and by beam search, and for those of each length."""
    torch.manual_seed(seed)
    model, metric = MODELS[name](len(vocabulary), config), bleu()
    endless = batches(np.array([max(map(len, pair)) for pair in train]), config.batch_tokens, seed)

    def loss(step):
        rows = next(endless)
        (source, real), (target, known) = (padded([train[n][side] for n in rows]) for side in (0, 1))
        logits, _ = model.decode(F.pad(target, (1, -1), value=END), model.encode(source, real))
        return F.cross_entropy(logits[known], target[known], label_smoothing=config.label_smoothing)

    curve = trials.fit(model, loss, config.steps, config.learning_rate)
    sources, right = zip(*test)
    greedy, found = (translated(model, vocabulary, sources, beam) for beam in (1, config.beam))
    score = {"greedy": metric.corpus_score(greedy, [right]).score, "beam": metric.corpus_score(found, [right]).score}
    for length, rows in by_length(sources, config.bin).items():
        score[length] = metric.corpus_score([found[n] for n in rows], [[right[n] for n in rows]]).score
    return {"score": score, "loss": sum(curve[-20:]) / len(curve[-20:]), "signature": str(metric.get_signature()),
            "alignment": alignment(model, vocabulary, config.example, config.beam)}


def by_length(texts, bin):
    """{words: rows of the texts with so many, or up to bin - 1 fewer}, without lengths that fewer than 2% have."""
    found = {}
    for n, text in enumerate(texts):
        found.setdefault(-(-len(text.split()) // bin) * bin, []).append(n)
    return {length: rows for length, rows in sorted(found.items()) if len(rows) >= len(texts) / 50}


def draw(config, runs):
    """BLEU by length, and the alignments of each model's first run."""
    maps = {name: found[0]["alignment"] for name, found in runs.items() if found[0]["alignment"]["weights"]}
    drawn, panels = trials.figure(5.5 + 3.2 * len(maps), 4, 1, 1 + len(maps), width_ratios=[1.7] + [1] * len(maps))
    first, *others = np.ravel(panels)
    for name, found in runs.items():
        lengths = [length for length in found[0]["score"] if isinstance(length, int)]
        means, errors = zip(*(trials.mean(run["score"][length] for run in found) for length in lengths))
        middles = [length - (config.bin - 1) / 2 for length in lengths]
        first.errorbar(middles, means, errors if len(found) > 1 else None, fmt="o-", markersize=4, capsize=3, label=LABEL[name])
    first.set(xlabel="words of the English sentence" if not config.source else "words of the sentence", ylabel="BLEU", ylim=(0, None))
    first.legend(frameon=False)
    for panel, (name, found) in zip(others, maps.items()):
        panel.imshow(np.sqrt(found["weights"]), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        panel.set_xticks(range(len(found["source"])), found["source"], rotation=90)
        panel.set_yticks(range(len(found["target"])), found["target"])
        panel.tick_params(length=0, labelsize=9)
        panel.set_title(LABEL[name], fontsize=10)
    return drawn


def main(config):
    bleu()
    pairs = sentences(config)
    vocabulary = Vocabulary([text for pair in pairs[0] for text in pair], config.vocab_size)
    train = [tuple(vocabulary.encode(text) for text in pair) for pair in pairs[0]]
    names = config.models.split(",")
    jobs = [(config, name, vocabulary, train, pairs[1], seed) for name in names for seed in range(config.seeds)]
    found = trials.every(trained, jobs)
    runs = {name: found[n * config.seeds : (n + 1) * config.seeds] for n, name in enumerate(names)}
    rows = [{"model": LABEL[name], **{what: trials.plus_minus((run["score"][what] for run in found), 1) for what in found[0]["score"]}}
            for name, found in runs.items()]
    print(found[0]["signature"])
    trials.store(config, {"BLEU: greedy, with beam, and with beam by length": rows}, draw(config, runs), runs=runs)


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(Settings, sys.argv[1:]))
