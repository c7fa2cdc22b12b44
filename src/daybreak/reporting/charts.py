"""Charts as plain plotly JSON, ``{"data": [...], "layout": {...}}``, built without importing plotly.

A run has the same color in all charts. Colors written as ``var(--name)`` are theme colors: the page's script
replaces them with the value in the light or the dark style sheet. Names of traces are HTML and must be escaped.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from typing import Any

from daybreak.core.formatting import scale_of
from daybreak.reporting.runs import RunRecords

Figure = dict[str, Any]
Trace = dict[str, Any]

RUN_COLORS = (
    "#3f77e0", "#d9822b", "#2a9d78", "#b5489c", "#8a6d3b", "#6b5fc7", "#c44e52", "#4c9fb8",
    "#8fb52f", "#e377c2", "#c9a400", "#7a8290", "#14b8c4", "#a0522d", "#9d7be8", "#5f8f5a",
)  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
LEGEND_STYLES = {"solid": "solid", "dot": "dotted"}
"""The class of a dash in a legend; other dashes are ``dashed``."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")
POINTS_PER_TRACE = 2000
POINTS_PER_PAGE = 50_000
"""Keeps the page under 6 MB with any number of runs."""


def color(run: int) -> str:
    return RUN_COLORS[run % len(RUN_COLORS)]


def key_color(runs: Sequence[RunRecords]) -> str:
    """The color of a line in the legend: that of the run, or of text if several runs have such a line."""
    return color(0) if len(runs) == 1 else "var(--ink)"


def series_name(runs: Sequence[RunRecords], run: int, text: str) -> str:
    """The escaped name of a line; with several runs it begins with the label of the run."""
    return html.escape(text if len(runs) == 1 else f"{runs[run].label}: {text}")


def scatter(
    name: str, x: Sequence[Any], y: Sequence[Any], tint: str, *, run: int | None = None, mode: str = "lines+markers",
    width: float = 2.0, dash: str = "solid", size: int = 7, symbol: str = "circle", hover: str = "%{y:.1f}",
    **more: Any,
) -> Trace:  # fmt: skip
    """A line or points.

    Args:
        name: escaped HTML.
        run: the number of the run, whose button shows and hides the trace; None if the trace is always shown.
        hover: the text of a point as a plotly template; the name follows.
    """
    return {
        "type": "scatter", "mode": mode, "name": name, "x": list(x), "y": list(y), "meta": run,
        "line": {"color": tint, "width": width, "dash": dash},
        "marker": {"size": size, "symbol": symbol, "color": tint},
        "hovertemplate": f"{hover} {name}<extra></extra>",
    } | more  # fmt: skip


def run_line(runs: Sequence[RunRecords], run: int, text: str, x: Sequence[Any], y: Sequence[Any], **look: Any) -> Trace:
    """A line of a run in its color; ``look`` as in ``scatter``."""
    return scatter(series_name(runs, run, text), x, y, color(run), run=run, **look)


def error_bars(low: Sequence[float], middle: Sequence[float], high: Sequence[float], tint: str) -> dict[str, Any]:
    above, below = ([b - a for a, b in zip(*pair)] for pair in ((middle, high), (low, middle)))
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return bars | {"color": tint, "thickness": 2, "width": 4}


def base_layout(x_title: str, y_title: str, **changes: Any) -> Figure:
    """The layout that all figures share; the colors follow the page's theme."""
    axis = {"gridcolor": "var(--grid)", "zeroline": False, "linecolor": "var(--grid)", "automargin": True}
    return {
        "height": 340,
        "margin": {"l": 8, "r": 12, "t": 14, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--ink)", "size": 12, "family": "system-ui, sans-serif"},
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--grid)", "font": {"color": "var(--ink)"}},
        "xaxis": axis | {"title": {"text": x_title, "standoff": 8}, "showgrid": False},
        "yaxis": axis | {"title": {"text": y_title, "standoff": 8}},
        "shapes": [],
        "annotations": [],
    } | changes


def band_layout(x_title: str, names: Sequence[str]) -> Figure:
    """A layout whose y axis has a name for each row, with a vertical grid; the caller places the ticks."""
    layout = base_layout(x_title, "", hovermode="closest")
    layout["xaxis"]["showgrid"] = True
    layout["yaxis"] |= {"ticktext": list(names), "showgrid": False}
    return layout


def straight_line(
    layout: Figure, tint: str = "var(--quiet)", *, x: float | None = None, y: float | None = None, width: float = 1.5,
    dash: str = "dash", span: tuple[float, float] | None = None, **more: Any,
) -> None:  # fmt: skip
    """Add a vertical line at ``x`` or a horizontal one at ``y``; without ``span`` it crosses the whole figure."""
    along, across, at = ("y", "x", x) if x is not None else ("x", "y", y)
    start, end = span or (0, 1)
    ends = {f"{across}0": at, f"{across}1": at, f"{along}0": start, f"{along}1": end}
    whole = {} if span else {f"{along}ref": "paper"}
    line = {"color": tint, "width": width, "dash": dash}
    layout["shapes"].append({"type": "line", **ends, **whole, "line": line} | more)


def label(layout: Figure, text: str, **place: Any) -> None:
    """Add words to a figure; ``place`` is the place of a plotly annotation."""
    font = {"color": "var(--quiet)", "size": 12}
    layout["annotations"].append({"text": text, "showarrow": False, "font": font, "bgcolor": "var(--card)"} | place)


def upright_label(layout: Figure, text: str, x: float) -> None:
    """Words beside the upper end of a vertical line."""
    label(layout, text, x=x, yref="paper", y=1, xanchor="left", yanchor="top", xshift=4)


def thinned(values: Sequence[Any], most: int = POINTS_PER_TRACE) -> list[Any]:
    """At most ``most`` of the values, evenly spaced, with the first and the last."""
    if len(values) <= most:
        return list(values)
    stride = (len(values) - 1) / (most - 1)
    return [values[round(i * stride)] for i in range(most)]


def time_unit(longest: float) -> tuple[float, str]:
    """(seconds in the unit, its name) for an axis up to ``longest`` seconds."""
    if longest < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest < 3 * 3600 else (3600.0, "hours")


def token_unit(most: float) -> tuple[float, str]:
    """(tokens in the unit, its name): ``(1e6, 'million tokens')``."""
    size, name = scale_of(most)
    return size, f"{name} tokens".strip()


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def rounded(value: Any) -> Any:
    """Five significant digits; infinities and NaN become gaps (null)."""
    if isinstance(value, float):
        short = float(f"{value:.5g}")
        return short if math.isfinite(short) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def to_script(value: Any) -> str:
    """JSON that may stand inside a <script> element: without ``<``, so that no text can close the element."""
    text = json.dumps(rounded(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
