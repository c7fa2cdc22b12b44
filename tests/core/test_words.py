from __future__ import annotations

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from daybreak.core.words import WORD_CHARACTERS, bare_words, spaced_words

WILD = st.text(st.characters() | st.sampled_from(" \n_'\u2019-.aZ9\u00e9\u0301\u4f60\u0e01\u0e31\u0939\u093f\u00df"))


def slow_words(text: str) -> list[str]:
    """Character by character."""
    spaced = ""
    for character in text.casefold():
        if not (character.isalnum() or unicodedata.category(character)[0] == "M"):
            spaced += " "
        elif re.match(f"[{WORD_CHARACTERS}]", character):
            spaced += f" {character} "
        else:
            spaced += character
    return spaced.split(" ")


@given(WILD)
def test_bare_words_are_those_found_character_by_character(text: str) -> None:
    assert [word.decode() for word in bare_words(text)] == [word for word in slow_words(text) if word]


@given(WILD)
def test_spaced_words_lose_nothing_but_whitespace(text: str) -> None:
    assert "".join(spaced_words(text)) == "".join(text.split())


def test_words_of_several_scripts() -> None:
    assert bare_words("It's _well_-known: 1,000!") == b"it s well known 1 000".split()
    assert bare_words("STRASSE \u03a3\u039f\u03a6\u039f\u03a3") == bare_words(
        "stra\u00dfe \u03c3\u03bf\u03c6\u03bf\u03c2"
    )
    assert len(bare_words("\u6211\u662f\u5b66\u751f\u3002")) == 4  # four characters and a full stop
    assert len(bare_words("\u0939\u093f\u0928\u094d\u0926\u0940")) == 1  # vowel signs are part of the word
    assert spaced_words("a \u6211\u662f.") == ["a", "\u6211", "\u662f", "."]
