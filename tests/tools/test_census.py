"""The census against counting by hand, and against heads that are known to do one thing."""

import math

import pytest
import torch
from conftest import POEM, complaint, run_here

from attention import attention_weights
from engine.plotting.inspection import attention_maps
from engine.text import dataset, tokenizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools import census as tool
from tools.census import (
    FAR,
    INDUCTION,
    KINDS,
    CensusConfig,
    census,
    gain,
    is_punctuation,
    main,
    table,
)

T = 20
MODEL = dict(
    block_size=T,
    vocab_size=13,
    n_layer=2,
    n_head=2,
    n_embd=16,
    position="rope",
    window=4,
    window_pattern="SL",
)


def model_of(**changes):
    torch.manual_seed(0)
    model = GPT(GPTConfig(**MODEL | changes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.4)
    return model


def texts_of(count=3):
    return list(torch.randint(7, (count, T), generator=torch.Generator().manual_seed(1)))


PUNCTUATION = torch.arange(13) % 3 == 0


def meant(kind, i, j, ids):
    """Whether key j is meant for query i, in the plainest words."""
    return {
        "previous token": j == i - 1,
        "first token": j == 0 and i > 0,
        "same token earlier": j < i and ids[j] == ids[i],
        "after an earlier copy": 0 < j < i and ids[j - 1] == ids[i],
        "punctuation": j <= i and ids[j] % 3 == 0,
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_chance_levels_by_hand(kind):
    """Catches a key one off, a chance level that forgets the window, and queries that have nothing to look at."""
    model, texts = model_of(), texts_of()
    scores, chances = census(model, texts, PUNCTUATION, torch.Generator())[kind]
    for layer, reach in (0, 4), (1, T):
        for head in range(2):
            found = []
            for ids in texts:
                weights = attention_maps(model, ids, attention_weights)[0][layer][head]
                for i in range(T):
                    seen = range(max(0, i - reach + 1), i + 1)
                    keys = [j for j in seen if meant(kind, i, j, ids.tolist())]
                    if any(meant(kind, i, j, ids.tolist()) for j in range(i + 1)):
                        found.append(
                            (sum(weights[i, j].item() for j in keys), len(keys) / len(seen))
                        )
            assert math.isclose(
                scores[layer, head], sum(s for s, _ in found) / len(found), rel_tol=1e-4
            )
            assert math.isclose(
                chances[layer, 0], sum(c for _, c in found) / len(found), rel_tol=1e-4
            )


def attend(monkeypatch, choose):
    """Let every head look where choose(i, j, ids) says, bool (T, T), or at everything where that is nothing."""

    def maps(model, ids, attention_weights):
        n = len(ids)
        i, j = torch.arange(n)[:, None], torch.arange(n)[None]
        chosen, causal = choose(i, j, ids) & (j <= i), (j <= i).float()
        weights = torch.where(chosen.any(-1, keepdim=True), chosen.float(), causal)
        return [(weights / weights.sum(-1, keepdim=True)).expand(2, n, n)] * 2, None

    monkeypatch.setattr(tool, "attention_maps", maps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_does_nothing_else(monkeypatch, kind):
    """Catches a kind that its own perfect head does not reach."""
    attend(monkeypatch, lambda i, j, ids: KINDS[kind](i, j, ids, PUNCTUATION[ids]))
    scores, _ = census(model_of(window=0), texts_of(), PUNCTUATION, torch.Generator())[kind]
    assert torch.allclose(scores, torch.ones(2, 2))


def test_heads_that_look_at_everything_alike(monkeypatch):
    """Catches a chance level that uniform attention does not have: then nothing would be far above chance or below it."""
    attend(monkeypatch, lambda i, j, ids: (i >= 0) & (j >= 0))
    found = census(model_of(window=0), texts_of(), PUNCTUATION, torch.Generator())
    for scores, chances in found.values():
        assert torch.allclose(gain(scores, chances), torch.zeros(2, 2), atol=1e-5)
    assert all(row["heads"] == 0 for row in table(found))


def test_an_induction_head(monkeypatch):
    """Catches an induction head that is not found, and a previous-token head that is taken for one."""
    attend(monkeypatch, lambda i, j, ids: (j == i - len(ids) // 2 + 1) & (i >= len(ids) // 2))
    scores, chances = census(model_of(window=0), texts_of(), PUNCTUATION, torch.Generator())[
        INDUCTION
    ]
    assert torch.allclose(scores, torch.ones(2, 2)) and 0 < chances[0, 0] < 1 / 4
    attend(monkeypatch, lambda i, j, ids: j == i - 1)
    scores, chances = census(model_of(window=0), texts_of(), PUNCTUATION, torch.Generator())[
        INDUCTION
    ]
    assert (gain(scores, chances) < FAR).all()


def test_an_induction_head_that_knows_one_token(monkeypatch):
    """Catches a score that no head reaches where tokens are few, as bytes are: copies of one share the attention."""
    attend(monkeypatch, lambda i, j, ids: (ids[(j - 1).clamp_min(0)] == ids[i]) & (j > 0) & (j < i))
    scores, _ = census(model_of(window=0), texts_of(), PUNCTUATION, torch.Generator())[INDUCTION]
    assert torch.allclose(scores, torch.ones(2, 2))


def test_what_is_out_of_reach():
    """Catches a head that is said to find an earlier copy which its window hides, and NaN where nothing is meant."""
    found = census(
        model_of(vocab_size=T),
        [torch.arange(T)],
        torch.zeros(T, dtype=torch.bool),
        torch.Generator(),
    )
    scores, chances = found[INDUCTION]  # each token comes once in each half
    assert (scores[0] == 0).all() and (chances[0] == 0).all() and (scores[1] > 0).all()
    scores, chances = census(model_of(), texts_of(), PUNCTUATION & False, torch.Generator())[
        "punctuation"
    ]
    assert (scores == 0).all() and (chances == 0).all()
    assert table(found)[-1]["strongest"].startswith("layer 2")


@pytest.mark.parametrize(
    "piece, wanted",
    [
        (b".", True),
        (b" ,\n", True),
        ("«".encode(), True),
        (b"+=", True),
        (b"a.", False),
        (b" ", False),
        (b"", False),
        (b"\xc2", False),
        (b"7", False),
    ],
)
def test_what_punctuation_is(piece, wanted):
    """Catches half a character, a space and a word with a full stop."""
    assert is_punctuation(piece) == wanted


@pytest.fixture
def run(tmp_path, poem):
    encoding = dataset.load_dataset(poem, 1).tokenizer
    checkpoint.save_checkpoint(
        tmp_path / "out",
        1,
        model_of(vocab_size=encoding.vocab_size),
        {"dataset": poem},
        encoding.spec(),
        {},
    )
    return tmp_path / "out"


def test_on_the_dataset_of_the_run(run, capsys):
    """Catches a census that stays silent where there is no induction head, and a picture that is not drawn."""
    main(CensusConfig(out_dir=str(run), windows=3))
    printed = capsys.readouterr().out
    assert "3 texts of 20 tokens" in printed and "config/induction.toml" in printed
    assert all(kind in printed for kind in (*KINDS, INDUCTION))
    assert (run / "census.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--out_dir={}/none"], "there is no checkpoint"),
        (["--dataset={}/other"], "has other tokens than"),
        (["--dataset={}/none"], "has no train.bin"),
        (["--windows=0"], "windows=0 must be at least 1"),
        (["--out_dir={}/nameless"], "which text? give --dataset=NAME"),
        (["--out_dir={}/short"], "a context of 3 tokens"),
    ],
)
def test_what_cannot_be_counted(run, tmp_path, flags, message):
    """Catches a traceback, and figures of a text with other tokens."""
    dataset.write_dataset(tmp_path / "other", [POEM * 30], "byte", "a poem")
    for name, changes in ("nameless", {}), ("short", {"block_size": 3}):
        checkpoint.save_checkpoint(
            tmp_path / name,
            1,
            model_of(vocab_size=256, **changes),
            {},
            tokenizer.create_tokenizer("byte").spec(),
            {},
        )
    flags = [f"--out_dir={run}", *(flag.format(tmp_path) for flag in flags)]
    assert message in complaint(run_here("-m", "tools.census", *flags))
    assert not [*tmp_path.rglob("census.png*")]
