"""Tokens as labels: any bytes, any script, in either direction."""

import pytest

from tools.shared.labels import base_direction, direction, directions, labels


def halves(text, *ends):
    """The UTF-8 bytes of a text, cut at these places."""
    data = text.encode()
    return [data[begin:end] for begin, end in zip((0, *ends), (*ends, None))]


@pytest.mark.parametrize(
    "pieces, expected",
    [
        (["it", " was\n\t"], ["it", "·was⏎⇥"]),
        (["é", "e\u0301", "\u0301"], ["é", "e◌\u0301", "◌\u0301"]),
        (halves("😀!", 2, 3), ["😀¹⁻²⁄₄", "😀³⁄₄", "😀⁴⁄₄!"]),
        (halves(" ש", 2), ["·ש¹⁄₂", "ש²⁄₂"]),
        ([b"a\xff", b"\x9f\x98b", b""], ["a⟨ff⟩", "⟨9f 98⟩b", "⟨⟩"]),
        (["\x00\u200d\u00a0"], ["⟨U+0000⟩⟨U+200D⟩⟨U+00A0⟩"]),
        ([], []),
    ],
)
def test_labels(pieces, expected):
    """Catches half a character, a label that cannot be seen, and one that is empty."""
    data = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    assert labels(data) == expected


def test_direction():
    """Catches a text that is laid out from the wrong side because it begins with a number."""
    texts = {"abc": "ltr", "": None, "12 שלום abc": "ltr", "(مرحبا": "rtl", "1 a ש": "ltr"}
    assert {text: direction(text) for text in texts} == texts
    assert directions([*"אבג a1, b. גד!"]) == ["rtl"] * 4 + ["ltr"] * 5 + ["rtl"] * 5
    assert directions([*"a (ש) b"]) == ["ltr"] * 3 + ["rtl"] + ["ltr"] * 3
    assert directions([".", "!"]) == ["ltr"] * 2


@pytest.mark.parametrize("before", ["<s>", "⟨9d⟩"])
def test_the_direction_of_a_text(before):
    """Catches a text laid out from the wrong side because of the token that begins it."""
    assert base_direction([before, *"שלום."]) == "rtl"
    assert directions([before, *"שלום."]) == ["ltr"] + ["rtl"] * 5
    assert base_direction([before, "x", "ש"]) == base_direction(["."]) == "ltr"
