"""Small pieces of HTML. Every function takes plain text and escapes it; a ``Markup`` result is finished HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from daybreak.core.formatting import significant
from daybreak.reporting.series import to_script

DIGITS = 4
"""Of a number in the table of a figure."""


class Markup(str):
    """Finished HTML, which ``escape`` leaves as it is."""


def escape(value: Any) -> Markup:
    """Text as HTML; Markup passes through."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def tag(name: str, *content: Any, **attributes: str) -> Markup:
    """``tag("p", "a < b", class_="note")`` -> ``<p class="note">a &lt; b</p>``; content is escaped unless Markup."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{written}>{''.join(escape(item) for item in content)}</{name}>")


def join(*pieces: Any) -> Markup:
    return Markup("".join(escape(piece) for piece in pieces))


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]], words: int = 1) -> Markup:
    """A table whose first ``words`` columns are text and whose other columns are right-aligned numbers.

    The first cell of a row is its heading, unless it is empty.
    """
    sides = ["w" if column < words else "n" for column in range(len(head))]
    top = tag("tr", *(tag("th", cell, class_=side, scope="col") for cell, side in zip(head, sides)))
    body = [tag("tr", *(_cell(place, cell, sides[place]) for place, cell in enumerate(row))) for row in rows]
    return tag("div", tag("table", tag("thead", top), tag("tbody", *body)), class_="scroll")


def _cell(place: int, cell: Any, side: str) -> Markup:
    return tag("td", cell, class_=side) if place or not cell else tag("th", cell, class_=side, scope="row")


def facts(pairs: Mapping[str, Any]) -> Markup:
    """Names and values, one pair a line; None values are left out."""
    lines = [
        tag("div", tag("dt", name), tag("dd", value), class_="fact")
        for name, value in pairs.items()
        if value is not None
    ]
    return tag("dl", *lines)


def section(title: str, *content: Any, caption: str = "") -> Markup:
    lead = [tag("p", caption, class_="caption")] if caption else []
    return tag("section", tag("h2", title), *lead, *content)


def note(text: Any, kind: str = "note") -> Markup:
    return tag("p", text, class_=kind)


def fold(title: str, *content: Any) -> Markup:
    """Content behind a title that opens at a click."""
    return tag("details", tag("summary", title), *content)


def figure(title: str, caption: str, value: dict[str, Any], legend: Any = "", *, numbers: bool = True) -> Markup:
    """A plot with its own data beside it; the page's script draws it where it stands.

    Args:
        numbers: add a table of its lines, folded, for who cannot see it; not where a table beside the figure tells all.
    """
    height = f"height:{value['layout']['height']}px"
    data = Markup(f'<script type="application/json">{to_script(value)}</script>')
    told = _told(value) if numbers else []
    where = "; its numbers stand in a table below it" if told or not numbers else ""
    plot = tag("div", class_="plot", style=height, role="img", aria_label=f"Plot: {title}{where}")
    folded = [fold("Numbers", *told)] if told else []
    return tag("figure", tag("h3", title), legend, plot, data, tag("figcaption", caption), *folded)


def _told(value: dict[str, Any]) -> list[Markup]:
    """What a figure shows, as a table: a row a line, or a row a bar; nothing of one that shows nothing."""
    bars = [words for trace in value["data"] if trace["type"] == "bar" for words in trace.get("hovertext", [])]
    if bars:
        return [table(("Bars, from left to right",), [[html.unescape(words)] for words in bars])]
    rows = _lines(value["data"])
    head = ("Line", "Points", "From", "To", "First", "Lowest", "Highest", "Last")
    return [note(_axes(value["layout"]), "quiet"), table(head, rows)] if rows else []


def _lines(data: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Of each trace: how many points that are numbers, from where to where on x, and what the values on y are."""
    rows = []
    for trace in data:
        pairs = [pair for pair in zip(trace.get("x", []), trace.get("y", [])) if all(map(_is_number, pair))]
        if not pairs:
            continue
        x, y = zip(*pairs)
        told = [significant(value, DIGITS) for value in (min(x), max(x), y[0], min(y), max(y), y[-1])]
        rows.append([html.unescape(trace.get("name", "")), f"{len(pairs):,}", *told])
    return rows


def _axes(layout: dict[str, Any]) -> str:
    x, y = (layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
    return f"From and to: {x}. The values: {y}."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def legend(*entries: tuple[str, str, str]) -> Markup:
    """Entries of (style, colour, words); the style is a class of line or dot known to the style sheet."""
    items = [tag("span", tag("i", class_=style, style=f"--c:{tint}"), words) for style, tint, words in entries]
    return tag("div", *items, class_="legend")
