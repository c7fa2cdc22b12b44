"""Normalize text: Unicode NFC, no control characters, single spaces; line breaks are kept."""

from __future__ import annotations

import html
import re
import unicodedata

import numpy as np

# Control characters except whitespace, the byte order mark, and lone surrogates (from JSON escapes).
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]+")
_SPACES = re.compile(r"[^\S\n ][^\S\n]*| [^\S\n]+")
_LINE_EDGES = re.compile(r" ?\n ?")
_HUGE_REFERENCE = re.compile(r"&#[0-9]{8,}+;?")
"""A reference that names no character; Python refuses to convert thousands of its digits."""
PLAIN = bytes(range(0x20, 0x7F)) + b"\n"
"""ASCII that clean text may contain."""
LONG = 1000
"""Characters from which array operations are faster than string operations."""


def clean(text: str) -> str:
    """Return the normalized ``text``; idempotent."""
    if len(text) >= LONG and _is_clean(text):
        return unicodedata.normalize("NFC", text)
    text = text.replace("\r\n", "\n")
    if not _is_tidy(
        text.replace("\n", "")
    ):  # a test of the whole string is many times faster than a regular expression
        lines = text.split("\n")
        text = "\n".join(line if _is_tidy(line) else _SPACES.sub(" ", _CONTROL.sub("", line)) for line in lines)
    if " \n" in text or "\n " in text:
        text = _LINE_EDGES.sub("\n", text)
    return unicodedata.normalize("NFC", text.strip())


def unescape(text: str) -> str:
    """Return HTML text with its character references decoded."""
    return html.unescape(_HUGE_REFERENCE.sub("", text))


def _is_clean(text: str) -> bool:
    """Return whether only NFC remains to be applied; five times faster than regular expressions or ``in``."""
    try:
        data = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    if not data.translate(None, PLAIN).decode().isprintable():
        return False
    codes = np.frombuffer(data, np.uint8)
    blank = codes == ord(" ")
    edge = blank | (codes == ord("\n"))
    beside = (blank[1:] & edge[:-1]) | (edge[1:] & blank[:-1])
    return not (edge[0] or edge[-1] or beside.any())


def _is_tidy(line: str) -> bool:
    """Return whether neither _CONTROL nor _SPACES matches."""
    # isprintable is False for control characters and for all whitespace except the space.
    return line.isprintable() and "  " not in line
