"""The self-portrait is the first thing that a newcomer runs: it says the truth about all paths."""

import pytest

from attention import ATTENTION, causal, naive
from masks import VISIBLE
from tools.portrait import self_portrait


def test_the_self_portrait(capsys):
    """Catches a path or a mask that is left out, and an example that is not worked right."""
    assert self_portrait(lengths=(16,))
    printed = capsys.readouterr().out
    row_8_of_local_global = "■ ■ ■ · · · ■ ■ ■ ·"
    worked = "0.33  0.67", "3.30  6.70", row_8_of_local_global, "all agree"
    assert all(text in printed for text in (*worked, *ATTENTION, *VISIBLE))


def wrong_value(q, k, v, visible=causal):
    return naive(q, k, v, visible) + 1e-9


def wrong_gradient(q, k, v, visible=causal):
    return naive(q, k, v, visible) + 1e-9 * (q - q.detach())


@pytest.mark.parametrize("path", [wrong_value, wrong_gradient])
def test_a_wrong_path(path, monkeypatch, capsys):
    """Catches "all agree" of a fork's own path whose value or gradient is wrong."""
    monkeypatch.setitem(ATTENTION, "wrong", path)
    assert not self_portrait(lengths=(16,))
    assert "THEY DO NOT AGREE" in capsys.readouterr().out
