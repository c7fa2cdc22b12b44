"""Text that is mostly the licence or the transcriber's notes of a digitised book, not the book."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daybreak.core.errors import UserError
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction

REASON = "mostly the licence of a digitised book"
AROUND = 200
"""Characters before and after a phrase that count as boiler plate with it: a licence has one about every 200."""
PLAINEST = (
    "project gutenberg",
    "gutenberg-tm",
    "gutenberg\u2122",
    "gutenberg literary archive",
    "distributed proofread",
    "this ebook is for the use of anyone",
    "digitized by",
    "digitised by",
    "google book search",
    "internet archive",
    "hathitrust",
    "transcriber's note",
    "transcriber\u2019s note",
)
"""In lower case, with single spaces. They hardly stand in anything else; without one, nothing is boiler plate."""
OTHERS = (
    "electronic work",
    "public domain",
    "end of the project",
    "copyright",
    "disclaimer",
    "warranties",
    "damages",
    "trademark",
    "full license",
    "terms of this agreement",
    "terms of the license",
    "refund",
    "royalty fee",
    "ebook",
    "donations",
)
"""Phrases that licences are full of, where one of the plainest is met."""
_PHRASES = re.compile("|".join(map(re.escape, PLAINEST + OTHERS)))


def _covered(text: str) -> Iterator[tuple[int, int]]:
    """Phases within AROUND characters of a phrase, merged."""
    start = end = 0
    for match in _PHRASES.finditer(text):
        first, last = max(0, match.start() - AROUND), min(len(text), match.end() + AROUND)
        if first > end:
            yield start, end
            start = first
        end = last
    yield start, end


def boilerplate_fraction(text: str) -> float:
    """The share of ``text`` that lies around the phrases of such licences; 0 where none of the plainest is met."""
    lowered = text.lower().replace("\n", " ")
    if not any(phrase in lowered for phrase in PLAINEST):
        return 0.0
    return sum(end - start for start, end in _covered(lowered)) / len(lowered)


@dataclass(frozen=True, kw_only=True)
class BookLicence(DocumentFilter):
    """Leaves out a document most of which is the licence of Project Gutenberg and its like; English phrases.

    A book with such a licence at its end stays, licence and all: documents are judged, never edited. Parting books at
    blank lines (``--document blank-line``) sets the licence apart, where it can be told.
    """

    memory: ClassVar[str] = "one document"

    most: float = 0.5
    """Share of the characters within AROUND characters of a phrase of the licence."""

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1:
            raise UserError(f"{self.most} is no share of a document.", "Give one between 0 and 1.")

    def why(self) -> str:
        return "licences and notes of digitised books (Project Gutenberg and others), told by their phrases"

    def open(self, context: Context) -> FilterFunction:
        return lambda text: REASON if boilerplate_fraction(text) > self.most else None
