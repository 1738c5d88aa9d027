"""experiments.senses: the probe, and the stages between which a word gets its meaning."""

import collections

import pytest
import torch

from experiments import senses
from experiments.shared.ambiguity import number_words

SENSE = torch.arange(40) % 2
KNOWN = torch.arange(40) < 20


def test_probe():
    """Catches a probe that knows what it is asked, and senses in states that are the same."""
    x = torch.ones(40, 8)
    assert senses.nearest_mean(x, SENSE, KNOWN) == 0.5
    x = x + SENSE[:, None]
    assert senses.nearest_mean(x, SENSE, KNOWN) == 1
    x[~KNOWN] = x[~KNOWN].flip(0)  # those that are asked the other way round
    assert senses.nearest_mean(x, SENSE, KNOWN) == 0


def test_examples():
    """Catches a sense or a verb that is more frequent, and a text of the test in training."""
    train, test = (senses.examples(800, 0, tested) for tested in (False, True))
    assert {*collections.Counter(example[1:] for example in train).values()} == {50}
    verbs = [{tuple(text.split()[2:4]) for text, *_ in found} for found in (train, test)]
    assert not verbs[0] & verbs[1] and len(verbs[1]) > 50
    endings = collections.defaultdict(set)
    for text, word, sense, _ in train:
        after = text.split(f"the {word} ")[1]
        endings[after].add((word, sense))
    assert all(len(senses) == 1 for senses in endings.values())


def test_states():
    """Catches stages in another order, and the states of another word."""
    examples = senses.examples(32, 0)[::2]
    numbers = number_words([[text] for text, *_ in examples])
    ids, targets = senses.encode(examples, numbers)
    torch.manual_seed(0)
    model = senses.new_gpt(len(numbers) + 1).eval()
    place = (ids == numbers["bank"]).int().argmax(1)
    embedding, after_attention, *_, last = senses.states(model, ids, place)
    rows = torch.arange(len(ids))
    block = model.transformer.h[0]
    x = model.transformer.wte(ids)
    assert torch.equal(embedding, x[rows, place]) and (embedding == embedding[0]).all()
    seen = block.attn(block.ln_1(x), model.transformer.wpe.rope(slice(0, ids.shape[1])))
    assert torch.allclose(after_attention, (x + seen)[rows, place], atol=1e-6)
    assert torch.allclose(model.transformer.ln_f(last), model.hidden(ids)[rows, place], atol=1e-6)
    texts = [[numbers[word] for word in text.split()[1:]] for text, *_ in examples]
    assert [row[row > 0].tolist() for row in targets] == texts


@pytest.mark.slow
def test_attention_tells_senses_apart(small_experiment):
    """Catches a probe that has seen all verbs, and states that are read before attention."""
    for title, rows in small_experiment(senses, steps=100)["tables"].items():
        embedding, *_, last = (float(row[senses.UNSEEN]) for row in rows)
        assert embedding == 0.5 and (last > 0.9) == (senses.UNTRAINED not in title), title
