"""Making equal text equal: Unicode NFC, no control characters, single spaces; line breaks stay."""

from __future__ import annotations

import re
import unicodedata

# Control characters that are no whitespace, the byte order mark, and halves of surrogate pairs (from JSON escapes).
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]+")
_SPACES = re.compile(r"[^\S\n ][^\S\n]*| [^\S\n]+")
_LINE_EDGES = re.compile(r" ?\n ?")


def clean(text: str) -> str:
    """Return ``text`` normalised; cleaning clean text changes nothing."""
    text = text.replace("\r\n", "\n")
    text = _CONTROL.sub("", text)
    text = _SPACES.sub(" ", text)
    if " \n" in text or "\n " in text:
        text = _LINE_EDGES.sub("\n", text)
    return unicodedata.normalize("NFC", text.strip())
