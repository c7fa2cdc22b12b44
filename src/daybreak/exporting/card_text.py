"""Pieces of the model card's Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of any texts: what would break it is escaped here, once."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line(cell) for cell in cells) + " |" for cells in lines)


def line(text: str) -> str:
    """One line that cannot break out of a table cell."""
    return " ".join(text.split()).replace("|", "\\|")
