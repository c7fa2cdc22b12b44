"""Count the letters of a text by script, such as Latin or Han."""

from __future__ import annotations

import functools
import string
from collections import Counter

import numpy as np

OTHER = "Other"
BLOCK_CHARACTERS = 1 << 20
RANGES = (
    ("Latin", "41-5A 61-7A AA BA C0-24F 250-2B8 1D00-1D25 1D2C-1DBE 1E00-1EFF 2071 207F 2090-209C 212A-212B 2C60-2C7F"),
    ("Latin", "A722-A7FF AB30-AB64 FB00-FB06 FF21-FF3A FF41-FF5A"),
    ("Greek", "370-3E1 3F0-3FF 1F00-1FFF 2126"),
    ("Cyrillic", "400-52F 1C80-1C8A 1D2B 2DE0-2DFF A640-A69F"),
    ("Armenian", "531-58F FB13-FB17"),
    ("Hebrew", "591-5F4 FB1D-FB4F"),
    ("Arabic", "600-6FF 750-77F 870-8FF FB50-FDFF FE70-FEFC"),
    ("Devanagari", "900-963 966-97F A8E0-A8FF"),
    ("Bengali", "980-9FF"),
    ("Gurmukhi", "A00-A7F"),
    ("Gujarati", "A80-AFF"),
    ("Odia", "B00-B7F"),
    ("Tamil", "B80-BFF"),
    ("Telugu", "C00-C7F"),
    ("Kannada", "C80-CFF"),
    ("Malayalam", "D00-D7F"),
    ("Sinhala", "D80-DFF"),
    ("Thai", "E00-E7F"),
    ("Lao", "E80-EFF"),
    ("Tibetan", "F00-FFF"),
    ("Burmese", "1000-109F A9E0-A9FF AA60-AA7F"),
    ("Georgian", "10A0-10FF 1C90-1CBF 2D00-2D2F"),
    ("Ethiopic", "1200-139F 2D80-2DDF AB01-AB2F"),
    ("Khmer", "1780-17FF"),
    ("Mongolian", "1800-18AF"),
    ("Hangul", "1100-11FF 3131-318F A960-A97F AC00-D7FF FFA0-FFDC"),
    ("Hiragana", "3041-3096 309D-309F"),
    ("Katakana", "30A1-30FA 30FC-30FF 31F0-31FF FF66-FF9D"),
    ("Han", "3005-3007 3400-4DBF 4E00-9FFF F900-FAFF 20000-323AF"),
)
"""Name and hexadecimal ranges of code points, ends included, of the scripts of larger languages (Unicode's blocks)."""
NAMES = ("", OTHER, *dict.fromkeys(name for name, _ in RANGES))

FOLDED_WRONGLY = {"Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Odia", "Tamil", "Telugu", "Kannada", "Malayalam"}
FOLDED_WRONGLY |= {"Sinhala", "Thai", "Lao", "Tibetan", "Burmese", "Khmer", "Hangul", "Hiragana", "Katakana"}
"""Scripts whose vowels or syllables are damaged when accents are removed, as BERT's uncased tokenizer does."""


@functools.cache
def _table() -> np.ndarray:
    """Return uint8[code points]: the index in NAMES of each letter's script; 0 for other characters."""
    table = np.zeros(0x110000, np.uint8)
    letters = np.fromiter(map(str.isalpha, map(chr, range(0x32400))), bool)
    table[: len(letters)][letters] = NAMES.index(OTHER)
    for name, ranges in RANGES:
        for part in ranges.split():
            first, _, last = part.partition("-")
            inside = slice(int(first, 16), int(last or first, 16) + 1)
            table[inside][table[inside] > 0] = NAMES.index(name)
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


def folded_wrongly(fractions: Counter[str], least: float = 0.01) -> list[str]:
    """Return the scripts of FOLDED_WRONGLY that have at least the fraction ``least`` of the letters."""
    total = sum(fractions.values())
    return [name for name, count in fractions.most_common() if name in FOLDED_WRONGLY and count >= least * total]
