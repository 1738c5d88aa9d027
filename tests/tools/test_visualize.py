"""What tools.visualize writes, without a browser: the data in the page, and the pictures."""

import base64
import json
import re
import sys

import pytest
import torch
from conftest import POEM, ROOT, save, tiny

from engine.text import tokenizer
from tools.visualize import VisualizeConfig, as_bytes, main, page, read

pytestmark = pytest.mark.usefixtures("here")


def saved(kind="byte", **changes):
    encoding = tokenizer.create_tokenizer(kind, POEM)
    model = tiny(**dict(block_size=32, vocab_size=encoding.vocab_size, position="rope") | changes)
    save("out", model, encoding=encoding)
    return model


def shown(text, **settings):
    """The data in the page of a text."""
    pytest.importorskip("matplotlib")
    path, picture = main(VisualizeConfig(text=text, **settings))
    assert picture.read_bytes().startswith(b"\x89PNG")
    return data_of(path.read_text(encoding="utf-8"))


def data_of(content):
    return json.loads(content.split('id="data">')[1].split("</script>")[0])


def test_what_is_read_and_what_may_come(capsys):
    """Catches a text that is cut in silence, or at the wrong end, and a next token that is none:
    ids that pad a vocabulary have no text.
    """
    model = saved(vocab_size=320, tie_weights=False)
    model.lm_head.weight.data[256:] = 10 * model.lm_head.weight[:64]
    save("out", model, 2)
    data = shown(POEM)
    assert "the model's context 32: these are the last 32." in data["note"]
    assert data["note"] in capsys.readouterr().err
    assert "".join(data["pieces"]) == POEM[-32:]
    assert all(len(row) == 10 and max(id for id, *_ in row) < 256 for row in data["next"])
    assert not shown(POEM[:32])["note"]


@pytest.mark.parametrize(
    "changes, reason, name",
    [
        (
            dict(attention="linear"),
            "a live page has no attention=linear",
            "out/step_000001: the weights that linear attention implies",
        ),
        (
            dict(n_layer=1, n_embd=768),
            "the model has 7.3 M parameters, and a live page 5 M at most",
            "out/step_000001",
        ),
    ],
)
def test_what_a_page_cannot_be(changes, reason, name, capsys):
    """Catches a page without an answer where the model in it could not run, and weights that no
    model holds, taken for those that it computed.
    """
    saved(**changes)
    data = shown("Tyger", live=True)
    assert "maps" in data and data["model"] == name
    assert f"note: the page is not live: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize("name, other", [("index", "letters"), ("letters", "index")])
def test_the_pages_in_docs(name, other):
    """Catches scripts that a page in docs/ does not have yet (write page(its data) there), and a
    link to nowhere.
    """
    content = (ROOT / f"docs/{name}.html").read_text(encoding="utf-8")
    data = data_of(content)
    assert page(data) == content and len(content) < 3_000_000
    assert "live" in data and data["other"][0] == f"{other}.html"
    assert f'<a href="{other}.html">{data["other"][1]}</a>' in content


def test_bytes():
    """Catches a small weight that becomes 0: it would look as if the token could not be seen."""
    weights = torch.tensor([[1, 0, 0], [1e-9, 1 - 1e-9, 0], [0.0, 0.16, 0.84]]).double()
    assert base64.b64decode(as_bytes(weights)) == bytes([255, 1, 255, 0, 102, 234])


def test_text_that_could_break_out():
    """Catches a text that ends the element around it, or that asks for another file: no script but
    ours may run.
    """
    text = '</script><img src=x onerror=alert(1)><!-- {{style.css}} & "quoted" \u2028'
    content = page({"pieces": [text], "model": text})
    assert "default-src 'none'" in content and content.count("</script>") == 11
    assert "<img" not in content and "<!--" not in content
    assert not re.search('(src|href)="?http', content)
    assert data_of(content)["model"] == text


@pytest.mark.parametrize("text, kept", [("Tyg", "^Tyg"), ("^Tyg", "^Tyg"), ("^Tyger", "^ger")])
def test_a_token_for_the_beginning(text, kept):
    """Catches a beginning that is lost, or comes twice, where the text has it or is too long."""
    encoding = tokenizer.create_tokenizer("char", "^Tyger")
    encoding.begin = tuple(encoding.encode("^").tolist())
    ids, note = read(encoding, text, 4)
    assert encoding.decode(ids.tolist()) == kept
    assert note.endswith("these are the last 3.") == (text == "^Tyger")


def test_a_file_and_another_folder(tmp_path):
    """Catches a setting that does nothing; a published folder shows what its checkpoint shows."""
    saved()
    (tmp_path / "poem.txt").write_text("Tyger")
    assert shown("FILE:poem.txt", init_from="out")["pieces"] == [*"Tyger"]
    assert {path.name for path in tmp_path.glob("att*")} == {"attention.html", "attention.png"}


def test_bad_input(tmp_path, monkeypatch):
    """Catches a page of another text, one that is half written, and a traceback where the drawing
    library is missing.
    """
    saved("char")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for text, message in [
        ("", "--text is empty"),
        ("Tyger ß", "'ß' .U.00DF. at position 6"),
        ("T", "drawing needs matplotlib: pip install matplotlib"),
    ]:
        with pytest.raises(ValueError, match=message):
            shown(text)
    assert not [*tmp_path.glob("out/attention.*")]
