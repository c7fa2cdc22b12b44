"""Filters of your own: documents that are tables rather than prose, and pages that only stand in for others.

    daybreak prepare my_texts/ --filters examples/own_filter.py --show-text --out data/filtered
    daybreak report data/filtered --out corpus.html

The page tells what each of them left out, with examples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from daybreak.core.errors import UserError
from daybreak.data.filters.filter import Context, DocumentFilter, Judge


@dataclass(frozen=True, kw_only=True)
class FewDigits(DocumentFilter):
    """Leaves out price lists, logs and tables: documents in which too many of the characters are digits."""

    most: float = 0.2
    """Share of the characters; spaces count."""

    def __post_init__(self) -> None:
        if not 0 <= self.most < 1:
            raise UserError(f"{self.most} is no share of digits.", "Give one from 0 to below 1.")

    def why(self) -> str:
        return f"tables and lists: more than {self.most:.0%} of the characters are digits"

    def open(self, context: Context) -> Judge:
        def evaluate(text: str) -> str | None:
            digits = sum(map(str.isdigit, text))
            return "too many digits" if digits > self.most * len(text) else None

        return evaluate


@dataclass(frozen=True, kw_only=True)
class NoStandIns(DocumentFilter):
    """Leaves out short documents that hold one of some phrases; a long one may well write about such pages."""

    phrases: tuple[str, ...] = ("lorem ipsum", "please enable javascript", "page not found", "under construction")
    """Whole words, whatever their case."""
    longest: int = 1_000
    """Characters; a longer document stays."""

    def why(self) -> str:
        return (
            f"pages that stand in for others: at most {self.longest:,} characters with '{self.phrases[0]}' or the like"
        )

    def open(self, context: Context) -> Judge:
        # Made here, once for each part of the text, and not in a field: fields are plain values.
        found = re.compile(rf"\b(?:{'|'.join(map(re.escape, self.phrases))})\b", re.IGNORECASE).search

        def evaluate(text: str) -> str | None:
            return "stands in for another page" if len(text) <= self.longest and found(text) else None

        return evaluate


steps = (FewDigits(), NoStandIns())
