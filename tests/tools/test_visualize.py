"""What tools.visualize writes, without a browser: the data in the page, and the pictures."""

import base64
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import POEM, ROOT, complaint, run_here, tiny

from attention import attention_weights
from engine.plotting.inspection import attention_maps, entropy
from engine.text import tokenizer
from engine.weights import checkpoint
from tools.visualize import VisualizeConfig, as_bytes, distance, draw, main, page, read, rollout

NASTY = '</script><img src=x onerror=alert(1)><!-- {{style}} & "quoted" \u2028'


def saved(folder, kind="byte", text=POEM, **changes):
    encoding = tokenizer.create_tokenizer(kind, text)
    shape = dict(block_size=32, vocab_size=encoding.vocab_size, n_head=2, position="rope")
    model = tiny(**shape | changes)
    checkpoint.save_checkpoint(folder / "out", 1, model, {}, encoding.spec(), {})
    return model


def shown(folder, text, **settings):
    """The data in the page of a text."""
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
        dict(attention="linear"),
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
    T = len(ids)
    for layer, weights in enumerate(maps):
        for head in range(2):
            found = weights_of(data["maps"][layer][head], T)
            assert np.abs(found - weights[head].numpy()).max() <= 1 / 255
            assert ((found == 0) == (weights[head].numpy() == 0)).all()
        assert np.allclose(data["entropy"][layer], entropy(weights).mean(-1), atol=1e-3)
        assert np.allclose(data["distance"][layer], distance(weights).mean(-1), atol=1e-3)
        found = weights_of(data["rollout"][layer], T)
        assert np.abs(found - rollout(maps)[layer].numpy()).max() <= 1 / 255

    assert (
        data["direction"] == "ltr"
        and data["labels"][4:7] == ["r", "·", "T"]
        and data["breaks"].index(True) == 11
    )
    losses = F.cross_entropy(logits[:-1], ids[1:], reduction="none")
    assert data["losses"][0] is None and np.allclose(data["losses"][1:], losses, atol=1e-4)
    best, tops = logits.softmax(-1).topk(10)
    for candidates, values in zip(data["next"], best, strict=True):
        assert np.allclose([p for _, p in candidates], values, atol=1e-4)
    for came, top, token in zip(data["came"], tops[:-1].tolist(), ids[1:].tolist(), strict=True):
        assert came == (top.index(token) if token in top else None)
    is_linear = changes.get("attention") == "linear"
    assert ("linear attention implies" in data["model"]) == is_linear


def test_bytes():
    """Catches a small weight that becomes 0: it would look as if the token could not be seen."""
    weights = torch.tensor([[1, 0, 0], [1e-9, 1 - 1e-9, 0], [0.0, 0.4, 0.6]]).double()
    assert base64.b64decode(as_bytes(weights)) == bytes([255, 1, 255, 0, 102, 153])


def test_distance():
    """Catches a distance from the wrong end."""
    weights = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    assert distance(weights).tolist() == [0, 0.5, 1]


def test_rollout_follows_every_way_through_the_layers():
    """Catches layers in the wrong order, by a sum over all ways from i down to j."""
    random = torch.rand(2, 2, 5, 5, generator=torch.Generator().manual_seed(2)).double().tril()
    maps = [weights / weights.sum(-1, keepdim=True) for weights in random]
    mixed = [weights.mean(0) / 2 + torch.eye(5).double() / 2 for weights in maps]
    first, second = rollout(maps)
    assert torch.allclose(first, mixed[0])
    for i in range(5):
        for j in range(5):
            ways = sum(mixed[1][i, m] * mixed[0][m, j] for m in range(5))
            assert math.isclose(second[i, j], ways, abs_tol=1e-12)


def test_every_head_has_its_panel():
    """Catches heads in the wrong place."""
    maps = [torch.eye(3).repeat(2, 1, 1) * 0.25 * (layer + 1) for layer in range(2)]
    maps[0][1] /= 2
    figure = draw(maps, [*"abc"], "a$b^{c$: a folder")
    panels = figure.axes[:4]
    found = [panel.images[0].get_array()[0, 0] ** 2 for panel in panels]
    assert np.allclose(found, [0.25, 0.125, 0.5, 0.5])
    assert panels[1].get_title() == "head 2" and panels[2].get_ylabel() == "layer 2"


def test_text_that_could_break_out(tmp_path):
    """Catches a text that ends the element around it: no script but ours may run."""
    saved(tmp_path, block_size=128)
    labels = "".join(shown(tmp_path, NASTY)["labels"])
    assert labels.startswith("</script><img·src=x·onerror=alert(1)><!--·{{style}}·&·")
    content = (tmp_path / "out" / "attention.html").read_text(encoding="utf-8")
    assert content.count("default-src 'none'") == 1
    # With a tokenizer of words a label may be the whole text.
    for content in content, page({"labels": [NASTY], "model": NASTY}):
        assert content.count("</script>") == 5
        assert "<img" not in content
    assert "<!--" not in content


@pytest.mark.parametrize(
    "text, kept", [("Tyg", "^Tyg"), ("^", "^"), ("Tyger", "^ger"), ("^Tyger", "^ger")]
)
def test_a_token_for_the_beginning(text, kept):
    """Catches a beginning that is lost, or comes twice, where the text has it or is too long."""
    encoding = tokenizer.create_tokenizer("char", "^Tyger")
    encoding.begin = tuple(encoding.encode("^").tolist())
    ids, note = read(encoding, text, 4)
    assert encoding.decode(ids.tolist()) == kept
    cut = "The text has 5 tokens, the model's context 4: these are the last 3."
    assert note == (cut if "Tyger" in text else "")


def test_a_text_longer_than_the_context(tmp_path, capsys):
    """Catches a text that is cut in silence, or at the wrong end; the page must say so too."""
    saved(tmp_path)
    data = shown(tmp_path, POEM)
    assert data["labels"][-4:] == [*"ry?⏎"] and len(data["labels"]) == 32
    start = f"The text has {len(POEM)} tokens, the model's context 32"
    assert data["note"] == f"{start}: these are the last 32."
    assert data["note"] in capsys.readouterr().err
    assert not shown(tmp_path, POEM[:32])["note"]


def test_one_token(tmp_path):
    """Catches a text too short for a loss."""
    saved(tmp_path)
    data = shown(tmp_path, "T")
    assert data["losses"] == [None] and data["entropy"] == [[0, 0], [0, 0]]


def test_ids_without_a_text(tmp_path):
    """Catches a candidate that is no token: ids that pad a vocabulary have no text."""
    model = saved(tmp_path, vocab_size=320, tie_weights=False)
    with torch.no_grad():
        model.lm_head.weight[256:] = 10 * model.lm_head.weight[:64]
    checkpoint.save_checkpoint(tmp_path / "out", 2, model, {}, {"kind": "byte"}, {}, {})
    candidates = shown(tmp_path, "Tyger")["next"]
    assert [len(row) for row in candidates] == [10] * 5
    assert sum(p for _, p in candidates[0]) < 0.9


def test_a_file_and_another_folder(tmp_path, monkeypatch):
    """Catches a setting that does nothing; a published folder shows what its checkpoint shows."""
    saved(tmp_path)
    (tmp_path / "poem.txt").write_text("Tyger", encoding="utf-8")
    assert shown(tmp_path, f"FILE:{tmp_path / 'poem.txt'}")["labels"] == [*"Tyger"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert shown(tmp_path, "Tyger", init_from=str(tmp_path / "out"))["labels"] == [*"Tyger"]
    written = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert written == ["attention.html", "attention.png"]


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "--text is empty"),
        (["--text=Tyger ß"], "'ß' (U+00DF) at position 6"),
        (["--text=FILE:{}/none.txt"], "none.txt"),
        (["--text=T", "--out_dir={}/none"], "there is no checkpoint"),
    ],
)
def test_bad_input(tmp_path, flags, message):
    """Catches a traceback, a page of another text, and one that is half written."""
    saved(tmp_path, "char")
    flags = [f"--out_dir={tmp_path / 'out'}", *(flag.format(tmp_path) for flag in flags)]
    assert message in complaint(run_here("-m", "tools.visualize", *flags))
    assert not [*tmp_path.rglob("attention.*")]


def test_without_matplotlib(tmp_path):
    """Catches a traceback where the drawing library is missing."""
    saved(tmp_path)
    code = (
        "import sys, runpy; sys.modules['matplotlib'] = None; "
        f"sys.argv = ['visualize', '--text=T', '--out_dir={tmp_path / 'out'}']; "
        "runpy.run_module('tools.visualize', run_name='__main__', alter_sys=True)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "drawing needs matplotlib: pip install matplotlib" in complaint(result)
    assert not [*(tmp_path / "out").glob("attention.*")]
