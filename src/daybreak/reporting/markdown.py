"""The page as Markdown, for a README, an issue or a terminal: its words and tables, without its plots."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.parser import HTMLParser

LEFT_OUT = {"head", "script", "style", "figure", "nav", "noscript", "button"}
"""What is drawn or clicked, and what no reader sees."""
HEADINGS = {"h1": "# ", "h2": "## ", "h3": "### "}
ASIDES = {"small", "em"}
"""What the page writes small, under or behind a value."""
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&])")
LEADING = re.compile(r"^(\d*)([#+.)-])")
"""What a line may not begin with, lest it become a heading or an item."""


def as_markdown(page: str) -> str:
    """Return a page of ours as GitHub-flavoured Markdown.

    Only the tags that this folder writes are known: the page is the one source of both forms, so that nothing can be
    said in one and forgotten in the other.
    """
    writer = _Writer()
    writer.feed(page)
    writer.close()
    return "\n\n".join(_without_empty_sections(writer.blocks)) + "\n"


def _without_empty_sections(blocks: list[str]) -> list[str]:
    """A section that holds nothing but plots leaves a heading with nothing under it."""
    kept: list[str] = []
    for block in reversed(blocks):
        last = block.startswith("## ") and (not kept or kept[-1].startswith("## "))
        if not last:
            kept.append(block)
    return kept[::-1]


def _plain(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)


class _Writer(HTMLParser):
    """Collects blocks: a paragraph, a heading, a list, a table or a fold's border each."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._words: list[str] = []
        self._rows: list[list[str]] = []
        self._rules: list[str] = []
        self._begun: list[int] = []
        """Of the asides and stresses that are open: how many words there were before."""
        self._skipping = 0
        self._written: Callable[[str], str] = _plain
        """How text is written where it stands."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipping += tag in LEFT_OUT
        if self._skipping:
            return
        if tag in ("p", "div", "pre", "table", "details", "dt", "footer", "section", *HEADINGS):
            self._paragraph()
        if tag in ASIDES or tag == "b":
            self._begun.append(len(self._words))
        elif tag == "tr":
            self._rows.append([])
        elif tag == "th" and ("scope", "row") not in attrs:
            self._rules.append("---:" if ("class", "n") in attrs else "---")
        elif tag == "pre":
            self._written = str
        elif tag == "summary":
            self._written = html.escape
        else:
            self._words.append(": " if tag == "dd" else " ")

    def handle_endtag(self, tag: str) -> None:
        if tag in LEFT_OUT:
            self._skipping -= 1
        elif self._skipping:
            return
        elif tag in ASIDES or tag == "b":
            self._close_words(self._begun.pop(), "**{}**" if tag == "b" else " ({})")
        elif tag in ("th", "td"):
            self._rows[-1].append(self._taken())
        elif tag == "table":
            self._table()
        elif tag == "pre":
            code, self._words, self._written = "".join(self._words).strip("\n"), [], _plain
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
            self._add(f"{fence}\n{code}\n{fence}")
        elif tag == "summary":
            self._add(f"<details><summary>{self._taken()}</summary>")
            self._written = _plain
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
            self._words.append(self._written(data))

    def close(self) -> None:
        super().close()
        self._paragraph()

    def _said(self) -> str:
        """The words since the last block, in one line."""
        return re.sub(r"\s+", " ", "".join(self._words)).strip()

    def _close_words(self, begun: int, form: str) -> None:
        """Put the words since ``begun`` into ``form``; an aside of nothing else stands as it is."""
        inner, before = "".join(self._words[begun:]).strip(), "".join(self._words[:begun]).strip()
        if inner and (before or form.startswith("*")):
            inner = form.format(inner)
        self._words[begun:] = [inner]

    def _taken(self) -> str:
        words, self._words = self._said(), []
        return words

    def _paragraph(self, before: str = "") -> None:
        if words := self._taken():
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
