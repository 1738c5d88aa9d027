"""The model in the page: the same numbers as model.py's, and the same tokens as the tokenizer's."""

import json

import pytest
import torch
from conftest import POEM, ROOT, open_page, parametrize, tiny
from mechanisms import mechanisms

from data.words.prepare import word_tokenizer
from engine.tokenizer import create_tokenizer
from tools.shared import live
from tools.shared.inspection import attention_maps

pytest.importorskip("selenium")
pytestmark = pytest.mark.browser


@pytest.fixture
def run(chromium):
    """Runs a script in docs/index.html, whose scripts are those of tools/page/."""
    open_page(chromium, ROOT / "docs/index.html")
    return chromium.execute_script


SHAPES = [
    *mechanisms(),
    dict(n_kv_head=2, window=5, window_pattern="SL", score="dot", attention="masked_fill"),
    dict(n_kv_head=2, rope_base=100.0, qk_norm="head"),
    dict(n_kv_head=1, visible="alibi:4", tie_weights=False, bias=False, mlp="swiglu"),
]


def test_the_model_in_the_page_is_model_py(run):
    """Catches a forward pass of another model, in any mechanism, and a memory that is stale."""
    script = """
        const gpt = new GPT(JSON.parse(arguments[0])), ids = arguments[1];
        const old = gpt.read([...ids.slice(0, 7), 1, 2]);
        const {logits, layers} = gpt.read(ids, {}, gpt.read(ids.slice(0, 9), {}, old));
        const flat = (rows) => rows.flatMap((row) => [...row]);
        return [flat(logits), layers.map(({maps}) => maps.map(flat))];"""
    compared = 0
    for shape in SHAPES:
        model = tiny(**dict(position="rope") | shape)
        model.load_state_dict({name: p.half() for name, p in model.state_dict().items()})
        try:
            content = live.describe_model(model)
        except ValueError as error:
            assert str(error).startswith("a live page has no "), error
            continue
        V = model.config.vocab_size
        ids = torch.randint(V, (14,))
        maps, logits = attention_maps(model, ids)
        found, flat_maps = run(script, json.dumps(content), ids.tolist())
        assert torch.allclose(torch.tensor(found).view(-1, V), logits, atol=1e-3, rtol=0), shape
        i, j = torch.tril_indices(14, 14)
        for layer, weights in zip(flat_maps, maps, strict=True):
            assert torch.allclose(torch.tensor(layer), weights[:, i, j], atol=1e-4), shape
        compared += 1
    assert compared > 30


TEXTS = [
    "it's  DON'TS 1234 tyger, the the\n\n  tyger!\t",
    'a </script> "שלום" 😀 猫は½ e\u0301 \u200b\ufffd\ufeff ',
    "<|endoftext|>the",
    POEM,
]


@parametrize("kind", ["byte", "char", "bpe:320", "words"])
def test_a_text_has_the_same_tokens(run, kind):
    """Catches a text that is cut elsewhere, or comes back as another one."""
    if kind == "words":
        tokenizer = word_tokenizer(["the tyger"])
    else:
        tokenizer = create_tokenizer(kind, [*TEXTS, POEM * 3, "LOTS " * 99])
    script = """
        const tokenizer = new Tokenizer(JSON.parse(arguments[0]));
        const ids = tokenizer.encode(arguments[1]);
        return [ids, tokenizer.decode(ids)];"""
    content = json.dumps(live.describe_tokenizer(tokenizer))
    for text in TEXTS:
        expected = tokenizer.encode(text, allow_special=True).tolist()
        ids, back = run(script, content, text)
        assert ids == expected and back == tokenizer.decode(ids).removeprefix(" ")


@parametrize(
    "known, text, read",
    [
        ("the dog did not", "The dog, DIDN’T!", "the dog did not ."),
        ("the dog didn't it is", "The dog did not. It’s “Rex”", "the dog didn't . it is Rex"),
        ("can not", "can't: ill-fed", "can not ill fed"),
    ],
)
def test_an_ordinary_sentence(run, known, text, read):
    """Catches a capital, a mark or a short form that makes a known word unknown, and an unknown one
    that is not shown as typed.
    """
    script = """
        const tokenizer = new Tokenizer(JSON.parse(arguments[0]));
        const {ids, typed} = tokenizer.read(arguments[1]);
        return [tokenizer.decode(ids, typed), typed.filter(Boolean)];"""
    content = json.dumps(live.describe_tokenizer(word_tokenizer([known])))
    unknown = [word for word in read.split() if word not in known.split() + ["."]]
    assert run(script, content, text) == [read, unknown]
