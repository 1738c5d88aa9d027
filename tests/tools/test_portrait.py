"""The self-portrait is the first thing that a newcomer runs: it says the truth about all paths."""

from conftest import output_of, parametrize

from attention import ATTENTION, causal, fused
from masks import VISIBLE
from tools import portrait
from tools.shared.worked import EXAMPLES


def test_the_self_portrait(capsys):
    """Catches a path, a mask or an example that is left out."""
    assert portrait.self_portrait(lengths=(16,))
    printed = capsys.readouterr().out
    row_8_of_local_global = "■ ■ · · · · ■ ■ ■ ·"
    names = [*ATTENTION, *VISIBLE, *(f"{name}: " for name in EXAMPLES)]
    assert all(text in printed for text in [*names, row_8_of_local_global, "all agree"])


# Inputs, then step by step and row by row, to two digits.
BY_HAND = """
two-tokens: 0.50 0.00 / 1.00 0.00 / 1.00 0.00 / 2.00 0.00 / 10.00 0.00 / 0.00 10.00 / 0.50 1.00
  / 1.00 2.00 / 0.35 0.71 / 0.71 1.41 / 0.41 0.59 / 0.33 0.67 / 4.13 5.87 / 3.30 6.70 / 1.00
  0.00 / 0.33 0.67 / 10.00 0.00 / 3.30 6.70
look-up: 1.00 0.00 / 0.60 0.80 / 0.00 1.00 / 120.00 / 80.00 / 45.00 / 1.00 0.00 / 0.00 1.00 /
  1.00 0.60 0.00 / 0.00 0.80 1.00 / 0.49 0.33 0.18 / 0.17 0.37 0.46 / 93.31 / 70.72 / 109.83 /
  58.33 / 119.28 / 49.17 / 120.00 / 45.00 / 120.00 / 45.00
translation: 0.20 0.10 / 1.50 0.30 / 0.10 1.20 / 2.00 0.40 / 0.44 3.12 0.68 / 0.06 0.87 0.08 /
  1.32 0.36
additive: 1.00 0.50 / 0.80 -0.20 / 0.50 -0.30 / 0.20 0.40 / 0.10 0.60 / -0.40 0.30 / 1.00 -0.50
  / 0.60 -0.10 / 0.16 0.42 / 0.64 0.31 / 0.49
projections: 1.00 2.00 / 1.00 0.50 / 0.00 1.00 / 0.50 0.00 / 1.00 1.00 / 2.00 0.00 / 0.00 2.00 /
  2.00 2.00 / 0.50 3.00 / 2.00 4.00
self-attention: 1.00 0.00 / 0.00 1.00 / 1.00 1.00 / 1.00 0.00 / 0.00 2.00 / 1.00 1.00 / 1.00
  0.00 / 0.00 1.00 / 2.00 2.00 / 0.71 0.00 0.71 / 0.00 1.41 0.71 / 0.71 1.41 1.41 / 0.40 0.20
  0.40 / 0.14 0.58 0.28 / 0.20 0.40 0.40 / 1.20 1.00 / 0.71 1.14 / 1.00 1.20
causal-mask: 0.00 0.00 / 1.00 0.00 / 0.00 1.00 / 1.00 2.00 / 0.00 2.00 / 0.00 2.00 / 0.00 0.00
  0.00 / 1.00 0.00 0.00 / 2.00 2.00 2.00 / 0.00 -inf -inf / 0.00 0.00 -inf / 0.00 0.00 0.00 /
  0.00 -inf -inf / 1.00 0.00 -inf / 2.00 2.00 2.00 / 1.00 0.00 0.00 / 0.73 0.27 0.00 / 0.33 0.33
  0.33
temperatures: 2.10 1.00 0.50 0.10 / 1.00 0.00 0.00 0.00 / 0.85 0.09 0.03 0.02 / 0.60 0.20 0.12
  0.08 / 0.42 0.24 0.19 0.15 / 0.33 0.25 0.22 0.20
scale: 22.00 0.00 -22.00 / 1.00 0.00 0.00 / 0.97 0.00 -0.97 / 0.66 0.25 0.09
traffic: 1024.00 4096.00 16384.00 / 0.26 1.05 4.19 / 4.19 67.11 1073.74 / 7.34 117.44 1879.05 /
  0.13 0.52 2.10 / 0.33 4.46 68.16 / 0.82 11.14 170.39
"""


@parametrize("name", EXAMPLES)
def test_a_worked_example(name):
    """Catches an example whose numbers are not what its words say, and a name that is ignored."""
    lines = output_of("attention.py", name).splitlines()[2:]
    found = " / ".join(" ".join(line[36:].split()) for line in lines)
    assert f" {name}: {found} " in " ".join(BY_HAND.split()).join("  ")


def test_a_wrong_path(monkeypatch, capsys):
    """Catches "all agree" of a fork's own path whose gradient is wrong."""

    def wrong(q, k, v, visible=causal):
        return fused(q, k, v, visible) + 1e-9 * (q - q.detach())

    monkeypatch.setitem(ATTENTION, "wrong", wrong)
    assert not portrait.self_portrait(lengths=(16,))
    assert "THEY DO NOT AGREE" in capsys.readouterr().out
