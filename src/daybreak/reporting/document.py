"""The frame of a page: one HTML file with its style sheet, script and plotly, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import plotly.offline
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from daybreak import __version__

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy: the browser refuses every request of the page."""


def document(title: str, body: Sequence[Markup], source: str, reload_seconds: int | None = None) -> str:
    """Return a whole page that needs no other file.

    Args:
        source: the files that the page describes, for its last line.
        reload_seconds: interval at which the page reloads, until the reader switches it off; None for never.
    """
    environment = Environment(loader=PackageLoader("daybreak.reporting"), autoescape=True)
    page = environment.get_template("page.html").render(
        title=title,
        body=body,
        source=source,
        reload_seconds=reload_seconds,
        policy=Markup(POLICY),
        plotly=Markup(plotly.offline.get_plotlyjs()),
        version=__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    # A file name that is not UTF-8 contains surrogates, which a text file cannot hold.
    return page.encode("utf-8", "replace").decode("utf-8")
