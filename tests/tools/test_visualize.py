"""What tools.visualize writes, without a browser: the data in the page, and the pictures."""

import base64
import json
import re
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import POEM, ROOT, save, tiny

from attention import attention_weights
from engine.text import tokenizer
from tools.shared.inspection import attention_maps, entropy
from tools.visualize import VisualizeConfig, as_bytes, distance, main, page, read, rollout

NASTY = '</script><img src=x onerror=alert(1)><!-- {{style}} & "quoted" \u2028'


def saved(folder, kind="byte", text=POEM, **changes):
    encoding = tokenizer.create_tokenizer(kind, text)
    shape = dict(block_size=32, vocab_size=encoding.vocab_size, n_head=2, position="rope")
    model = tiny(**shape | changes)
    save(folder / "out", model, encoding=encoding)
    return model


def shown(folder, text, **settings):
    """The data in the page of a text."""
    pytest.importorskip("matplotlib")
    path, picture = main(VisualizeConfig(out_dir=str(folder / "out"), text=text, **settings))
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = path.read_text(encoding="utf-8")
    data = '<script type="application/json" id="data">(.*?)</script>'
    return json.loads(re.search(data, content, re.DOTALL)[1])


def weights_of(half, T):
    weights = np.zeros((T, T))
    weights[np.tril_indices(T)] = np.frombuffer(base64.b64decode(half), np.uint8) / 255
    return weights


@pytest.mark.parametrize(
    "changes",
    [
        dict(n_kv_head=1, window=5, window_pattern="SL"),
        dict(attention="masked_fill", normalize="sparsemax"),
    ],
    ids=str,
)
def test_the_page_has_what_the_model_does(tmp_path, changes):
    """Catches weights of another layer or head, a byte off by more than one, and another token."""
    model = saved(tmp_path, **changes)
    text = "Tyger Tyger\n burning"
    data = shown(tmp_path, text)
    ids = torch.tensor(list(text.encode()))
    maps, logits = attention_maps(model, ids, attention_weights)
    for layer, weights in enumerate(maps):
        for head in range(2):
            found = weights_of(data["maps"][layer][head], len(ids))
            assert np.abs(found - weights[head].numpy()).max() <= 1 / 255
        assert np.allclose(data["entropy"][layer], entropy(weights).mean(-1), atol=1e-3)
        assert np.allclose(data["distance"][layer], distance(weights).mean(-1), atol=1e-3)
        found = weights_of(data["rollout"][layer], len(ids))
        assert np.abs(found - rollout(maps)[layer].numpy()).max() <= 1 / 255

    assert data["labels"][4:7] == ["r", "·", "T"] and data["breaks"].index(True) == 11
    losses = F.cross_entropy(logits[:-1], ids[1:], reduction="none")
    assert data["losses"][0] is None and np.allclose(data["losses"][1:], losses, atol=1e-4)
    best, tops = logits.softmax(-1).topk(10)
    found = [[p for _, p in candidates] for candidates in data["next"]]
    assert np.allclose(found, best, atol=1e-4)
    for came, top, token in zip(data["came"], tops[:-1].tolist(), ids[1:], strict=True):
        assert came == (top.index(token) if token in top else None)


def test_a_page_that_cannot_be_live(tmp_path, capsys):
    """Catches a page without an answer where the model in it could not run."""
    for name, changes, reason in [
        ("linear", dict(attention="linear"), "a live page has no attention=linear"),
        ("large", dict(n_layer=1, n_embd=768), "7.3 M parameters, and a live page 5 M at most"),
    ]:
        (tmp_path / name).mkdir()
        saved(tmp_path / name, **changes)
        assert "maps" in shown(tmp_path / name, "Tyger", live=True)
        error = capsys.readouterr().err
        assert "note: the page is not live: " in error and reason in error


@pytest.mark.parametrize("name, other", [("index", "letters"), ("letters", "index")])
def test_the_pages_in_docs(name, other):
    """Catches scripts that a page in docs/ does not have yet (write page(its data) there), and a
    link to nowhere.
    """
    content = (ROOT / f"docs/{name}.html").read_text(encoding="utf-8")
    data = json.loads(content.split('id="data">')[1].split("</script>")[0])
    assert page(data) == content and len(content) < 3_000_000
    assert "live" in data and data["other"][0] == f"{other}.html"
    assert f'<a href="{other}.html">{data["other"][1]}</a>' in content


def test_linear_attention(tmp_path):
    """Catches weights that no model holds, taken for those that it computed."""
    saved(tmp_path, attention="linear")
    assert "linear attention implies" in shown(tmp_path, "Tyger")["model"]


def test_bytes():
    """Catches a small weight that becomes 0: it would look as if the token could not be seen."""
    weights = torch.tensor([[1, 0, 0], [1e-9, 1 - 1e-9, 0], [0.0, 0.4, 0.6]]).double()
    assert base64.b64decode(as_bytes(weights)) == bytes([255, 1, 255, 0, 102, 153])


def test_distance():
    """Catches a distance from the wrong end."""
    weights = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    assert distance(weights).tolist() == [0, 0.5, 1]


def test_rollout_follows_every_way_through_the_layers():
    """Catches layers in the wrong order, and a residual stream that is left out."""
    layers = torch.tensor([[[[1, 0], [1, 0]]], [[[1, 0], [0.5, 0.5]]]])
    maps = layers.expand(2, 3, 2, 2)
    first, second = rollout(maps)
    assert first.tolist() == [[1, 0], [0.5, 0.5]]
    assert second.tolist() == [[1, 0], [0.625, 0.375]]


def test_text_that_could_break_out(tmp_path):
    """Catches a text that ends the element around it: no script but ours may run."""
    saved(tmp_path, block_size=128)
    labels = "".join(shown(tmp_path, NASTY)["labels"])
    assert labels.startswith("</script><img·src=x·onerror=alert(1)><!--·{{style}}·&·")
    # With a tokenizer of words a label may be the whole text.
    content = page({"labels": [NASTY], "model": NASTY})
    assert "default-src 'none'" in content and content.count("</script>") == 11
    assert "<img" not in content and "<!--" not in content


@pytest.mark.parametrize("text, kept", [("Tyg", "^Tyg"), ("^Tyger", "^ger")])
def test_a_token_for_the_beginning(text, kept):
    """Catches a beginning that is lost, or comes twice, where the text has it or is too long."""
    encoding = tokenizer.create_tokenizer("char", "^Tyger")
    encoding.begin = tuple(encoding.encode("^").tolist())
    ids, note = read(encoding, text, 4)
    assert encoding.decode(ids.tolist()) == kept
    assert note.endswith("these are the last 3.") == (text == "^Tyger")


def test_a_text_longer_than_the_context(tmp_path, capsys):
    """Catches a text that is cut in silence, or at the wrong end; the page must say so too."""
    saved(tmp_path)
    data = shown(tmp_path, POEM)
    assert data["labels"][-4:] == [*"ry?⏎"] and len(data["labels"]) == 32
    assert "the model's context 32: these are the last 32." in data["note"]
    assert data["note"] in capsys.readouterr().err
    assert not shown(tmp_path, POEM[:32])["note"]


def test_ids_without_a_text(tmp_path):
    """Catches a candidate that is no token: ids that pad a vocabulary have no text."""
    model = saved(tmp_path, vocab_size=320, tie_weights=False)
    with torch.no_grad():
        model.lm_head.weight[256:] = 10 * model.lm_head.weight[:64]
    save(tmp_path / "out", model, 2)
    [candidates] = shown(tmp_path, "T")["next"]
    assert len(candidates) == 10 and sum(p for _, p in candidates) < 0.9


def test_a_file_and_another_folder(tmp_path, monkeypatch):
    """Catches a setting that does nothing; a published folder shows what its checkpoint shows."""
    saved(tmp_path)
    (tmp_path / "poem.txt").write_text("Tyger")
    monkeypatch.chdir(tmp_path)
    data = shown(tmp_path, "FILE:poem.txt", init_from=str(tmp_path / "out"))
    assert data["labels"] == [*"Tyger"]
    assert {path.name for path in tmp_path.glob("attention.*")} == {
        "attention.html",
        "attention.png",
    }


@pytest.mark.parametrize(
    "text, message", [("", "--text is empty"), ("Tyger ß", "'ß' .U.00DF. at position 6")]
)
def test_bad_input(tmp_path, text, message):
    """Catches a page of another text, and one that is half written."""
    saved(tmp_path, "char")
    with pytest.raises(ValueError, match=message):
        shown(tmp_path, text)
    assert not [*tmp_path.glob("out/attention.*")]


def test_without_matplotlib(tmp_path, monkeypatch):
    """Catches a traceback where the drawing library is missing."""
    saved(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match="drawing needs matplotlib: pip install matplotlib"):
        shown(tmp_path, "T")
    assert not [*(tmp_path / "out").glob("attention.*")]
