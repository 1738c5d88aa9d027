"""Translation: the grammar, searches, BLEU by length, and the experiment's claim, small."""

import gzip
import itertools
import json
import pickle
import random

import numpy as np
import pytest
import torch
from conftest import complaint, run_here

from engine.common.settings import parse_settings
from experiments import translate
from experiments.shared import grammar
from experiments.shared.translation import END, Vocabulary, batches, bleu, by_length, padded, search

PAIRS = grammar.pairs(400, 0)
TINY = ["--n_embd=32", "--batch_tokens=300", "--sentences=200", "--seeds=1", "--beam=2"]


def settings(*flags):
    return parse_settings(translate.Settings, [*TINY, *flags])


def model(name, size=40):
    torch.manual_seed(0)
    return translate.MODELS[name](size, settings()).eval()


# ---- The grammar


def test_agreement():
    """Catches an adjective or a verb that does not agree, un after ne ... pas, and a vowel that does not elide."""
    nouns = {
        french[many]: (feminine, many) for _, french, feminine in grammar.NOUNS for many in (1, 0)
    }  # souris: one
    forms = {"ce": (0, 0), "cet": (0, 0), "cette": (1, 0), "le": (0, 0), "la": (1, 0)}
    checked = 0
    for _, french in grammar.pairs(400, 1):
        words = french.replace("'", "' ").split()
        for word, after in zip(words, words[1:]):
            if word in forms and after in nouns:
                assert nouns[after] == forms[word], french
                checked += 1
            if word in ("le", "la", "ne", "que", "de", "ce", "ma", "puisque"):
                assert after[0] not in "aeiouéh", french
        for start in (n for n, word in enumerate(words) if word == "pas"):
            assert words[start + 1 : start + 2] not in (["un"], ["une"]), french
            assert words[start - 2] in ("ne", "n'"), french
    assert checked > 100


@pytest.mark.parametrize(
    "feminine, many, right",
    [
        (0, 0, "est content"),
        (1, 0, "est contente"),
        (0, 1, "sont contents"),
        (1, 1, "sont contentes"),
    ],
)
def test_what_agrees_with_the_subject(feminine, many, right, monkeypatch):
    """Catches an adjective after the verb that has another form than the subject."""
    monkeypatch.setattr(grammar, "AFTER", [("glad", "content contente contents contentes")])
    found = {
        " ".join(grammar.predicate(random.Random(seed), [*grammar.NOUNS], feminine + 2 * many)[1])
        for seed in range(40)
    }
    assert right in found and right.replace(" ", " pas ").join(["ne ", ""]) in found
    assert {
        text
        for text in found
        if "content" in text.split()[-1] and text.split()[0] in ("est", "sont")
    } == {right}


def test_lengths_and_vocabulary():
    """Catches sentences that are longer than asked, lengths that hardly occur, and one English sentence for two French ones."""
    lengths = np.array([len(english.split()) for english, _ in PAIRS])
    assert lengths.min() >= 3 and lengths.max() <= 50 and len(dict(PAIRS)) == 400
    assert all(((lengths > low) & (lengths <= low + 10)).sum() > 40 for low in range(0, 50, 10))
    words = [{word for pair in PAIRS for word in pair[side].split()} for side in (0, 1)]
    assert 80 < len(words[0]) < 200 and 120 < len(words[1]) < 300
    assert grammar.pairs(50, 3) == grammar.pairs(50, 3) != grammar.pairs(50, 4)


def test_train_and_test_are_apart():
    """Catches a test with sentences that were trained."""
    train, test = translate.sentences(settings())
    assert (
        len(test) == 20
        and len(train) == 180
        and not {source for source, _ in train} & {source for source, _ in test}
    )


# ---- Pieces and batches


def test_vocabulary():
    """Catches texts that do not come back, and a piece which training never saw but gets a number."""
    vocabulary = Vocabulary([text for pair in PAIRS for text in pair], 700)
    for text in PAIRS[0]:
        assert (
            vocabulary.decode([*vocabulary.encode(text), 5]) == text
            and vocabulary.encode(text)[-1] == END
        )
    assert vocabulary.decode(vocabulary.encode("猫")) == ""
    assert max(vocabulary.encode(PAIRS[0][0])) < len(vocabulary)


def test_batches():
    """Catches a sentence that an epoch leaves out or has twice, batches that are too large, and a first epoch out of order."""
    lengths = np.random.default_rng(0).integers(1, 50, 300)
    endless, epochs = batches(lengths, 200, 0), []
    for _ in range(2):
        rows, left = [], 300
        while left:
            rows.append(next(endless))
            left -= len(rows[-1])
        epochs.append(rows)
        assert sorted(itertools.chain(*rows)) == [*range(300)]
        assert all(lengths[batch].sum() < 250 and np.ptp(lengths[batch]) < 8 for batch in rows)
    first, second = ([lengths[batch].max() for batch in rows] for rows in epochs)
    assert first == sorted(first) and second != sorted(second)


# ---- Models and searches


@pytest.mark.parametrize("name", translate.MODELS)
def test_padding_and_the_past(name):
    """Catches padding that a model sees, and a step by step decoder that differs from the one in training."""
    found = model(name)
    source, target = torch.randint(1, 40, (1, 6)), torch.randint(1, 40, (1, 5))
    alone, _ = found.decode(target, found.encode(source, torch.ones(1, 6, dtype=torch.bool)))
    both, real = padded([source[0], torch.randint(1, 40, (9,))])
    memory = found.encode(both, real)
    among, _ = found.decode(target.expand(2, -1), memory)
    assert torch.allclose(alone, among[:1], atol=1e-5)
    past, steps = found.new_past(memory, 5), []
    for n in range(5):
        logits, past = found.decode(target.expand(2, -1)[:, n : n + 1], memory, past)
        steps.append(logits)
    assert torch.allclose(torch.cat(steps, 1), among, atol=1e-5)


def greedily(found, source, real):
    """Greedy decoding, in which each step computes all of the translation so far."""
    memory, tokens = found.encode(source, real), torch.full((1, 1), END)
    while tokens.shape[1] <= 2 * source.shape[1] + 10:
        tokens = torch.cat([tokens, found.decode(tokens, memory)[0][:, -1:].argmax(-1)], 1)
        if tokens[0, -1] == END:
            break
    return tokens[0, 1:]


@pytest.mark.parametrize("name", translate.MODELS)
def test_searches(name):
    """Catches a beam of 1 that is not greedy, a state of another beam, and a beam that finds what is less likely."""
    found = model(name)
    with torch.no_grad():
        found.embed.weight[END] += 0.2  # so that some end early
        source, real = padded([torch.randint(1, 40, (n,)) for n in (3, 7, 5)])
        tokens, scores = search(found, source, real, 1)
        for n in range(3):
            right = greedily(
                found, source[n : n + 1, : real[n].sum()], real[n : n + 1, : real[n].sum()]
            )
            assert (
                tokens[n, : len(right)].tolist()[: len(right)] == right.tolist()[: tokens.shape[1]]
            )
        better, best = search(found, source, real, 5)
        assert best.mean() >= scores.mean()
        memory = found.encode(source, real)
        inputs = torch.nn.functional.pad(better, (1, -1), value=END)
        each = found.decode(inputs, memory)[0].log_softmax(-1).gather(2, better[..., None])[..., 0]
        own = (better == END).cumsum(1) - (better == END).int() == 0  # up to END
        assert torch.allclose((each * own).sum(1) / own.sum(1), best, atol=1e-4)


def test_bleu():
    """Catches a score that does not rise with the number of right words, or that counts capitals."""
    right = ["the small cat sees the dog", "a man sleeps behind the house"]
    some = ["the small cat sees a bird", "a man sleeps behind the tree"]
    assert (
        bleu(["it is", "no"], right) < bleu(some, right) < bleu(right, right) == pytest.approx(100)
    )
    assert bleu(["The small cat sees the DOG", right[1]], right) == pytest.approx(100)
    assert by_length(["a b c", "a", "a b c d", "a b"], 2) == {2: [1, 3], 4: [0, 2]}


# ---- The experiment


def test_attention_frees_from_one_vector(monkeypatch, seed=0):
    """Catches a network without attention that sees the source, and attention that sees nothing: words to copy, few steps."""
    torch.manual_seed(seed)
    rng, config = np.random.default_rng(seed), settings("--n_embd=32", "--learning_rate=1e-2")
    rows = [np.append(rng.integers(1, 20, rng.integers(4, 13)), END) for _ in range(500)]
    losses = {}
    for name in ("none", "dot"):
        fit = translate.trials.fit
        steps = 100  # for both
        monkeypatch.setattr(
            translate.trials,
            "fit",
            lambda *args: losses.update({name: fit(*args[:2], steps, *args[3:])}),
        )
        monkeypatch.setattr(translate, "translated", lambda *args: ["a"])
        monkeypatch.setattr(translate, "alignment", lambda *args: None)
        translate.trained(config, name, range(20), [(row, row) for row in rows], [("a", "a")], seed)
        monkeypatch.undo()
    none, dot = (np.mean(losses[name][-20:]) for name in ("none", "dot"))
    assert dot < 0.5 * none and none > 1, (none, dot)


def test_a_run(tmp_path, monkeypatch):
    """Catches files, compressed ones too, that cannot be read, and what cannot go to another process."""
    short = sorted(PAIRS, key=lambda pair: len(pair[0]))[:60]
    with gzip.open(tmp_path / "en.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{english}\n" for english, _ in short)
    (tmp_path / "fr").write_text("".join(f"{french}\n" for _, french in short), encoding="utf-8")
    flags = [
        f"--source={tmp_path / 'en.gz'}",
        f"--target={tmp_path / 'fr'}",
        f"--out_dir={tmp_path}",
        "--vocab_size=400",
    ]
    flags += ["--models=none,general,transformer", "--steps=2", "--example=the cat sleeps"]
    monkeypatch.setattr(
        translate.trials,
        "every",
        lambda run, jobs: [run(*job) for job in pickle.loads(pickle.dumps(jobs))],
    )
    monkeypatch.setattr("sys.argv", ["translate.py"])
    translate.main(settings(*flags))
    report = json.loads((tmp_path / "translate.json").read_text())
    assert [row["attention"] for row in report["tables"][next(iter(report["tables"]))]] == [
        "none",
        "general",
        "transformer",
    ]
    weights = np.array(report["runs"]["general"][0]["alignment"][2])
    assert (
        weights.ndim == 2
        and np.allclose(weights.sum(1), 1)
        and report["runs"]["none"][0]["alignment"][2] is None
    )
    assert (tmp_path / "translate.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--source={}/none", "--target={}/two"], "none: No such file"),
        (["--source={}/one", "--target={}/two"], "one has 1 lines"),
        (["--source={}/empty", "--target={}/empty"], "hold no text"),
        (["--source={}/latin", "--target={}/two"], "is not UTF-8"),
        (["--source={}/fake.gz", "--target={}/two"], "is damaged"),
        (["--source={}/two"], "belong together"),
        (["--source={}/two", "--target={}/two"], "too few sentences"),
        (["--models=none,bahdanau"], "models='bahdanau' is unknown"),
        (["--beam=0"], "beam=0 must be at least 1"),
        (["--dropout=1"], "dropout=1.0"),
        (["--n_embd=30"], "n_embd=30"),
        (["--vocab_size=3"], "vocab_size=3"),
    ],
)
def test_bad_input(tmp_path, flags, message):
    """Catches a traceback for what cannot be."""
    for name, content in {
        "one": b"a\n",
        "two": b"a\nb\n",
        "empty": b"\n",
        "latin": b"\xe9t\xe9\n",
        "fake.gz": b"a",
    }.items():
        (tmp_path / name).write_bytes(content)
    assert message in complaint(
        run_here("-m", "experiments.translate", *(flag.format(tmp_path) for flag in flags))
    )
