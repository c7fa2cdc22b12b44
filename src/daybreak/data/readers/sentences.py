"""Split prose into sentences by rules: deterministic, without a model, and accurate enough for sentence pairs.

A sentence ends at ``.``, ``!``, ``?`` or an ellipsis, including closing quotes and brackets, if whitespace and a
possible start of a sentence follow. A full stop after an abbreviation, an initial or a list number does not end a
sentence. A blank line always does; a single line break counts as a space. The full stops of other scripts (Chinese and
Japanese, Hindi, Arabic and Urdu, Burmese, Khmer, Armenian, Ethiopic) mark nothing else and need no whitespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from daybreak.data.readers.documents import FULL_STOPS, Document

NEVER_LAST = frozenset(
    """adj adm assoc asst brig bros capt cmdr col cpl dr fr gen gov hon lt maj messrs mlle mme mr mrs ms msgr mt mx
    prof pvt rev rt sgt sr st ste supt approx ca cf e.g eg ed eds i.e ie op viz vs""".split()
)
"""Abbreviations that never end a sentence."""
BEFORE_NUMBERS = frozenset(
    """art arts ch chap chs eq eqn eqs eqns ex fig figs fn no nos nr p par pp pt pts ref refs sec secs sect tab vol vols
    jan feb mar apr jun jul aug sep sept oct nov dec""".split()
)
"""Words or abbreviations that do not end a sentence when a number follows."""
OPENERS = frozenset(
    """a after all although an and as at both but by during each every for from he her his how however i if in it its
    many meanwhile moreover most no on one our several she since so some such that the their then there therefore these
    they this those thus to today we what when where while who why with yet you""".split()
)
"""Words that begin a new sentence after "U.S." or "a.m."; other capitalized words continue it ("U.S. Senate")."""

_BREAK = re.compile(
    rf"""
    (?<! [.!?\u2026] ) (?P<mark> [.!?\u2026]++ ) (?P<close> ["'\u201d\u2019\u00bb)\]}}]*+ ) (?P<space> \s+ )
    (?= ["'\u201c\u2018\u00ab(\[{{\-\u2013\u2014]*+ (?P<next> [^\W_]+ ) )
    | (?P<wide> [{FULL_STOPS}] [{FULL_STOPS}.!?\u2026]*+ ["'\u201d\u2019\u00bb\u300d\u300f)]* ) (?P<gap> \s* )
    """,
    re.VERBOSE,
)
_WORD_BEFORE = re.compile(r"(?P<word>[^\W_]+(?:\.[^\W_]+)*)\Z")
LONGEST_WORD = 24
"""Characters examined before a full stop."""
_BLANK_LINE = re.compile(r"\n\s*\n\s*")


def split_sentences(text: str) -> list[str]:
    """Split ``text`` into sentences; whitespace inside becomes single spaces, all other characters are preserved."""
    found: list[str] = []
    for paragraph in _BLANK_LINE.split(text):
        paragraph = " ".join(paragraph.split())
        start = 0
        for match in _BREAK.finditer(paragraph):
            end = match.end("wide") if match["wide"] else match.end("close")
            if match["wide"] or _ends(paragraph, start, match):
                found.append(paragraph[start:end])
                start = match.end()
        if start < len(paragraph):
            found.append(paragraph[start:])
    return found


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Return whether the sentence from ``start`` ends at this mark, which is followed by whitespace."""
    following = match["next"]
    if following[0].islower():
        return False  # also after "!" and "?": "Yahoo! is", '"Why?" she asked'
    before = _WORD_BEFORE.search(text, max(start, match.start() - LONGEST_WORD), match.start())
    if match["mark"] != "." or match["close"] or before is None:
        return True
    word = before["word"].lower()
    if word in NEVER_LAST or (word in BEFORE_NUMBERS and following[0].isdigit()):
        return False
    if word.isdigit():
        return before.start() > start  # "2. Next point" is one sentence
    if "." in word and all(len(part) == 1 for part in word.split(".")):
        return following.lower() in OPENERS
    # A single capital is an initial, except "I"; a single lower-case letter can end a sentence.
    return not (len(word) == 1 and before["word"].isupper() and word != "i")


def with_sentences(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents split into sentences, one a line; existing sentences are split further."""
    for document in documents:
        parts = document.sentences or (document.text,)
        sentences = tuple(sentence for part in parts for sentence in split_sentences(part))
        yield replace(document, text="\n".join(sentences), sentences=sentences)
