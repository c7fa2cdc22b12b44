"""Split text of any script into words, without a model.

Names of tasks, BM25 and the bag of words use ``word_pattern``; n-grams and quality filters use ``bare_words`` and
``spaced_words``, which also split scripts without spaces.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence

WORD_CHARACTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Scripts written without spaces (Thai, Lao, Burmese, Khmer, Tai, kana, Han), whose characters count as words."""
_WORD_CHARACTER = re.compile(f"[{WORD_CHARACTERS}]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_ASCII_WORDS = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))


@functools.cache
def word_pattern() -> str:
    """Return the regular expression of a word: letters, digits and underscores, with the marks on them.

    Python's ``\\w`` matches no marks, so ``\\w+`` would cut words of Hindi or Thai at each vowel sign.
    """
    marks = "".join(code for code in map(chr, range(0x300, 0x10000)) if unicodedata.category(code).startswith("M"))
    return rf"\w[\w{marks}]*"


def spaced_words(text: str) -> list[str]:
    """Split at whitespace, and around each of WORD_CHARACTERS; punctuation stays attached."""
    if _WORD_CHARACTER.search(text):
        text = _WORD_CHARACTER.sub(r" \g<0> ", text)
    return text.split()


class _Characters(dict[str, str]):
    """Maps each character beyond ASCII to itself, a space, or itself between spaces; cached."""

    def __missing__(self, character: str) -> str:
        in_word = character.isalnum() or unicodedata.category(character)[0] == "M"
        spaced = f" {character} " if _WORD_CHARACTER.match(character) else character
        self[character] = spaced if in_word else " "
        return self[character]


_CHARACTERS = _Characters()


def _set_apart(match: re.Match[str]) -> str:
    return "".join(map(_CHARACTERS.__getitem__, match[0]))


def bare_words(text: str) -> list[bytes]:
    """Return runs of letters, marks and digits as case-folded UTF-8; ``It's`` becomes ``it``, ``s``."""
    text = text.casefold()
    if not text.isascii():
        text = _NOT_ASCII.sub(_set_apart, text)
    return text.encode("utf-8", "replace").translate(_ASCII_WORDS).split()


def is_unspaced(words: Sequence[bytes]) -> bool:
    """Whether more than half of the words of ``bare_words`` are single characters of scripts without spaces."""
    return 2 * sum(len(word) > 2 and bool(_WORD_CHARACTER.fullmatch(word.decode())) for word in words) > len(words)
