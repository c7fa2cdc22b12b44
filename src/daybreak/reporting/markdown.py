"""The report as Markdown: the text and tables of the HTML page, without its plots."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.parser import HTMLParser

LEFT_OUT = {"head", "script", "style", "figure", "nav", "noscript", "button"}
"""Plots, controls and invisible elements."""
HEADINGS = {"h1": "# ", "h2": "## ", "h3": "### "}
ASIDES = {"small", "em"}
"""Secondary text below or after a value."""
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&])")
LEADING = re.compile(r"^(\d*)([#+.)-])")
"""Starts of a line that Markdown would read as a heading or an item."""


def as_markdown(page: str) -> str:
    """Return a page of ``document`` as GitHub-flavoured Markdown; other HTML is not supported."""
    writer = _Writer()
    writer.feed(page)
    writer.close()
    return "\n\n".join(_without_empty_sections(writer.blocks)) + "\n"


def _without_empty_sections(blocks: list[str]) -> list[str]:
    """Remove headings of sections that contain only plots."""
    kept: list[str] = []
    for block in reversed(blocks):
        last = block.startswith("## ") and (not kept or kept[-1].startswith("## "))
        if not last:
            kept.append(block)
    return kept[::-1]


def _plain(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)


class _Writer(HTMLParser):
    """Collects blocks: paragraphs, headings, lists, tables and the borders of folds."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._words: list[str] = []
        self._rows: list[list[str]] = []
        self._rules: list[str] = []
        self._starts: list[int] = []
        """For each open aside and bold text: the number of words before it."""
        self._skipping = 0
        self._escape: Callable[[str], str] = _plain
        """The escaping at the current place."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipping += tag in LEFT_OUT
        if self._skipping:
            return
        if tag in ("p", "div", "pre", "table", "details", "dt", "footer", "section", *HEADINGS):
            self._paragraph()
        if tag in ASIDES or tag == "b":
            self._starts.append(len(self._words))
        elif tag == "tr":
            self._rows.append([])
        elif tag == "th" and ("scope", "row") not in attrs:
            self._rules.append("---:" if ("class", "n") in attrs else "---")
        elif tag == "pre":
            self._escape = str
        elif tag == "summary":
            self._escape = html.escape
        else:
            self._words.append(": " if tag == "dd" else " ")

    def handle_endtag(self, tag: str) -> None:
        if tag in LEFT_OUT:
            self._skipping -= 1
        elif self._skipping:
            return
        elif tag in ASIDES or tag == "b":
            self._wrap(self._starts.pop(), "**{}**" if tag == "b" else " ({})")
        elif tag in ("th", "td"):
            self._rows[-1].append(self._take())
        elif tag == "table":
            self._table()
        elif tag == "pre":
            code, self._words, self._escape = "".join(self._words).strip("\n"), [], _plain
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
            self._add(f"{fence}\n{code}\n{fence}")
        elif tag == "summary":
            self._add(f"<details><summary>{self._take()}</summary>")
            self._escape = _plain
        elif tag == "details":
            self._paragraph()
            self._add("</details>")
        elif tag in HEADINGS:
            self._paragraph(HEADINGS[tag])
        elif tag in ("div", "dd"):
            self._paragraph("- ")
        elif tag in ("p", "footer"):
            self._paragraph()

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._words.append(self._escape(data))

    def close(self) -> None:
        super().close()
        self._paragraph()

    def _text(self) -> str:
        """The words since the last block in one line."""
        return re.sub(r"\s+", " ", "".join(self._words)).strip()

    def _wrap(self, start: int, form: str) -> None:
        """Insert the words since ``start`` into ``form``; an aside without words before it is left as it is."""
        inner, before = "".join(self._words[start:]).strip(), "".join(self._words[:start]).strip()
        if inner and (before or form.startswith("*")):
            inner = form.format(inner)
        self._words[start:] = [inner]

    def _take(self) -> str:
        words, self._words = self._text(), []
        return words

    def _paragraph(self, before: str = "") -> None:
        if words := self._take():
            self._add(before + LEADING.sub(r"\1\\\2", words))

    def _add(self, block: str) -> None:
        if block.startswith("- ") and self.blocks and self.blocks[-1].startswith("- "):
            self.blocks[-1] += "\n" + block
        else:
            self.blocks.append(block)

    def _table(self) -> None:
        head, *rows = self._rows
        lines = [head, self._rules, *rows]
        self._rows, self._rules = [], []
        self._add("\n".join("| " + " | ".join(line) + " |" for line in lines))
