"""Tokens as labels: any bytes, any script."""

import pytest

from tools.shared.labels import labels


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
