"""Filter documents that are mostly the licence or transcriber's notes of a digitized book."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from daybreak.core.errors import UserError
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction

REASON = "mostly the licence of a digitized book"
AROUND = 200
"""Characters around a phrase that count as boilerplate; a licence has a phrase about every 200 characters."""
DISTINCTIVE = (
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
"""Phrases, in lower case with single spaces, that are rare in other text; one is required."""
FREQUENT = (
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
"""Phrases that are frequent in licences; counted only if one of DISTINCTIVE occurs."""
_PHRASES = re.compile("|".join(map(re.escape, DISTINCTIVE + FREQUENT)))


def _covered(text: str) -> Iterator[tuple[int, int]]:
    """Yield the merged ranges within AROUND characters of a phrase."""
    start = end = 0
    for match in _PHRASES.finditer(text):
        first, last = max(0, match.start() - AROUND), min(len(text), match.end() + AROUND)
        if first > end:
            yield start, end
            start = first
        end = last
    yield start, end


def boilerplate_fraction(text: str) -> float:
    """Return the fraction of ``text`` around phrases of licences; 0 without a phrase of DISTINCTIVE."""
    lowered = text.lower().replace("\n", " ")
    if not any(phrase in lowered for phrase in DISTINCTIVE):
        return 0.0
    return sum(end - start for start, end in _covered(lowered)) / len(lowered)


@dataclass(frozen=True, kw_only=True)
class BookLicence(DocumentFilter):
    """Removes documents that are mostly the licence of Project Gutenberg or similar, by English phrases.

    A book that ends with such a licence is kept with it, because filters do not edit documents. With ``--document
    blank-line`` the paragraphs of the licence are documents of their own.
    """

    most: float = 0.5
    """Maximum fraction of characters within AROUND characters of a phrase."""

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1:
            raise UserError(f"A fraction of {self.most} is not possible.", "Give a number between 0 and 1.")

    def why(self) -> str:
        return "licences and notes of digitized books (Project Gutenberg and others), found by their phrases"

    def open(self, context: Context) -> FilterFunction:
        return lambda text: REASON if boilerplate_fraction(text) > self.most else None
