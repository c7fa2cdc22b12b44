"""Split long text at whitespace so that the chunks have the same token ids as the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_CHARACTERS = 1 << 16
"""Approximate chunk size, which bounds memory and lets all cores work on one long text."""
LONGEST_PIECE = 1 << 20
"""Text without a place to split is split at this length."""

_SPACE = " \n"
# Punctuation of scripts without spaces, if a letter follows: Chinese and Japanese marks with their wide forms, and
# Khmer, Tibetan, Burmese and Devanagari sentence ends.
_MARKS = "\u3001\u3002\uff0c\uff01\uff1f\uff1a\uff1b\u17d4\u17d5\u0f0d\u104a\u104b\u0964"
_AFTER_MARK = re.compile(rf"(?<=[{_MARKS}])(?=[^\W\d_])")
_GAP = re.compile(rf"(?<=[^ \n])(?=[ \n])|{_AFTER_MARK.pattern}")


def cut_at_whitespace(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in chunks of about ``characters``, split only where whitespace begins, which preserves token ids.

    This holds for BERT tokenizers and for byte-level ones, for which a run of whitespace must stay whole. If there is
    no whitespace within ``characters``, as in Chinese, a chunk ends after punctuation of such a script; ids are then
    the same unless the normalizer deletes that mark, as the Cramming normalizer does. A chunk has at most LONGEST_PIECE
    characters.
    """
    start = 0
    while len(text) - start > characters:
        end = _last_gap(text, start, start + characters) or _next_gap(text, start, characters)
        yield text[start:end]
        start = end
    yield text[start:]


def _last_gap(text: str, start: int, stop: int) -> int:
    """Return the last split position in (start, stop), or 0."""
    end = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
    if end > 0 and (length := len(text[start:end].rstrip(_SPACE))):
        return start + length
    return max((found.start() for found in _AFTER_MARK.finditer(text, start + 1, stop)), default=0)


def _next_gap(text: str, start: int, characters: int) -> int:
    """Return the first split position from ``start + characters`` on, at most the end of the text or longest chunk."""
    limit = start + max(LONGEST_PIECE, characters)
    found = _GAP.search(text, start + characters, limit)
    return found.start() if found else min(limit, len(text))
