"""Tokens as labels: any bytes, any script, in either direction."""

import pytest

from tools.shared.labels import base_direction, directions, labels


@pytest.mark.parametrize(
    "pieces, expected",
    [
        ([b"it", b" was\n\t"], ["it", "·was⏎⇥"]),
        (["é".encode(), "e\u0301".encode()], ["é", "e◌\u0301"]),
        ([b"\xf0\x9f", b"\x98", b"\x80!"], ["😀¹⁻²⁄₄", "😀³⁄₄", "😀⁴⁄₄!"]),
        ([b"a\xff", b"\x9f\x98b", b""], ["a⟨ff⟩", "⟨9f 98⟩b", "⟨⟩"]),
        (["\x00\u200d\u00a0".encode()], ["⟨U+0000⟩⟨U+200D⟩⟨U+00A0⟩"]),
    ],
)
def test_labels(pieces, expected):
    """Catches half a character, a label that cannot be seen, and one that is empty."""
    assert labels(pieces) == expected


def test_directions():
    """Catches a label that is laid out from the wrong side, or by its neighbour alone."""
    assert directions([*"אבג a1, b. גד!"]) == ["rtl"] * 4 + ["ltr"] * 5 + ["rtl"] * 5
    assert directions([*"a (ש) b"]) == ["ltr"] * 3 + ["rtl"] + ["ltr"] * 3


@pytest.mark.parametrize("before", ["<s>", "⟨9d⟩", "12 "])
def test_the_direction_of_a_text(before):
    """Catches a text laid out from the wrong side because of the token that begins it."""
    assert base_direction([before, *"שלום."]) == "rtl"
    assert base_direction([before, "x", "ש"]) == base_direction(["."]) == "ltr"
