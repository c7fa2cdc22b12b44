from __future__ import annotations

import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_texts import LISTS, language_texts

from daybreak.data.filters.scripts import BLOCK_CHARACTERS, NAMES, OTHER, RANGES, folded_wrongly, script_fractions

UNICODE_NAMES = {"Han": "CJK", "Odia": "ORIYA", "Burmese": "MYANMAR"}
SCRIPTS = {"finnish": "Latin", "german": "Latin", "arabic": "Arabic", "hindi": "Devanagari", "thai": "Thai"}


def slow(text: str) -> Counter[str]:
    """By Unicode's names of characters, one by one."""
    found: Counter[str] = Counter()
    for character in text:
        if unicodedata.category(character).startswith("L"):
            words = unicodedata.name(character, "").replace("FULLWIDTH ", "").replace("HALFWIDTH ", "").split()
            first = words[0] if words else ""
            known = (name for name in NAMES[2:] if UNICODE_NAMES.get(name, name.upper()) == first)
            found[next(known, OTHER)] += 1
    return found


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z", "M"]), max_size=50))
def test_it_is_what_the_names_of_the_characters_say(text: str) -> None:
    mine, theirs = script_fractions(text), slow(text)
    # The larger scripts agree letter by letter; blocks hold a few letters that Unicode names otherwise.
    for name in NAMES[2:]:
        odd = [one for one in text if (name in script_fractions(one)) != (name in slow(one))]
        assert all(unicodedata.category(one) in ("Lm", "Lo", "Ll", "Lu") and ord(one) > 0x7F for one in odd)
        assert abs(mine[name] - theirs[name]) <= len(odd)
    assert mine.total() == theirs.total()


def test_nearly_all_named_letters_are_counted_for_their_script() -> None:
    every = range(0, sys.maxunicode, 17)
    letters = [chr(code) for code in every if unicodedata.category(chr(code)).startswith("L")]
    wrong = [one for one in letters if script_fractions(one) != slow(one)]
    assert len(wrong) < 0.005 * len(letters)
    assert len(dict.fromkeys(name for name, _ in RANGES)) == len(NAMES) - 2


@pytest.mark.parametrize("language", SCRIPTS)
def test_languages(language: str) -> None:
    fractions = script_fractions(" ".join(language_texts(language, 5)))
    assert set(fractions) == {SCRIPTS[language]}


def test_chinese_and_japanese_are_told_apart() -> None:
    assert set(script_fractions(language_texts("chinese", 1)[0])) == {"Han"}
    assert set(script_fractions(language_texts("japanese", 1, sentences=60)[0])) == {"Han", "Hiragana", "Katakana"}
    assert len(LISTS) == len(SCRIPTS) + 2


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
