"""The census against counting by hand, and against heads that are known to do one thing."""

import itertools

import torch
from conftest import save, tiny

from engine import dataset
from tools.census import main
from tools.shared import inspection
from tools.shared.inspection import FAR, INDUCTION, attention_maps, census, gain
from tools.shared.settings import DatasetSettings

T = 20
TEXT = "a,1.é\nbcdefghijklmnop"


def model_of(**changes):
    shape = dict(block_size=T, vocab_size=13, n_head=2)
    return tiny(**shape | dict(position="rope", window=4, window_pattern="SL") | changes)


def text_of(n):
    return f" {TEXT[n]}"


def texts_of():
    return list(torch.randint(7, (3, T), generator=torch.Generator().manual_seed(1)))


def test_scores_and_chance_levels_by_hand():
    """Catches a key one off, a chance level without the window, queries without such keys, and a
    word with a space or an accent among separators.
    """
    counts = {  # whether key j counts for query i, in the plainest words
        "previous token": lambda i, j, ids: j == i - 1,
        "first token": lambda i, j, ids: j == 0 and i > 0,
        "same token earlier": lambda i, j, ids: j < i and ids[j] == ids[i],
        "after an earlier copy": lambda i, j, ids: 0 < j < i and ids[j - 1] == ids[i],
        "a separator": lambda i, j, ids: j <= i and not TEXT[ids[j]].isalnum(),
    }
    model = model_of()
    found = census(model, texts_of(), text_of)
    assert found.keys() == {*counts, INDUCTION}
    for kind, (layer, reach) in itertools.product(counts, enumerate([4, T])):
        both = []  # the share of each query, and that by chance
        for ids in texts_of():
            weights = attention_maps(model, ids)[0][layer][1]
            for i in range(T):
                keys = [j for j in range(i + 1) if counts[kind](i, j, ids)]
                visible = [j for j in keys if j > i - reach]
                if keys:
                    both.append([weights[i, visible].sum(), len(visible) / min(reach, i + 1)])
        scores, chances = found[kind]
        expected = torch.tensor(both).mean(0)
        assert torch.allclose(torch.stack([scores[layer, 1], chances[layer, 0]]), expected, 1e-4)


def test_an_induction_head(monkeypatch):
    """Catches an induction head that is not found, and a previous-token head taken for one."""

    def maps(model, ids):
        """Layer 1 looks at the token before, layer 2 at what followed the copy."""
        n = len(ids)
        before = torch.eye(n).roll(1, 0)
        return [before.expand(2, n, n), before.roll(n // 2 - 2, 0).expand(2, n, n)], None

    monkeypatch.setattr(inspection, "attention_maps", maps)
    scores, chances = census(model_of(window=0), texts_of(), text_of)[INDUCTION]
    assert scores[1].tolist() == [1, 1] and 0 < chances[1, 0] < 1 / 4
    assert (gain(scores, chances)[0] < FAR).all()


def test_out_of_reach():
    """Catches a head said to find a copy that its window hides, and NaN where no key counts."""
    found = census(model_of(vocab_size=T), [torch.arange(T)], text_of)
    scores, chances = found[INDUCTION]  # each token comes once in each half
    assert not scores[0].any() and not chances[0].any() and scores[1].all()
    assert not found["same token earlier"][0].any()


def test_on_the_dataset_of_the_run(poem_here, capsys):
    """Catches another text than the training's, and silence where there is no induction head."""
    encoding = dataset.load_dataset("poem", 1).tokenizer
    save("out", model_of(vocab_size=encoding.vocab_size), encoding=encoding, dataset="poem")
    main(DatasetSettings())
    printed = capsys.readouterr().out
    for text in "32 texts of 20 tokens", "config/induction.toml", "a separator", INDUCTION:
        assert text in printed
