from __future__ import annotations

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from daybreak.data.readers.cleaning import clean

WILD = st.text(st.characters() | st.sampled_from(" \t\n\r\x0b\x0c\x85\u00a0\u2028\ufeff\ud800\x00\x1f\u0301e"))


@given(WILD)
def test_cleaning_leaves_nothing_to_clean(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in once.replace("\n", ""))
    assert "  " not in once and " \n" not in once and "\n " not in once
    assert once == once.strip()
    once.encode("utf-8")


def test_cleaning_keeps_words_and_line_breaks() -> None:
    assert clean("\ufeffCafe\u0301 \t au\u00a0lait \r\n\r\n one\x00two\x07  \n") == "Caf\u00e9 au lait\n\nonetwo"


@given(WILD)
def test_cleaning_is_what_its_expressions_make_of_the_whole_text(text: str) -> None:
    """Lines that need nothing are passed over; the expressions would have changed nothing in them."""
    for whole in (text, f"{'words ' * 200}{text} and{text}"):  # a long text is looked at in another way
        bare = re.sub("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]+", "", whole.replace("\r\n", "\n"))
        spaced = re.sub(r"[^\S\n]+", " ", bare)
        assert clean(whole) == unicodedata.normalize("NFC", re.sub(" ?\n ?", "\n", spaced).strip())
