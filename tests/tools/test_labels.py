"""Tokens as one reads them: any bytes, any script, in either direction."""

import pytest

from tools.shared.labels import base_direction, direction, directions, labels


@pytest.mark.parametrize(
    "pieces, wanted",
    [
        (["it", " was\n\t"], ["it", "·was⏎⇥"]),
        (["é", "e\u0301", "\u0301"], ["é", "e◌\u0301", "◌\u0301"]),
        (
            ["😀".encode()[:2], "😀".encode()[2:3], "😀".encode()[3:] + b"!"],
            ["😀¹⁻²⁄₄", "😀³⁄₄", "😀⁴⁄₄!"],
        ),
        ([" ש".encode()[:2], " ש".encode()[2:]], ["·ש¹⁄₂", "ש²⁄₂"]),
        ([b"a\xff", b"\x9f\x98b", b""], ["a⟨ff⟩", "⟨9f 98⟩b", "⟨⟩"]),
        (["\x00\u200d\u00a0"], ["⟨U+0000⟩⟨U+200D⟩⟨U+00A0⟩"]),
        ([], []),
    ],
)
def test_labels(pieces, wanted):
    """Catches half a character, a label that cannot be seen, and one that is empty."""
    assert (
        labels([piece.encode() if isinstance(piece, str) else piece for piece in pieces]) == wanted
    )


def test_direction():
    """Catches a text that is laid out from the wrong side because it begins with a number or a sign."""
    assert [direction(text) for text in ("abc", "", "12 שלום abc", "(مرحبا", "1 a ש")] == [
        "ltr",
        None,
        "ltr",
        "rtl",
        "ltr",
    ]
    assert directions([*"אבג a1, b. גד!"]) == ["rtl"] * 4 + ["ltr"] * 5 + ["rtl"] * 5
    assert (
        directions([*"a (ש) b"]) == ["ltr"] * 3 + ["rtl"] + ["ltr"] * 3
        and directions([".", "!"]) == ["ltr"] * 2
    )


@pytest.mark.parametrize("before", ["<s>", "⟨9d⟩", "12", "a"])
def test_the_direction_of_a_text(before):
    """Catches a text laid out from the wrong side because a token for its beginning, or half a character, stands first."""
    assert (
        base_direction([before, *"שלום."]) == "rtl"
        and directions([before, *"שלום."]) == ["ltr"] + ["rtl"] * 5
    )
    assert base_direction([before, "x", "ש"]) == base_direction(["."]) == "ltr"
