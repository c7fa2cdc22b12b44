"""Count the letters of a text by script, such as Latin or Han."""

from __future__ import annotations

import functools
import string
import unicodedata
from collections import Counter

import numpy as np

OTHER = "Other"
BLOCK_CHARACTERS = 1 << 20
NAMES = ("", OTHER) + tuple(
    """Latin Greek Cyrillic Armenian Hebrew Arabic Devanagari Bengali Gurmukhi Gujarati Odia Tamil Telugu Kannada
    Malayalam Sinhala Thai Lao Tibetan Burmese Georgian Ethiopic Khmer Mongolian Hangul Hiragana Katakana Han""".split()
)
"""The scripts of larger languages."""
_SPELLINGS = {"CJK": "Han", "IDEOGRAPHIC": "Han", "ORIYA": "Odia", "MYANMAR": "Burmese"}
_SPELLINGS |= dict.fromkeys(("MODIFIER", "FEMININE", "MASCULINE", "KELVIN", "ANGSTROM"), "Latin")
"""First words of Unicode's names of letters that are not the name of a script."""
_LAST_LETTER = 0x323FF

FOLDED_WRONGLY = {"Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Odia", "Tamil", "Telugu", "Kannada", "Malayalam"}
FOLDED_WRONGLY |= {"Sinhala", "Thai", "Lao", "Tibetan", "Burmese", "Khmer", "Hangul", "Hiragana", "Katakana"}
"""Scripts whose vowels or syllables are damaged when accents are removed, as BERT's uncased tokenizer does."""


@functools.cache
def _table() -> np.ndarray:
    """Return uint8[code points]: the index in NAMES of each letter's script; 0 for other characters."""
    table = np.zeros(0x110000, np.uint8)
    for code, letter in enumerate(map(chr, range(_LAST_LETTER + 1))):
        if letter.isalpha():
            name = unicodedata.name(letter, OTHER).removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
            first = name.partition(" ")[0].partition("-")[0]
            script = _SPELLINGS.get(first, first.title())
            table[code] = NAMES.index(script if script in NAMES else OTHER)
    return table


def script_fractions(text: str) -> Counter[str]:
    """Count the letters of ``text`` by script (Latin, Han, Arabic ...); smaller scripts are counted as OTHER.

    Vowel signs that are not letters in Unicode are not counted. Memory: a few MB for a text of any length.
    """
    if text.isascii():
        latin = len(text) - len(text.encode().translate(None, string.ascii_letters.encode()))
        return Counter({"Latin": latin} if latin else {})
    table, counts = _table(), np.zeros(len(NAMES), np.int64)
    for start in range(0, len(text), BLOCK_CHARACTERS):
        block = text[start : start + BLOCK_CHARACTERS].encode("utf-32-le", "surrogatepass")
        counts += np.bincount(table[np.frombuffer(block, np.uint32)], minlength=len(NAMES))
    return Counter({name: int(count) for name, count in zip(NAMES, counts) if name and count})


def folded_wrongly(fractions: Counter[str]) -> list[str]:
    """Return the scripts of FOLDED_WRONGLY that have at least 1 % of the letters, the most frequent first."""
    least = 0.01 * fractions.total()
    return [name for name, count in fractions.most_common() if name in FOLDED_WRONGLY and count >= least]
