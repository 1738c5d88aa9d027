"""experiments.blanks: what is hidden, what is asked for, who sees what, and who fills blanks."""

import pytest
import torch
from torch.nn import functional as F

from experiments import blanks
from experiments.shared import grammar, labelled, masking
from model import GPTConfig

V = 50


@pytest.fixture
def sentences():
    """Words 2 to 48 in 400 sentences of 1 to 16, PAD after each."""
    torch.manual_seed(0)
    ids = torch.randint(2, V - 1, (400, 17))
    lengths = torch.randint(1, 17, (400, 1))
    return ids.masked_fill(torch.arange(17) >= lengths, masking.PAD)


def encoder(name):
    visible, _ = blanks.KINDS[name]
    torch.manual_seed(0)
    config = GPTConfig(**blanks.SHAPE | {"init": "gpt2"}, vocab_size=V, visible=visible)
    return blanks.Encoder(config, shifted=name == blanks.NEXT).double()


def test_corruption(sentences):
    """Catches other proportions than BERT's, padding that is chosen, words changed unasked."""
    sentences[:, 0] = masking.UNKNOWN
    ids = sentences.repeat(20, 1)
    given, words = masking.corrupted(ids, V)
    chosen = words >= 0
    assert (ids[chosen] > masking.UNKNOWN).all()
    assert torch.equal(words[chosen], ids[chosen]) and torch.equal(given[~chosen], ids[~chosen])
    share = chosen.sum() / (ids > masking.UNKNOWN).sum()
    assert share.item() == pytest.approx(0.15, abs=0.01)
    blank = given[chosen] == V - 1
    stays = given[chosen] == ids[chosen]
    assert blank.double().mean().item() == pytest.approx(0.8, abs=0.03)
    assert stays.double().mean().item() == pytest.approx(0.1 + 0.1 / (V - 3), abs=0.02)
    others = given[chosen][~blank & ~stays]
    assert others.min() == 2 and others.max() == V - 2


def test_only_chosen_places_count(sentences):
    """Catches a loss of words that were not chosen, or of padding."""
    model = encoder(blanks.FULL)
    words = torch.full_like(sentences, -1)
    words[3, 0] = 7
    words[5, 0] = 9
    scores = model.lm_head(model.states(sentences)[0])
    right = F.cross_entropy(scores[[3, 5], 0], torch.tensor([7, 9]))
    torch.testing.assert_close(blanks.loss_of(model, sentences, words), right)


@pytest.mark.parametrize("name, first", [(blanks.FULL, 0), (blanks.BACK, 6), (blanks.NEXT, 7)])
def test_who_sees_a_later_word(sentences, name, first):
    """Catches an encoder that looks back only, a decoder that sees what it is to say."""
    model = encoder(name)
    one = sentences[sentences[:, 12] > 0][:1]
    other = one.clone()
    other[0, 6] = 2 + (one[0, 6] - 1) % (V - 3)
    changed = (model.states(one)[0] != model.states(other)[0]).any(-1)[0]
    assert changed[:12].nonzero()[0].item() == first


@pytest.mark.parametrize("name", blanks.KINDS)
def test_padding_is_unseen(sentences, name):
    """Catches states and means that depend on how much padding stands after a sentence."""
    model = encoder(name)
    ids = sentences[(sentences > 0).sum(1) == 5]
    short = ids[:, :6]
    real = short > 0
    torch.testing.assert_close(model.states(ids)[0][:, :6][real], model.states(short)[0][real])
    torch.testing.assert_close(model.mean_state(ids), model.mean_state(short))


def test_guesses():
    """Catches the wrong neighbour, and one beyond the sentence."""
    train = torch.tensor([[2, 3, 4, 0], [2, 5, 6, 0]] * 20)
    ids, places, words = masking.without_each(train[:2], 8)
    found = masking.guesses(train, ids, places, 8)
    assert words.tolist() == [2, 3, 4, 2, 5, 6]
    assert found["fits both neighbours"].argmax(1).tolist() == words.tolist()
    said = found["follows the word before"].argmax(1)
    assert said[1] == said[4] and said[2] == 4 and said[5] == 6


@pytest.mark.slow
def test_both_sides_help(small_experiment, monkeypatch):
    """Catches blanks that are not filled, sides that do not matter, topics that are not told."""
    pairs = grammar.pairs(400, 0)
    monkeypatch.setattr(grammar, "pairs", lambda *args: pairs)
    said = {"socket": "hears", "widget": "draws", "mailbox": "keeps"}
    texts = [f"the {word} {verb} {n} things" for word, verb in said.items() for n in "abcdefgh"]
    monkeypatch.setattr(labelled, "docstrings", lambda: 3 * texts)
    report = small_experiment(blanks, steps=100)
    losses = {row["by"]: float(row["loss"]) for row in report["tables"][blanks.DOCSTRINGS]}
    assert losses[blanks.FULL] < losses[blanks.BACK] - 0.1, losses
    assert losses[blanks.BACK] < losses["commonest word"] - 1, losses
    told = {row["by"]: float(row["right"]) for row in report["tables"][blanks.TOPICS]}
    assert told[blanks.COUNTS] == 1 and min(told.values()) > 0.5, told
