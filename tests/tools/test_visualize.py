"""What tools.visualize writes, without a browser: the data in the page, and the picture."""

import dataclasses
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from conftest import POEM, ROOT, data_of, parametrize, refused, save, tiny

from engine.generate import encode_prompt
from engine.tokenizer import create_tokenizer
from tools import visualize
from tools.shared import live
from tools.shared.inspection import attention_maps
from tools.visualize import VisualizeConfig, draw, main, page

pytestmark = pytest.mark.usefixtures("here")


def saved(**changes):
    """A model of bytes, which is also saved to out."""
    model = tiny(
        **dict(block_size=32, vocab_size=320, position="rope", tie_weights=False) | changes
    )
    model.lm_head.weight.data[256:] = 10 * model.lm_head.weight[:64]
    save("out", model)
    return model


def shown(text, **settings):
    """The data in the page of a text."""
    pytest.importorskip("matplotlib")
    path, picture = main(VisualizeConfig(text=text, **settings))
    assert picture.read_bytes().startswith(b"\x89PNG")
    return data_of(path.read_text())


def test_what_is_read_and_what_may_come(capsys):
    """Catches a text that is cut in silence, or at the wrong end, and a next token that is none:
    ids that pad a vocabulary have no text. Weights and losses are in test_page.py.
    """
    saved()
    data = shown(POEM)
    assert "the model reads the last 32" in capsys.readouterr().err
    assert "".join(data["pieces"]) == POEM[-32:]
    assert all(len(row) == 10 and max(id for id, *_ in row) < 256 for row in data["next"])


def test_the_picture():
    """Catches a picture with the heads in another place, or with the columns as rows."""
    pytest.importorskip("matplotlib")
    maps, _ = attention_maps(saved(), torch.arange(9))
    panels = draw(maps, [*"Tyger and"], "").axes
    for panel, weights in zip(panels, torch.cat(maps)):
        assert np.allclose(panel.images[0].get_array().filled(0) ** 2, weights)


def test_what_a_page_cannot_be():
    """Catches a live page whose model could not run in it: it is linear, or a fork has given it a
    field and a tensor that the page's scripts do not know.
    """
    model = saved(attention="linear")
    assert "maps" in shown("Tyger")
    model.config = dataclasses.make_dataclass("Fork", [("gated", bool, True)])()
    model.transformer.h[0].gate = torch.nn.Parameter(torch.ones(()))
    with refused("no transformer.h.0.gate, gated=True"):
        live.describe_model(model)
    with refused("a live page has no attention=linear"):
        shown("Tyger", live=True)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_a_page_that_computes_something_else(monkeypatch):
    """Catches a page of another model than the checkpoint's, as of a fork's code."""
    saved()
    assert "live" in shown("Tyger", live=True)
    monkeypatch.setattr(visualize, "attention_maps", lambda *_: ([], torch.zeros(5, 320)))
    with refused("other numbers than this model"):
        shown("Tyger", live=True)


@parametrize("name", ["index", "letters"])
def test_the_pages_in_docs(name):
    """Catches scripts that a page in docs/ does not have yet: write page(its data) there."""
    content = (ROOT / f"docs/{name}.html").read_text()
    data = data_of(content)
    assert page(data) == content and "live" in data and len(content) < 3_000_000
    assert (ROOT / "docs" / data["other"][0]).exists()


def test_text_that_could_break_out():
    """Catches a text that ends the element around it, or that asks for another file: no script but
    ours may run.
    """
    text = '</script><img src=x onerror=alert(1)><!-- {{style.css}} & "quoted" \u2028'
    content = page({"pieces": [text], "model": text})
    assert "default-src 'none'" in content and content.count("</script>") == 14
    assert "<img" not in content and "<!--" not in content
    assert not re.search('(src|href)="?http', content)
    assert data_of(content)["model"] == text


@parametrize("text, kept", [("Tyg", "^Tyg"), ("^Tyg", "^Tyg"), ("^Tyger", "^ger")])
def test_a_token_for_the_beginning(text, kept):
    """Catches a beginning that is lost, or comes twice, where the text has it or is too long."""
    encoding = create_tokenizer("char", "^Tyger")
    encoding.begin = tuple(encoding.encode("^").tolist())
    ids = encode_prompt(encoding, text, 4, "--text")
    assert encoding.decode(ids.tolist()) == kept


def test_without_matplotlib(monkeypatch, tmp_path):
    """Catches a traceback where the drawing library is missing, and a page without its picture."""
    saved()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refused("pip install matplotlib"):
        main(VisualizeConfig(text="Tyger"))
    assert not [*tmp_path.glob("out/attention.*")]
