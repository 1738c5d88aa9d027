"""The self-portrait is what a newcomer runs first: it must say the truth about every path that is there."""

import io
import sys

import pytest

from attention import ATTENTION, causal, naive
from masks import VISIBLE
from tools.portrait import self_portrait


def test_the_self_portrait(capsys):
    """Catches a portrait that fails, that leaves out a path or a mask, or whose example is not worked right."""
    assert self_portrait(lengths=(16,))
    printed = capsys.readouterr().out
    assert (
        "0.33  0.67" in printed
        and "3.30  6.70" in printed
        and printed.rstrip().endswith("all agree")
    )
    for name in [*ATTENTION, *VISIBLE]:
        assert name in printed
    assert "■ ■ ■ · · · ■ ■ ■ ·" in printed  # row 8 of local_global(3, 3)


@pytest.mark.parametrize(
    "path",
    [
        lambda q, k, v, visible=causal: naive(q, k, v, visible) + 1e-9,
        lambda q, k, v, visible=causal: naive(q, k, v, visible) + 1e-9 * (q - q.detach()),
    ],
    ids=["value", "gradient"],
)
def test_a_wrong_path(path, monkeypatch, capsys):
    """Catches a portrait that says "all agree" of a path, added by whoever forks this, whose value or gradient is wrong."""
    monkeypatch.setattr("tools.portrait.ATTENTION", {"wrong": path})
    assert not self_portrait(lengths=(16,))
    assert capsys.readouterr().out.rstrip().endswith("THEY DO NOT AGREE")


def test_the_self_portrait_without_utf8(monkeypatch):
    """Catches masks that cannot be drawn, or read, where the output is a file on Windows."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", output)
    assert self_portrait(lengths=(16,))
    output.seek(0)
    text = output.read()
    assert "# # # . . ." in text and "u25a0" not in text
