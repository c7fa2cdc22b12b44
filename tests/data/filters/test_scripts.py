from __future__ import annotations

from collections import Counter

import pytest
from language_texts import language_texts

from daybreak.data.filters.scripts import BLOCK_CHARACTERS, NAMES, OTHER, folded_wrongly, script_fractions

LETTERS = {
    "Latin": "Az\u00e9\u00aa\u02b0\u1e9e\uff21\ufb01",
    "Greek": "\u03b1\u1f00",
    "Arabic": "\u0634\ufefb",
    "Devanagari": "\u0939\u0905",
    "Odia": "\u0b05",
    "Thai": "\u0e04",
    "Burmese": "\u1000",
    "Hangul": "\ud55c\u1100\uffa1",
    "Hiragana": "\u3042",
    "Katakana": "\u30ab\uff76\u30fc",
    "Han": "\u4e00\u3005\uf900\U00020000",
    OTHER: "\u13a0\U00017000\u2135",
}


@pytest.mark.parametrize("script", LETTERS)
def test_letters(script: str) -> None:
    assert script_fractions(LETTERS[script]) == Counter({script: len(LETTERS[script])})


def test_every_letter_counts_once_and_every_script_has_letters() -> None:
    every = "".join(map(chr, range(0xD800))) + "".join(map(chr, range(0xE000, 0x30000)))
    found = script_fractions(every)
    assert found.total() == sum(map(str.isalpha, every)) and set(found) == set(NAMES[1:])


def test_chinese_and_japanese_are_distinguished() -> None:
    assert set(script_fractions(language_texts("chinese", 1)[0])) == {"Han"}
    assert set(script_fractions(language_texts("japanese", 1, sentences=60)[0])) == {"Han", "Hiragana", "Katakana"}


def test_what_is_no_letter_does_not_count_and_length_does_not_matter() -> None:
    assert script_fractions("12 .,! \u3002\u00d7\u20ac\U0001f600") == Counter()
    assert script_fractions("") == Counter()
    assert script_fractions("ab1") == Counter(Latin=2)
    long = "\u00e9" + "b " * BLOCK_CHARACTERS
    assert script_fractions(long) == Counter(Latin=BLOCK_CHARACTERS + 1)
    assert script_fractions("a\ud800") == Counter(Latin=1)


def test_scripts_that_folding_damages() -> None:
    assert folded_wrongly(Counter(Latin=999, Thai=1)) == []
    assert folded_wrongly(Counter(Latin=50, Thai=20, Hangul=30)) == ["Hangul", "Thai"]
