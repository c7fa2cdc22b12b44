"""Small pieces of HTML. Every function takes plain text and escapes it; a ``Markup`` result is finished HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from daybreak.reporting.series import to_script


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
    """A table whose first ``words`` columns are text and whose other columns are right-aligned numbers."""
    sides = ["w" if column < words else "n" for column in range(len(head))]
    top = tag("tr", *(tag("th", cell, class_=side) for cell, side in zip(head, sides)))
    body = [tag("tr", *(tag("td", cell, class_=side) for cell, side in zip(row, sides))) for row in rows]
    return tag("div", tag("table", tag("thead", top), tag("tbody", *body)), class_="scroll")


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


def figure(title: str, caption: str, value: dict[str, Any], legend: Any = "") -> Markup:
    """A plot with its own data beside it; the page's script draws it where it stands."""
    height = f"height:{value['layout']['height']}px"
    data = Markup(f'<script type="application/json">{to_script(value)}</script>')
    plot = tag("div", class_="plot", style=height, role="img", aria_label=title)
    return tag("figure", tag("h3", title), legend, plot, data, tag("figcaption", caption))


def legend(*entries: tuple[str, str, str]) -> Markup:
    """Entries of (style, colour, words); the style is a class of line or dot known to the style sheet."""
    items = [tag("span", tag("i", class_=style, style=f"--c:{tint}"), words) for style, tint, words in entries]
    return tag("div", *items, class_="legend")
