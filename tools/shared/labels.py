"""Tokens as labels that can be read: no invisible signs, no half characters."""

import itertools
import unicodedata

SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥"}
UP = str.maketrans("1234", "¹²³⁴")
DOWN = str.maketrans("1234", "₁₂₃₄")


def labels(pieces):
    """Return a label for each token, given as its bytes (tokenizer.token_bytes).

    A character that several tokens share is shown whole in each, with the bytes that this one has:
    😀¹⁻²⁄₄ are the first two of four. Bytes of no character are shown as ⟨f0 9f⟩; ⟨⟩ has none.
    """
    data = b"".join(pieces)
    owners = []  # of each byte: the start, the text (None: no character) and the size of its unit
    for character in data.decode("utf-8", errors="surrogateescape"):
        if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8
            owners.append((0, None, 1))
        else:
            size = len(character.encode("utf-8"))
            owners += [(len(owners), character, size)] * size

    found = []
    end = 0
    for piece in pieces:
        start = end
        end += len(piece)
        label = ""
        for owner, places in itertools.groupby(range(start, end), owners.__getitem__):
            begin, character, size = owner
            places = [*places]
            first = places[0]
            last = places[-1]
            if character is None:
                label += f"⟨{data[first : last + 1].hex(' ')}⟩"
            else:
                label += visible(character) + share(first - begin + 1, last - begin + 1, size)
        found.append(label or "⟨⟩")
    return found


def visible(character):
    """Replace spaces, control characters and joiners by something that can be seen."""
    kind = unicodedata.category(character)
    if kind in ("Mn", "Me"):  # an accent by itself needs something to stand on
        return "◌" + character
    number = f"⟨U+{ord(character):04X}⟩" if kind[0] in "CZ" else character
    return SIGNS.get(character, number)


def share(first, last, size):
    """Bytes first to last of a character as a small fraction; nothing for all of them."""
    if last - first + 1 == size:
        return ""
    part = f"{first}" if first == last else f"{first}⁻{last}"
    return f"{part.translate(UP)}⁄{str(size).translate(DOWN)}"
