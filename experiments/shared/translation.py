"""What translating takes beside a model: pairs of sentences as pieces of words, batches, the search for a translation, BLEU."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from engine.common.checks import at_least
from engine.plotting.inspection import recording
from engine.text import tokenizer
from experiments.shared import grammar, trials

END = 0  # of a sentence: what begins its translation, and the padding, too
MOST_TESTED = 500


# ---- Sentences


@dataclass(kw_only=True)
class Settings(trials.Settings):
    source: str = ""
    """Sentences, one a line (also .gz); empty: those of experiments/shared/grammar.py, English."""
    target: str = ""
    """Their translations; empty: French."""
    test_source: str = ""
    """Sentences to test with; empty: a tenth of the others, 500 at most, which is left out of training."""
    test_target: str = ""
    """Their translations."""
    sentences: int = 8000
    """From the grammar, those to test with included."""

    def __post_init__(self):
        super().__post_init__()
        at_least(100, self, "sentences")


def read_pairs(source, target):
    """[(sentence, its translation)] from two files with a sentence on each line; ValueError if they do not fit together."""
    both = trials.read_lines(source), trials.read_lines(target)
    if len(both[0]) != len(both[1]):
        counts = f"{source} has {len(both[0]):,} lines, {target} {len(both[1]):,}"
        raise ValueError(f"{counts}: each line of one must be the translation of the other's")
    pairs = [pair for pair in zip(*both) if pair[0].strip() and pair[1].strip()]
    if not pairs:
        raise ValueError(f"{source} and {target} hold no text")
    return pairs


def sentences(config):
    """Pairs to train with, and others to test with; ValueError if what config names does not give them."""
    if bool(config.source) != bool(config.target) or bool(config.test_source) != bool(
        config.test_target
    ):
        raise ValueError("source and target belong together: give both or none")
    pairs = (
        read_pairs(config.source, config.target)
        if config.source
        else grammar.pairs(config.sentences, 0)
    )
    if config.test_source:
        return pairs, read_pairs(config.test_source, config.test_target)
    some = min(len(pairs) // 10, MOST_TESTED)
    seen = {source for source, _ in pairs[some:]}
    test = [pair for pair in pairs[:some] if pair[0] not in seen]
    if not test:
        raise ValueError(
            f"{config.source} has too few sentences: a tenth, to test with, that is not in the rest, is needed"
        )
    return pairs[some:], test


class Vocabulary:
    """Pieces of words in lower case, numbered from 1: those that occur in these texts. Others are left out."""

    def __init__(self, texts, size):
        self.bpe = tokenizer.create_tokenizer(f"bpe:{size}", [text.lower() for text in texts])
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
        """Up to END."""
        return self.bpe.decode(
            [self.piece[n] for n in itertools.takewhile(lambda n: n != END, numbers)]
        ).strip()


def padded(rows):
    """Numbers (B, T), with END after each row's own, and which of them are its own."""
    lengths = torch.tensor([len(row) for row in rows])
    numbers = pad_sequence(
        [torch.as_tensor(row) for row in rows], batch_first=True, padding_value=END
    )
    return numbers, torch.arange(numbers.shape[1]) < lengths[:, None]


def batches(lengths, most, seed):
    """For ever, the rows of a batch: sentences about as long as each other, about `most` pieces in all.

    The first epoch goes from short sentences to long ones, from which a model learns sooner where to look; others are in a
    random order.
    """
    for epoch in itertools.count():
        rng = np.random.default_rng((seed, epoch))
        order = np.argsort(lengths + rng.random(len(lengths)))
        number = np.cumsum(lengths[order]) // most  # of the batch that a sentence belongs to
        found = np.split(order, np.flatnonzero(np.diff(number)) + 1)
        yield from (found[n] for n in (rng.permutation(len(found)) if epoch else range(len(found))))


# ---- Translations


@torch.no_grad()
def search(model, source, real, beam=1):
    """The translation of each sentence, numbers (B, T), that beam search finds, and the mean log-probability of its pieces.

    Of all continuations, the best `beam` are kept at each step, until all have ended. beam=1 is greedy. What a model must have:

        encode(source, real) -> memory, tensors (B, ...)        new_past(memory, longest) -> past, before the first piece
        decode(target, memory, past) -> logits of what follows each piece, and the past        select(past, rows) -> past
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


def translated(model, vocabulary, texts, beam, most=100):
    """Translations, found for `most` sentences of about the same length at a time."""
    numbers, found = [vocabulary.encode(text) for text in texts], {}
    for rows in torch.tensor([len(row) for row in numbers]).argsort(stable=True).split(most):
        tokens, _ = search(model, *padded([numbers[n] for n in rows]), beam)
        found |= {n: vocabulary.decode(row) for n, row in zip(rows.tolist(), tokens.tolist())}
    return [found[n] for n in range(len(texts))]


@torch.no_grad()
def alignment(model, vocabulary, text, beam, attention_weights):
    """Where a model looks while it translates a text: pieces of both, and the last layer's weights, their heads' mean.

    The weights are a list of rows, or None of a model that does not look; attention_weights is attention.py's.
    """
    source = padded([vocabulary.encode(text)])
    target, _ = search(model, *source, beam)
    target = target[:, : (target != END).sum() + 1]  # up to END
    with recording(model, attention_weights) as maps:
        model.decode(
            F.pad(target, (1, -1), value=END), model.encode(*source)
        )  # as in training, all of it at once
    pieces = [
        [vocabulary.decode([n]) or "(end)" for n in side[0].tolist()]
        for side in (source[0], target)
    ]
    return [*pieces, maps[-1][0].mean(0).tolist() if maps else None]


def bleu(found, right):
    """BLEU of texts in lower case, as sacrebleu computes it for its tokenization 13a."""
    try:
        import sacrebleu
    except ImportError:
        raise ValueError("BLEU needs sacrebleu: pip install sacrebleu") from None
    return sacrebleu.corpus_bleu(found, [right], lowercase=True).score


def by_length(texts, step):
    """{words: rows of the texts with so many, or up to step - 1 fewer}, without lengths that fewer than 2% have."""
    found = {}
    for n, text in enumerate(texts):
        found.setdefault(-(-len(text.split()) // step) * step, []).append(n)
    return {length: rows for length, rows in sorted(found.items()) if len(rows) >= len(texts) / 50}
