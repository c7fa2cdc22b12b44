"""Prose -> sentences, by rules: enough for next-sentence pairs, the same on every machine, and no model to fetch.

A sentence ends at ``.``, ``!``, ``?`` or an ellipsis, with the quotes and brackets that close after it, when whitespace
and something that can begin a sentence follow. A full stop after an abbreviation, an initial or a list number ends
none. A blank line ends a sentence in any case; a single line break is a space, for prose is wrapped. Ideographic marks
need no whitespace after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from daybreak.data.readers.documents import Document

NEVER_LAST = frozenset(
    """adj adm assoc asst brig bros capt cmdr col cpl dr fr gen gov hon lt maj messrs mlle mme mr mrs ms msgr mt mx
    prof pvt rev rt sgt sr st ste supt approx ca cf e.g eg ed eds i.e ie op viz vs""".split()
)
"""Abbreviations that something always follows."""
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
"""Words that begin a sentence after "U.S." and "a.m.", where other capitals go on: "U.S. Senate"."""

_BREAK = re.compile(
    r"""
    (?<! [.!?\u2026] ) (?P<mark> [.!?\u2026]++ ) (?P<close> ["'\u201d\u2019\u00bb)\]}]*+ ) (?P<space> \s+ )
    (?= ["'\u201c\u2018\u00ab(\[{\-\u2013\u2014]*+ (?P<next> [^\W_]+ ) )
    | (?P<wide> [\u3002\uff01\uff1f] ["'\u201d\u2019\u300d\u300f)]* ) (?P<gap> \s* )
    """,
    re.VERBOSE,
)
_WORD_BEFORE = re.compile(r"(?P<word>[^\W_]+(?:\.[^\W_]+)*)\Z")
LONGEST_WORD = 24
"""Characters looked at before a full stop."""
_BLANK_LINE = re.compile(r"\n\s*\n\s*")


def split_sentences(text: str) -> list[str]:
    """Cut ``text`` into sentences with single spaces inside; nothing else is added, lost or moved."""
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
    """Whether a sentence that began at ``start`` ends at this mark, which whitespace follows."""
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
    # An initial; but "I" and a lone small letter can be a last word.
    return not (len(word) == 1 and before["word"].isupper() and word != "i")


def with_sentences(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents as sentences, one a line. Lines that were taken for sentences are cut further."""
    for document in documents:
        parts = document.sentences or (document.text,)
        sentences = tuple(sentence for part in parts for sentence in split_sentences(part))
        yield replace(document, text="\n".join(sentences), sentences=sentences)
