"""What tools.visualize writes, without a browser: the data in the page, and the pictures."""

import base64
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import POEM, ROOT, complaint, run_here

from attention import attention_weights
from engine.plotting.inspection import attention_maps, distance, entropy, losses, rollout
from engine.text import tokenizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools.visualize import VisualizeConfig, as_bytes, main, page, read

NASTY = '</script><img src=x onerror=alert(1)><!-- {{style}} & "quoted" \u2028'


def saved(folder, kind="byte", text=POEM, **changes):
    torch.manual_seed(0)
    encoding = tokenizer.create_tokenizer(kind, text)
    settings = dict(
        block_size=32,
        n_layer=2,
        n_head=2,
        n_embd=16,
        vocab_size=encoding.vocab_size,
        position="rope",
    )
    model = GPT(GPTConfig(**settings | changes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.4)
    checkpoint.save_checkpoint(folder / "out", 1, model, {}, encoding.spec(), {})
    return model


def shown(folder, text, **settings):
    """What the page of a text holds."""
    path, picture = main(VisualizeConfig(out_dir=str(folder / "out"), text=text, **settings))
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = path.read_text(encoding="utf-8")
    return json.loads(
        re.search('<script type="application/json" id="data">(.*?)</script>', content, re.DOTALL)[1]
    )


def weights_of(half, T):
    weights = np.zeros((T, T))
    weights[np.tril_indices(T)] = np.frombuffer(base64.b64decode(half), np.uint8) / 255
    return weights


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(n_kv_head=1),
        dict(window=5, window_pattern="SL"),
        dict(attention="linear"),
        dict(attention="performer"),
        dict(attention="masked_fill", normalize="sparsemax"),
    ],
    ids=str,
)
def test_the_page_holds_what_the_model_does(tmp_path, changes):
    """Catches weights of another layer or head, a byte that is off by more than one, and figures of another token."""
    model, text = saved(tmp_path, **changes), "Tyger Tyger\n burning"
    data, ids = shown(tmp_path, text), torch.tensor(list(text.encode()))
    maps, logits = attention_maps(model, ids, attention_weights)
    T = len(ids)
    for layer, weights in enumerate(maps):
        for head in range(2):
            found = weights_of(data["maps"][layer][head], T)
            assert np.abs(found - weights[head].numpy()).max() <= 1 / 255
            assert ((found == 0) == (weights[head].numpy() == 0)).all()
        assert np.allclose(data["entropy"][layer], entropy(weights).mean(-1), atol=1e-3)
        assert np.allclose(data["distance"][layer], distance(weights).mean(-1), atol=1e-3)
        assert (
            np.abs(weights_of(data["rollout"][layer], T) - rollout(maps)[layer].numpy()).max()
            <= 1 / 255
        )
    assert data["labels"][4:7] == ["r", "·", "T"] and data["breaks"].index(True) == 11
    assert np.allclose(data["losses"][1:], losses(logits, ids), atol=1e-4)
    probabilities = logits.softmax(-1)
    for n, candidates in enumerate(data["next"]):
        assert np.allclose([p for _, p in candidates], probabilities[n].topk(10).values, atol=1e-4)
    tops = probabilities.topk(10).indices.tolist()
    assert data["came"] == [
        top.index(token) if token in top else None for top, token in zip(tops, ids[1:].tolist())
    ]
    assert ("linear attention implies" in data["model"]) == (
        changes.get("attention") in ("linear", "performer")
    )


def test_bytes():
    """Catches a small weight that becomes 0: it would look as if the token could not be seen."""
    weights = np.tril(np.array([[1, 0, 0], [1e-9, 1 - 1e-9, 0], [0.0, 0.4, 0.6]]))
    assert base64.b64decode(as_bytes(weights)) == bytes([255, 1, 255, 0, 102, 153])


def test_text_that_could_break_out(tmp_path):
    """Catches a text that ends the element which holds it: no script but ours may run."""
    saved(tmp_path, block_size=128)
    data = shown(tmp_path, NASTY)
    assert "".join(data["labels"]).startswith(
        "</script><img·src=x·onerror=alert(1)><!--·{{style}}·&·"
    )
    content = (tmp_path / "out" / "attention.html").read_text(encoding="utf-8")
    assert (
        content.count("</script>") == 5
        and "<img" not in content
        and content.count("default-src 'none'") == 1
    )
    content = page(
        {"labels": [NASTY], "model": NASTY}
    )  # as with a tokenizer of words: bytes would never come together
    assert content.count("</script>") == 5 and "<img" not in content and "<!--" not in content


def test_a_token_for_the_beginning():
    """Catches a beginning that is lost, or comes twice, where the text brings it along or is longer than the context."""
    encoding = tokenizer.create_tokenizer("char", "^Tyger")
    encoding.begin = tuple(encoding.encode("^").tolist())
    for text, wanted in (
        ("Tyg", "^Tyg"),
        ("^Tyg", "^Tyg"),
        ("^", "^"),
        ("Tyger", "^ger"),
        ("^Tyger", "^ger"),
    ):
        ids, note = read(encoding, text, 4)
        assert encoding.decode(ids.tolist()) == wanted
        assert note == (
            "The text has 5 tokens, the model's context 4: these are the last 3."
            if wanted == "^ger"
            else ""
        )


@pytest.mark.parametrize(
    "text, way, labels",
    [
        ("שלום", "rtl", ["ש¹⁄₂", "ש²⁄₂"]),
        ("مرحبا", "rtl", ["م¹⁄₂"]),
        ("😀👨‍👩", "ltr", ["😀¹⁄₄", "😀²⁄₄", "😀³⁄₄", "😀⁴⁄₄"]),
        ("日本", "ltr", ["日¹⁄₃"]),
    ],
)
def test_other_scripts(tmp_path, text, way, labels):
    """Catches half a character, by bytes, and a line that runs the wrong way; by characters, labels are the characters."""
    saved(tmp_path)
    data = shown(tmp_path, text)
    assert data["direction"] == way and data["labels"][: len(labels)] == labels
    assert "\ufffd" not in "".join(data["labels"])
    saved(tmp_path / "char", "char", text)
    assert shown(tmp_path / "char", text)["labels"][0] == text[0]


def test_a_text_longer_than_the_context(tmp_path, capsys):
    """Catches a text that is cut in silence, or at the wrong end; the page must say so too."""
    saved(tmp_path)
    data = shown(tmp_path, POEM)
    assert data["labels"][-4:] == [*"ry?⏎"] and len(data["labels"]) == 32
    assert (
        data["note"]
        == f"The text has {len(POEM)} tokens, the model's context 32: these are the last 32."
    )
    assert data["note"] in capsys.readouterr().err
    assert not shown(tmp_path, POEM[:32])["note"]


def test_one_token(tmp_path):
    """Catches a text too short for a loss."""
    saved(tmp_path)
    data = shown(tmp_path, "T")
    assert data["losses"] == [None] and data["entropy"] == [[0, 0], [0, 0]]


def test_ids_without_a_text(tmp_path):
    """Catches a candidate that is no token: a vocabulary may be padded with ids that no text has."""
    model = saved(tmp_path, vocab_size=320, tie_weights=False)
    with torch.no_grad():
        model.lm_head.weight[256:] = 10 * model.lm_head.weight[:64]
    checkpoint.save_checkpoint(tmp_path / "out", 2, model, {}, {"kind": "byte"}, {}, {})
    data = shown(tmp_path, "Tyger")
    assert [len(candidates) for candidates in data["next"]] == [10] * 5 and sum(
        p for _, p in data["next"][0]
    ) < 0.9


def test_a_file_another_folder_and_one_head(tmp_path):
    """Catches a setting that does nothing; a published folder shows what its checkpoint shows."""
    saved(tmp_path)
    (tmp_path / "poem.txt").write_text("Tyger", encoding="utf-8")
    data = shown(
        tmp_path,
        f"FILE:{tmp_path / 'poem.txt'}",
        layer=2,
        head=1,
        to=str(tmp_path / "new" / "there"),
    )
    assert (data["layer"], data["head"], data["labels"]) == (2, 1, [*"Tyger"])
    assert (tmp_path / "new" / "there" / "attention.png").exists() and not (
        tmp_path / "out" / "attention.png"
    ).exists()
    again = main(
        VisualizeConfig(init_from=str(tmp_path / "out"), text="Tyger", to=str(tmp_path / "again"))
    )
    assert [path.name for path in again] == ["attention.html", "attention.png"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--text="], "--text is empty"),
        ([], "--text is empty"),
        (["--text=Tyger ß"], "'ß' (U+00DF) at position 6"),
        (["--text=FILE:{}/none.txt"], "none.txt"),
        (["--text=T", "--layer=3", "--head=1"], "this model has layers 1 to 2 and heads 1 to 2"),
        (["--text=T", "--layer=1"], "give both --layer and --head"),
        (["--text=T", "--head=-1"], "head=-1 must be at least 0"),
        (["--text=T", "--out_dir={}/none"], "there is no checkpoint"),
        (["--text=T", "--init_from={}/none"], "neither a folder nor"),
        (["--text=T", "--checkpoint=step_9"], "step_9"),
        (["--text=T", "--to={}/poem.txt/there"], "poem.txt"),
    ],
)
def test_what_cannot_be_shown(tmp_path, flags, message):
    """Catches a traceback, a page for something else than was asked, and one that is half written."""
    saved(tmp_path, "char")
    (tmp_path / "poem.txt").write_text(POEM)
    flags = [f"--out_dir={tmp_path / 'out'}", *(flag.format(tmp_path) for flag in flags)]
    assert message in complaint(run_here("-m", "tools.visualize", *flags))
    assert not [*tmp_path.rglob("attention.*")]


def test_without_matplotlib(tmp_path):
    """Catches a traceback where the drawing library is missing."""
    saved(tmp_path)
    code = (
        "import sys, runpy; sys.modules['matplotlib'] = None; "
        f"sys.argv = ['visualize', '--text=T', '--out_dir={tmp_path / 'out'}']; "
        "runpy.run_module('tools.visualize', run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert complaint(result) == "visualize: drawing needs matplotlib: pip install matplotlib"
    assert not [*(tmp_path / "out").glob("attention.*")]
