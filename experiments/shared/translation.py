"""What translation needs beside a model: pairs of sentences, pieces of words, beam search, BLEU."""

import gzip
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from engine import tokenizer
from engine.errors import UserError, library_errors
from tools.shared.inspection import recording

END = 0  # of a sentence. It also begins its translation, and is the padding


# ---- Sentences


def read_lines(path):
    """Return the lines of a UTF-8 text file, compressed if it is a .gz."""
    opener = gzip.open if path.endswith(".gz") else open
    with library_errors(f"cannot read {path}"):
        with opener(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            return [line.rstrip("\r\n") for line in file]


def read_pairs(source, target):
    """Return [(sentence, its translation)] from two files with a sentence on each line."""
    if not (source and target):
        raise UserError("source and target belong together: give both or none")
    sentences = read_lines(source)
    translations = read_lines(target)
    if len(sentences) != len(translations):
        counts = f"{source} has {len(sentences):,} lines, {target} {len(translations):,}"
        raise UserError(f"{counts}: each line of one must be the translation of the other's")
    return [pair for pair in zip(sentences, translations) if all(map(str.strip, pair))]


def learn_vocabulary(texts, size):
    """Return the Vocabulary of pieces that occur in these texts, learned as bpe:SIZE."""
    texts = [text.lower() for text in texts]
    bpe = tokenizer.create_tokenizer(f"bpe:{size}", texts)
    used = {piece for text in texts for piece in bpe.encode(f" {text}").tolist()}
    return Vocabulary(bpe, sorted(used))


class Vocabulary:
    """Pieces of words in lower case, of both languages, numbered from 1. Others are left out."""

    def __init__(self, bpe, pieces):
        self.bpe = bpe
        self.pieces = pieces  # the ids that bpe gives them
        self.numbers = {piece: n for n, piece in enumerate(pieces, 1)}

    def __len__(self):
        return 1 + len(self.pieces)

    def encode(self, text):
        """Return the numbers of a text and END, where a model may look when all is translated."""
        pieces = self.bpe.encode(f" {text.lower()}")
        numbers = [self.numbers[piece] for piece in pieces if piece in self.numbers]
        return [*numbers, END]

    def check(self, text):
        """UserError for a text without words, or with a word of which a piece is unknown."""
        words = text.lower().split()
        if not words:
            raise UserError('--text is empty: --text="..."')
        for word in words:
            pieces = self.bpe.encode(f" {word}").tolist()
            if not self.numbers.keys() >= {*pieces}:
                raise UserError(f"--text: the translator's vocabulary lacks {word!r}")

    def decode(self, numbers):
        """Return the text of the numbers up to END."""
        own = itertools.takewhile(lambda n: n != END, numbers)
        pieces = [self.pieces[n - 1] for n in own]
        return self.bpe.decode(pieces).strip()


def padded(rows):
    """Return numbers (B, T), END after each row's own, and which of them are its own."""
    lengths = torch.tensor([len(row) for row in rows])
    rows = [torch.as_tensor(row) for row in rows]
    numbers = pad_sequence(rows, batch_first=True, padding_value=END)
    place = torch.arange(numbers.shape[1])
    return numbers, place < lengths[:, None]


def shifted(target):
    """Return what a model reads while it writes target (B, T): END, and all pieces but the last."""
    return F.pad(target, (1, -1), value=END)


def batches(lengths, tokens, seed):
    """Yield the rows of a batch without end: sentences of similar length, about `tokens` in all.

    The first epoch goes from short sentences to long ones, from which a model learns sooner where
    to look. The others are in a random order.
    """
    for epoch in itertools.count():
        rng = np.random.default_rng((seed, epoch))
        order = np.argsort(lengths + rng.random(len(lengths)))
        batch = np.cumsum(lengths[order]) // tokens  # the number of each sentence's batch
        starts = np.flatnonzero(np.diff(batch)) + 1
        found = np.split(order, starts)
        numbers = rng.permutation(len(found)) if epoch else range(len(found))
        for n in numbers:
            yield found[n]


# ---- Translations


@torch.no_grad()
def search(model, source, real, beam=1, sample=None, longest=None):
    """Return the translations (B, T) that beam search finds, and the mean log-probability of each.

    Of all continuations, the best `beam` are kept at each step, until all have ended, or have
    `longest` pieces. Of those, the best by their mean counts: by their sum, short ones would win.
    beam=1 is greedy, or draws each piece by sample(logits) -> ids (B,). The model has four methods:

        encode(source, real) -> memory, tensors (B, ...)
        new_past(memory, longest) -> past, before the first piece
        decode(target, memory, past) -> logits of the next pieces, and the past
        select(past, rows) -> past
    """
    B = len(source)
    longest = longest or 2 * source.shape[1] + 10
    memory = model.encode(source, real)
    memory = [x.repeat_interleave(beam, 0) for x in memory]
    past = model.new_past(memory, longest)
    tokens = torch.full((B * beam, 1), END)
    ended = torch.zeros(B * beam, dtype=torch.bool)
    length = torch.zeros(B * beam)
    # At first, all translations of a sentence are the same, and only one of them counts.
    scores = torch.full((B, beam), -math.inf)
    scores[:, 0] = 0.0
    scores = scores.flatten()
    first_row = torch.arange(0, B * beam, beam)[:, None]
    for n in range(longest):
        logits, past = model.decode(tokens[:, -1:], memory, past)
        more = logits[:, -1].log_softmax(-1)
        more[ended] = -math.inf
        more[ended, END] = 0.0  # one more END costs nothing
        V = more.shape[1]
        continued = scores[:, None] + more  # (B·beam, V)
        if sample:
            best = sample(more)[:, None]
            scores = continued.gather(1, best)
        else:
            scores, best = continued.view(B, beam * V).topk(beam)
        scores = scores.flatten()
        rows = (first_row + best // V).flatten()
        pieces = (best % V).view(-1, 1)
        tokens = torch.cat([tokens[rows], pieces], 1)
        length = length[rows] + ~ended[rows]
        ended = tokens[:, -1] == END
        past = model.select(past, rows)
        if ended.all():
            break
    means = scores / length
    best, which = means.view(B, beam).max(1)
    rows = first_row[:, 0] + which
    return tokens[rows, 1:], best


def translate(model, vocabulary, texts, beam, sample=None):
    """Return translations of texts, found for 100 of similar length at a time."""
    numbers = [vocabulary.encode(text) for text in texts]
    lengths = torch.tensor([len(row) for row in numbers])
    found = {}
    for rows in lengths.argsort(stable=True).split(100):
        source, real = padded([numbers[n] for n in rows])
        tokens, _ = search(model, source, real, beam, sample)
        for n, row in zip(rows.tolist(), tokens.tolist()):
            found[n] = vocabulary.decode(row)
    return [found[n] for n in range(len(texts))]


@torch.no_grad()
def alignment(model, vocabulary, text, beam):
    """Return pieces of a text, of its translation, and the weights between them, lists of rows.

    Weights are the mean of the last layer's heads, and None for a model without attention.
    """
    source, real = padded([vocabulary.encode(text)])
    found, _ = search(model, source, real, beam)
    length = (found != END).sum() + 1
    target = found[:, :length]
    memory = model.encode(source, real)
    past = model.new_past(memory, length)
    weights = []
    with recording(model) as maps:
        for piece in shifted(target).split(1, dim=1):
            _, past = model.decode(piece, memory, past)
            weights += maps[-1:]
    pieces = []
    for numbers in source[0], target[0]:
        texts = [vocabulary.decode([n]) for n in numbers]
        pieces.append([text or "(end)" for text in texts])
    if not weights:
        return [*pieces, None]
    means = [rows.mean(1) for rows in weights]  # of heads, each (1, 1, S)
    return [*pieces, torch.cat(means, 1)[0].tolist()]


def bleu(found, right):
    """Return the BLEU of texts in lower case, by sacrebleu and its tokenization 13a."""
    import sacrebleu

    return sacrebleu.corpus_bleu(found, [right], lowercase=True).score


def by_length(texts, step):
    """Return {words: rows of the texts with this number of words, or up to step - 1 fewer}.

    Lengths that fewer than 2% of the texts have are left out.
    """
    found = {}
    for n, text in enumerate(texts):
        words = len(text.split())
        length = math.ceil(words / step) * step
        found.setdefault(length, []).append(n)
    enough = len(texts) / 50
    return {length: rows for length, rows in sorted(found.items()) if len(rows) >= enough}
