"""experiments.senses: the probe, and the stages between which a word gets its meaning."""

import collections

import pytest
import torch

from experiments import senses
from experiments.shared.ambiguity import number_words, words_of

SENSE = torch.arange(40) % 2
KNOWN = torch.arange(40) < 20


@pytest.mark.parametrize("shift, accuracy", [(0, 0.5), (1, 1.0)])
def test_probe(shift, accuracy):
    """Catches a probe that sees what it is asked, and senses in identical states."""
    x = torch.ones(40, 8) + shift * SENSE[:, None]
    found = senses.probe(x, SENSE, KNOWN)
    assert found[senses.ACCURACY] == accuracy and found["distance within a sense"] == 0
    assert found["between"] == pytest.approx(shift * 8**0.5)
    x[~KNOWN] = x[~KNOWN].flip(0)  # the others the other way round
    if shift:
        assert senses.probe(x, SENSE, KNOWN)[senses.ACCURACY] == 0


def test_examples():
    """Catches a sense or a verb that is more frequent, a noun of the test in training."""
    train, test = (senses.examples(800, 0, tested) for tested in (False, True))
    assert {*collections.Counter(example[2:] for example in train).values()} == {50}
    french = {example.english: example.french for example in train}
    assert french["the big queen robbed the bank"] == "la grande reine a cambriolé la banque"
    assert not french.keys() & {example.english for example in test}


def test_states():
    """Catches stages in another order, and the states of another word."""
    examples = senses.examples(32, 0)[::2]
    numbers = number_words([example[:2] for example in examples])
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
    right = [[numbers[word] for word in words_of(example.french)] for example in examples]
    assert [row[row > 0].tolist() for row in targets] == right


@pytest.mark.slow
def test_attention_tells_senses_apart(small_experiment):
    """Catches verbs that the probe has seen, and an untrained model that does as well."""
    report = small_experiment(senses, steps=100)
    print(report)
