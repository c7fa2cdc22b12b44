"""Cut long text at whitespace, so that the parts are tokenized as the whole would be."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_CHARACTERS = 1 << 16
"""Long texts are cut at whitespace into pieces of about this size: bounds memory and feeds every core."""
LONGEST_PIECE = 1 << 20
"""Text without any place to cut is cut in the middle here; a word there is none that a tokenizer could know."""

_SPACE = " \n"
# After a full stop or comma of the scripts that write no spaces, where a letter follows: Chinese and Japanese marks
# with their wide forms, Khmer, Tibetan, Burmese and Devanagari ends of sentences.
_MARKS = "\u3001\u3002\uff0c\uff01\uff1f\uff1a\uff1b\u17d4\u17d5\u0f0d\u104a\u104b\u0964"
_AFTER_MARK = re.compile(rf"(?<=[{_MARKS}])(?=[^\W\d_])")
_GAP = re.compile(rf"(?<=[^ \n])(?=[ \n])|{_AFTER_MARK.pattern}")


def cut_at_whitespace(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in pieces of at most about ``characters``, cut only where whitespace begins: same ids in all.

    The ids are the same for BERT's tokenizers and for byte-level ones, for which a run of whitespace must stay whole.
    Where there is no whitespace within ``characters``, as in Chinese, a piece ends behind a full stop or comma of such
    a script (the ids are the same unless the normaliser deletes that mark, as Cramming's does). A piece never has more
    than LONGEST_PIECE characters.
    """
    start = 0
    while len(text) - start > characters:
        end = _last_gap(text, start, start + characters) or _next_gap(text, start, characters)
        yield text[start:end]
        start = end
    yield text[start:]


def _last_gap(text: str, start: int, stop: int) -> int:
    """The last place to cut in (start, stop), or 0."""
    end = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
    if end > 0 and (length := len(text[start:end].rstrip(_SPACE))):
        return start + length
    return max((found.start() for found in _AFTER_MARK.finditer(text, start + 1, stop)), default=0)


def _next_gap(text: str, start: int, characters: int) -> int:
    """The first place to cut from ``start + characters`` on, or the end of the text, or of the longest piece."""
    limit = start + max(LONGEST_PIECE, characters)
    found = _GAP.search(text, start + characters, limit)
    return found.start() if found else min(limit, len(text))
