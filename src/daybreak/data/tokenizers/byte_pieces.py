"""What the pieces of a byte-level vocabulary stand for: each of its 256 letters is a byte (Radford et al. 2019)."""

from __future__ import annotations

import unicodedata

SPACE = "\u0120"
"""How a byte-level vocabulary writes the space."""
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
LETTERS = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + place): byte for place, byte in enumerate(_OTHERS)}
"""The byte that each letter stands for: itself where it can be printed, else the letters from U+0100 on, in turn."""
_FIRST_BITS = {2: 0x1F, 3: 0x0F, 4: 0x07}
"""The bits of a first byte that belong to its character, by the number of bytes of that character."""


def piece_bytes(piece: str) -> bytes:
    """The bytes of a byte-level piece; none where it is no such piece (a special token with a strange name)."""
    return bytes(LETTERS[letter] for letter in piece) if LETTERS.keys() >= set(piece) else b""


def goes_on(piece: str) -> bool:
    """Whether a byte-level piece goes on a word when it is not the first of its text.

    It does if it begins with a letter, a digit or an accent, or inside a character. A space, or a mark of punctuation,
    begins a word. This is told from the piece alone: a word right behind a bracket or a hyphen is taken as one with it.
    """
    data = piece_bytes(piece)
    if not data or data[0] < 0x80:
        return bool(data) and chr(data[0]).isalnum()
    if data[0] < 0xC0:
        return True
    size = 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
    code = data[0] & _FIRST_BITS[size]
    known = data[1:size]
    for byte in known:
        code = code << 6 | byte & 0x3F
    open_bits = 6 * (size - 1 - len(known))
    # Of a character that is not whole, those that it may become: some letter among them is enough.
    codes = range(code << open_bits, min(code + 1 << open_bits, 0x110000))
    return any(unicodedata.category(chr(code))[0] in "LMN" for code in codes)
