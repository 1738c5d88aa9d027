"""Tokens as one can read them: what cannot be seen has a sign, and no label holds half a character."""

import itertools
import unicodedata

SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥"}


def labels(pieces):
    """A label for each token, given as its bytes (tokenizer.token_bytes): a list of str.

    A character that several tokens share is shown whole in each, with the bytes that this one has: 😀¹⁻²⁄₄ are the first two
    of four. Bytes that belong to no character, as where a text was cut, are shown as ⟨f0 9f⟩; a token without any is ⟨⟩.
    """
    data, owners = (
        b"".join(pieces),
        [],
    )  # of each byte: where its character begins, the character (None: it has none), its size
    for character in data.decode("utf-8", errors="surrogateescape"):
        stray = "\udc80" <= character <= "\udcff"
        size = 1 if stray else len(character.encode("utf-8"))
        owners += [(0, None, 1) if stray else (len(owners), character, size)] * size
    found, end = [], 0
    for piece in pieces:
        start, end, label = end, end + len(piece), ""
        for (first, character, size), places in itertools.groupby(
            range(start, end), owners.__getitem__
        ):
            places = [*places]
            if character is None:
                label += f"⟨{data[places[0] : places[-1] + 1].hex(' ')}⟩"
            else:
                label += seen(character) + share(
                    places[0] - first + 1, places[-1] - first + 1, size
                )
        found.append(label or "⟨⟩")
    return found


def seen(character):
    """A character as something that can be seen: control characters, joiners and rare spaces by their number."""
    kind = unicodedata.category(character)
    if kind in ("Mn", "Me"):  # an accent by itself needs something to stand on
        return "◌" + character
    return SIGNS.get(character) or (f"⟨U+{ord(character):04X}⟩" if kind[0] in "CZ" else character)


def share(first, last, of):
    """Bytes first to last of so many, as a small fraction; nothing for all of them."""
    if last - first + 1 == of:
        return ""
    up, down = str.maketrans("1234", "¹²³⁴"), str.maketrans("1234", "₁₂₃₄")
    return (
        (f"{first}" if first == last else f"{first}⁻{last}").translate(up)
        + "⁄"
        + f"{of}".translate(down)
    )


WAY = {
    "L": "ltr",
    "EN": "ltr",
    "AN": "ltr",
    "R": "rtl",
    "AL": "rtl",
}  # by Unicode's classes of characters


def direction(text):
    """How the first letter or digit of a text is written: ltr or rtl; None if it has neither."""
    return next((WAY[kind] for kind in map(unicodedata.bidirectional, text) if kind in WAY), None)


def base_direction(labels):
    """How a text is written: as most of its labels that have letters, since the first may be a beginning or a part of one."""
    known = [direction(label) for label in labels]
    return "rtl" if known.count("rtl") > known.count("ltr") else "ltr"


def directions(labels):
    """How each label stands in its line: as its letters, and without any as its neighbours, if they agree, or as the text."""
    known, base = [direction(label) for label in labels], base_direction(labels)
    before, after = (
        itertools.accumulate(ways, lambda last, way: way or last, initial=base)
        for ways in (known, known[::-1])
    )
    near = zip(known, [*before][1:], [*after][:0:-1])
    return [way or (left if left == right else base) for way, left, right in near]
