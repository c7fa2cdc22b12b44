"""Filters of your own: one removes tables, the other placeholder pages.

    daybreak prepare my_texts/ --recipe mini --filters examples/own_filter.py --show-text --out data/filtered
    daybreak report data/filtered --out corpus.html

The page shows what each filter removed, with examples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from daybreak.core.errors import UserError
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction


@dataclass(frozen=True, kw_only=True)
class FewDigits(DocumentFilter):
    """Removes price lists, logs and tables: documents with too many digits."""

    most: float = 0.2
    """Largest fraction of digits among the characters, spaces included."""

    def __post_init__(self) -> None:
        if not 0 <= self.most < 1:
            raise UserError(f"{self.most} is not a fraction of digits.", "Give one from 0 to below 1.")

    def why(self) -> str:
        return f"tables and lists: more than {self.most:.0%} of the characters are digits"

    def open(self, context: Context) -> FilterFunction:
        def evaluate(text: str) -> str | None:
            digits = sum(map(str.isdigit, text))
            return "too many digits" if digits > self.most * len(text) else None

        return evaluate


@dataclass(frozen=True, kw_only=True)
class NoPlaceholders(DocumentFilter):
    """Removes short documents that contain one of some phrases; long documents may discuss such pages."""

    phrases: tuple[str, ...] = ("lorem ipsum", "please enable javascript", "page not found", "under construction")
    """Phrases of whole words, in any case."""
    longest: int = 1_000
    """Characters; longer documents are kept."""

    def why(self) -> str:
        return f"placeholder pages: at most {self.longest:,} characters with '{self.phrases[0]}' or a similar phrase"

    def open(self, context: Context) -> FilterFunction:
        # Compiled once for each part of the text. Fields hold plain values only.
        found = re.compile(rf"\b(?:{'|'.join(map(re.escape, self.phrases))})\b", re.IGNORECASE).search

        def evaluate(text: str) -> str | None:
            return "placeholder page" if len(text) <= self.longest and found(text) else None

        return evaluate


steps = (FewDigits(), NoPlaceholders())
