"""Builders of HTML. Every function escapes plain text; a ``Markup`` result is finished HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from daybreak.core.formatting import count, significant
from daybreak.reporting import charts
from daybreak.reporting.runs import RunRecords

NOTHING = Markup("")
UNKNOWN = "-"
DIGITS = 4
"""Significant digits in the table of a figure."""


def tag(name: str, *content: Any, **attributes: str) -> Markup:
    """``tag("p", "a < b", class_="note")`` -> ``<p class="note">a &lt; b</p>``."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{join(*content)}</{name}>")


def join(*parts: Any) -> Markup:
    return NOTHING.join(parts)


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]], words: int = 1) -> Markup:
    """A table whose first ``words`` columns are text and whose other columns are right-aligned numbers.

    The first cell of a row is its heading, unless it is empty.
    """
    sides = ["w" if column < words else "n" for column in range(len(head))]
    top = tag("tr", *(tag("th", cell, class_=side, scope="col") for cell, side in zip(head, sides)))
    body = [tag("tr", *(_cell(column, cell, sides[column]) for column, cell in enumerate(row))) for row in rows]
    return tag("div", tag("table", tag("thead", top), tag("tbody", *body)), class_="scroll")


def _cell(column: int, cell: Any, side: str) -> Markup:
    return tag("td", cell, class_=side) if column or not cell else tag("th", cell, class_=side, scope="row")


def small(text: Any) -> Markup:
    """Secondary text below a value."""
    return tag("small", text)


def run_name(runs: Sequence[RunRecords], number: int) -> Markup:
    """A run's label with the colour that it has in all plots."""
    return tag("span", tag("i", style=f"--c:{charts.colour(number)}"), runs[number].label)


def facts(pairs: Mapping[str, Any]) -> Markup:
    """Names and values, one pair per line, without the pairs whose value is None."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value), class_="fact")
            for name, value in pairs.items()
            if value is not None
        ),
    )


def header(brand: str, title: str, subtitle: str, lead: str, *content: Any) -> Markup:
    """The top of a page."""
    heading = tag("h1", title, *([small(subtitle)] if subtitle else []))
    return tag("header", tag("p", brand, class_="brand"), heading, tag("p", lead, class_="lead"), *content)


def tiles(values: Sequence[tuple[str, str, str]]) -> Markup:
    """Large numbers: (value, what it is, detail) each."""
    return tag(
        "div",
        *(
            tag("div", tag("b", big), tag("span", what), tag("em", detail), class_="tile")
            for big, what, detail in values
        ),
        class_="tiles",
    )


def bars(entries: Sequence[tuple[str, float, str, bool]]) -> list[Markup]:
    """Horizontal bars: (name, fraction in [0, 1], text, highlighted) each."""
    return [
        tag(
            "div", tag("span", name), tag("u", style=f"--p:{100 * min(max(fraction, 0.0), 1.0):.1f}%"), tag("em", text),
            class_="guess right" if highlighted else "guess",
        )
        for name, fraction, text, highlighted in entries
    ]  # fmt: skip


def section(title: str, *content: Any, caption: str = "") -> Markup:
    return tag("section", tag("h2", title), *([tag("p", caption, class_="caption")] if caption else []), *content)


def card(title: Any, *content: Any) -> Markup:
    return tag("div", tag("h3", title), *content, class_="card")


def grid(*content: Any, columns: str = "pair") -> Markup:
    """Content in two columns (``pair``) or three (``three``); nothing without content."""
    parts = [part for part in content if part]
    return tag("div", *parts, class_=columns) if parts else NOTHING


def note(text: Any, kind: str = "note") -> Markup:
    return tag("p", text, class_=kind)


def fold(title: str, *content: Any) -> Markup:
    """Content behind a title that opens with a click."""
    return tag("details", tag("summary", title), *content)


def shortened(parts: Sequence[Markup], shown: int) -> list[Markup]:
    """The first ``shown`` parts and a fold with the others."""
    more = parts[shown:]
    return [*parts[:shown], *([fold(f"{len(more)} more", *more)] if more else [])]


def figure(title: str, caption: str, chart: dict[str, Any], legend: Any = "", *, numbers: bool = True) -> Markup:
    """A plot with its data, which the page's script draws.

    Args:
        numbers: add a folded table of the plotted lines for readers who cannot see the plot. Leave it out if a table
            beside the figure holds all numbers.
    """
    data = Markup(f'<script type="application/json">{charts.to_script(chart)}</script>')
    rows = _numbers(chart) if numbers else []
    where = "; its numbers stand in a table below it" if rows or not numbers else ""
    height = f"height:{chart['layout']['height']}px"
    plot = tag("div", class_="plot", style=height, role="img", aria_label=f"Plot: {title}{where}")
    folded = [fold("Numbers", *rows)] if rows else []
    return tag("figure", tag("h3", title), legend, plot, data, tag("figcaption", caption), *folded)


def _numbers(chart: dict[str, Any]) -> list[Markup]:
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


def legend(*entries: tuple[str, str, Any]) -> Markup:
    """Entries of (style, colour, text); the style is a class of line or dot in the style sheet."""
    items = [tag("span", tag("i", class_=style, style=f"--c:{tint}"), text) for style, tint, text in entries]
    return tag("div", *items, class_="legend")


def many(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``, ``2.31 million documents``."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
