"""The blocks of a report, such as paragraphs, tables and figures, and the page that two templates make of them.

A function for each kind of block holds what the block shows; ``templates/blocks.html`` and ``templates/page.md`` hold
how it looks. Text inside a block is plain and is escaped, or ``Markup``: inline HTML of ``b``, ``small``, ``span``,
``i``, ``mark`` and ``br``. A block may be None where there is nothing to show.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from daybreak import __version__
from daybreak.core.formatting import count, significant
from daybreak.reporting import charts
from daybreak.reporting.runs import RunRecords

Inline = Markup | str
Legend = Sequence[tuple[str, str, Inline]]
"""Entries of (style, color, text); the style is a class of line or dot in the style sheet."""
UNKNOWN = "-"
DIGITS = 4
"""Significant digits in the table of a figure."""


@dataclass(frozen=True)
class Block:
    """A part of a page."""

    kind: str
    """Its name in the templates."""
    content: Mapping[str, Any]


# ---------------------------------------------------------------- kinds of blocks


def header(brand: str, title: str, subtitle: str, lead: str, *parts: Block | None) -> Block:
    """The top of a page."""
    return Block("header", {"brand": brand, "title": title, "subtitle": subtitle, "lead": lead, "parts": parts})


def section(title: str, *parts: Block | None, caption: str = "") -> Block:
    return Block("section", {"title": title, "parts": parts, "caption": caption})


def heading(text: Inline) -> Block:
    return Block("heading", {"text": text})


def note(text: Inline, style: str = "note") -> Block:
    return Block("note", {"text": text, "style": style})


def items(texts: Sequence[Inline]) -> Block:
    return Block("items", {"texts": texts})


def code(text: str, *, wrap: bool = False) -> Block:
    """Text in a fixed width; ``wrap`` breaks long lines."""
    return Block("code", {"text": text, "wrap": wrap})


def table(head: Sequence[Inline], rows: Sequence[Sequence[Any]], words: int = 1) -> Block:
    """A table whose first ``words`` columns are text and whose other columns are right-aligned numbers.

    The first cell of a row is its heading, unless it is empty.
    """
    return Block("table", {"head": head, "rows": rows, "words": words})


def records_table(rows: Sequence[Mapping[str, Any]], words: int = 1) -> Block:
    """A table of rows that name their cells, all in the same order; a column is left out if all its cells are None."""
    head = list(rows[0]) if rows else []
    names = [name for name in head if any(row[name] is not None for row in rows)]
    cells = [[UNKNOWN if row[name] is None else row[name] for name in names] for row in rows]
    return table(names, cells, sum(name in names for name in head[:words]))


def facts(pairs: Mapping[str, Any]) -> Block:
    """Names and values, one pair per line, without the pairs whose value is None."""
    return Block("facts", {"pairs": {name: value for name, value in pairs.items() if value is not None}})


def tiles(values: Sequence[tuple[str, str, str]]) -> Block:
    """Large numbers: (value, what it is, detail) each."""
    return Block("tiles", {"values": values})


def bars(entries: Sequence[tuple[str, float, str, bool]]) -> Block:
    """Horizontal bars: (name, fraction in [0, 1], text, highlighted) each."""
    percentages = [(name, 100 * min(max(part, 0.0), 1.0), text, right) for name, part, text, right in entries]
    return Block("bars", {"entries": percentages})


def example(text: Inline, detail: Inline, *parts: Block) -> Block:
    """A text with a detail below and blocks beside it."""
    return Block("example", {"text": text, "detail": detail, "parts": parts})


def buttons(runs: Sequence[RunRecords]) -> Block:
    """A button for each run, which shows and hides it in all plots."""
    return Block("buttons", {"runs": [(charts.color(number), run.label) for number, run in enumerate(runs)]})


def card(title: Inline, *parts: Block | None) -> Block:
    return Block("group", {"style": "card", "parts": [heading(title), *parts] if title else parts})


def grid(*parts: Block | None, columns: str = "pair") -> Block | None:
    """Blocks in two columns (``pair``) or three (``three``); None without blocks."""
    return Block("group", {"style": columns, "parts": parts}) if any(parts) else None


def fold(title: str, *parts: Block | None) -> Block:
    """Blocks behind a title that opens with a click."""
    return Block("fold", {"title": title, "parts": parts})


def figure(title: str, caption: str, chart: charts.Figure, legend: Legend = (), *, numbers: bool = True) -> Block:
    """A plot, which the page's script draws; Markdown leaves it out.

    Args:
        numbers: add a folded table of the plotted lines for readers who cannot see the plot. Leave it out if a table
            beside the figure holds all numbers.
    """
    rows = _numbers(chart) if numbers else []
    data = Markup(charts.to_script(chart))
    plot = {"title": title, "caption": caption, "data": data, "legend": legend, "height": chart["layout"]["height"]}
    return Block("figure", plot | {"named": bool(rows) or not numbers, "numbers": rows})


def _numbers(chart: charts.Figure) -> list[Block]:
    """The content of a chart as a table with one row per bar or line; empty if the chart has no data."""
    texts = [text for trace in chart["data"] if trace["type"] == "bar" for text in trace["hovertext"]]
    if texts:
        return [table(("Bars, from left to right",), [[html.unescape(text)] for text in texts])]
    rows = []
    for trace in chart["data"]:
        pairs = [(x, y) for x, y in zip(trace["x"], trace["y"]) if charts.is_number(x) and charts.is_number(y)]
        if pairs:
            x, y = zip(*pairs)
            values = [significant(value, DIGITS) for value in (min(x), max(x), y[0], min(y), max(y), y[-1])]
            rows.append([html.unescape(trace["name"]), f"{len(pairs):,}", *values])
    if not rows:
        return []
    x_title, y_title = (chart["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
    head = ("Line", "Points", "From", "To", "First", "Lowest", "Highest", "Last")
    return [note(f"From and to: {x_title}. Values: {y_title}.", "quiet"), table(head, rows)]


# ---------------------------------------------------------------- inline text


def small(text: Any) -> Markup:
    """Secondary text below a value."""
    return Markup("<small>{}</small>").format(text)


def bold(text: Any) -> Markup:
    return Markup("<b>{}</b>").format(text)


def styled(text: Any, style: str) -> Markup:
    """Text with a class of the style sheet, such as ``best`` or ``poor``."""
    return Markup('<span class="{}">{}</span>').format(style, text)


def join(*parts: Any, by: str = "") -> Markup:
    return Markup(by).join(parts)


def run_name(runs: Sequence[RunRecords], number: int) -> Markup:
    """A run's label with the color that it has in all plots."""
    return Markup('<span><i style="--c:{}"></i>{}</span>').format(charts.color(number), runs[number].label)


def many(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``, ``2.31 million documents``."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------- the page

IN_MARKDOWN = {"<b>": "**", "</b>": "**", "<small>": " (", "</small>": ")", "<br>": "; "}
"""Inline HTML in Markdown; other elements are left out."""
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&])")
LEADING = re.compile(r"^(\d*)([#+.)-])")
"""Starts of a line that Markdown would read as a heading or an item."""


def inline_markdown(text: Any) -> str:
    """One line of Markdown in which plain text stays text."""
    pieces = re.split(r"(<[^>]*>)", str(escape(text)))
    plain = [SPECIAL.sub(r"\\\1", html.unescape(piece)) for piece in pieces[::2]]
    tags = [IN_MARKDOWN.get(tag, " ") for tag in pieces[1::2]]
    return re.sub(r"\s+", " ", "".join(part for pair in zip(plain, [*tags, ""]) for part in pair)).strip()


@functools.cache
def templates(form: str) -> jinja2.Environment:
    """The templates of a form of the page: html or md."""
    loader = jinja2.PackageLoader("daybreak.reporting")
    jinja = jinja2.Environment(loader=loader, autoescape=form == "html", trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {
        "inline": inline_markdown,
        "line": lambda text: LEADING.sub(r"\1\\\2", inline_markdown(text)),
        "fence": lambda text: "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0)),
    }
    return jinja


def document(
    title: str, body: Sequence[Block | None], source: str, *, form: str = "html", reload_seconds: int | None = None
) -> str:
    """Return a page: HTML that needs no other file, or GitHub-flavored Markdown without plots.

    Args:
        source: the files that the page describes, for its last line.
        form: html or md.
        reload_seconds: interval at which the page reloads, until the reader switches it off; None for never.
    """
    page = (
        templates(form)
        .get_template(f"page.{form}")
        .render(
            title=title,
            body=body,
            source=source,
            reload_seconds=reload_seconds,
            plotly=Markup(plotly.offline.get_plotlyjs()) if form == "html" else "",
            version=__version__,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )
    # A file name that is not UTF-8 contains surrogates, which a text file cannot hold.
    return page.encode("utf-8", "replace").decode("utf-8")
