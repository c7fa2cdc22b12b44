"""Split text of any script into words without a model, for n-grams and for datatrove's filters."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datatrove.utils.word_tokenizers import WordTokenizer

WORD_CHARACTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Scripts written without spaces (Thai, Lao, Burmese, Khmer, Tai, kana, Han), whose characters count as words."""
_WORD_CHARACTER = re.compile(f"[{WORD_CHARACTERS}]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_ASCII_WORDS = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))


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


@functools.cache
def datatrove_words() -> WordTokenizer:
    """Return ``spaced_words`` and ``split_sentences`` as a datatrove tokenizer, without spaCy and downloads."""
    from datatrove.utils.word_tokenizers import WordTokenizer  # an extra

    from daybreak.data.readers.sentences import split_sentences

    class PlainWords(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return spaced_words(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return split_sentences(text)

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            """Return one span per sentence; datatrove uses only their number."""
            ends = [0]
            for sentence in split_sentences(text):
                ends.append(ends[-1] + len(sentence) + 1)
            return [(start, end - 1) for start, end in itertools.pairwise(ends)]

    return PlainWords()
