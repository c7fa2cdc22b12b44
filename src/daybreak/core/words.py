"""Words of text in any script with spaces, for BM25, the bag of words and names of tasks."""

from __future__ import annotations

import functools
import unicodedata


@functools.cache
def word_pattern() -> str:
    """Return the regular expression of a word: letters, digits and underscores, with the marks on them.

    Python's ``\\w`` matches no marks, so ``\\w+`` would cut words of Hindi or Thai at each vowel sign.
    """
    marks = "".join(code for code in map(chr, range(0x300, 0x10000)) if unicodedata.category(code).startswith("M"))
    return rf"\w[\w{marks}]*"
