"""What a run was expected to reach beside what it reached, and its training loss beside what is usual."""

from __future__ import annotations

import html
from collections.abc import Sequence

from daybreak.core.formatting import percent
from daybreak.reporting import figures
from daybreak.reporting.figures import Figure, Trace
from daybreak.reporting.markup import Markup, figure, legend, note, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.sections import NOTHING, UNKNOWN, run_name
from daybreak.reporting.series import thinned
from daybreak.schemas.forecast import Forecast, ForecastLog

EARLY = 0.1
"""Share of a run at which its forecast is judged again."""


def outlook(runs: Sequence[RunRecords]) -> Markup:
    """Forecasts, their calibration over these runs, and the usual course; nothing where nobody foresaw anything."""
    foreseen = [(number, run.outlook) for number, run in enumerate(runs) if run.outlook]
    if not foreseen:
        return NOTHING
    single = len(runs) == 1
    plots = [
        figure(
            "The end, as forecast on the way",
            "Held-out loss at the end by how far the run was when it was forecast, with the 90 % interval"
            + (" (shaded)." if single else ": only the middle is drawn for several runs."),
            _ends(runs, foreseen),
        )
    ]
    if single and runs[0].steps:
        plots.append(
            figure(
                "Is the loss usual?",
                "The training loss beside what is usual just before each tenth of such a run (shaded: nine of ten).",
                _usual(runs[0], foreseen[0][1]),
                legend(("thin", figures.colour(0), "training loss"), ("dashed", "var(--quiet)", "usual")),
            )
        )
    rows = [_row(run_name(runs, number), runs[number], found) for number, found in foreseen]
    head = ("Run", "Foreseen at the start", f"at {EARLY:.0%}", "Reached", "Off at the start", f"off at {EARLY:.0%}")
    caption = "By the law of losses that comes with this version; the intervals should hold nine times out of ten."
    judged = [_calibration(runs, foreseen)] if len(foreseen) > 1 else []
    beyond = [
        note(f"A guess, for it lies outside of what the law was measured on: {words}.") for words in _beyond(foreseen)
    ]
    return section(
        "Expected and reached", tag("div", *plots, class_="pair"), table(head, rows), *judged, *beyond, caption=caption
    )


def _ends(runs: Sequence[RunRecords], foreseen: Sequence[tuple[int, ForecastLog]]) -> Figure:
    data: list[Trace] = []
    layout = figures.base_layout("% of the run", "nats per token")
    for number, found in foreseen:
        at = [100 * one.made_at for one in found.forecasts]
        if len(runs) == 1:
            data += _band(at, found.forecasts, figures.colour(number))
        name = "foreseen" if len(runs) == 1 else f"{html.escape(runs[number].label)}: forecast"
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": name, "meta": number, "x": at,
                "y": [one.loss for one in found.forecasts], "line": {"color": figures.colour(number), "width": 2.5},
                "marker": figures.mark(number, runs), "hovertemplate": f"%{{y:.4~g}} {name}<extra></extra>",
            }
        )  # fmt: skip
        if reached := _reached(runs[number]):
            data.append(
                {
                    "type": "scatter", "mode": "markers", "name": name.replace("foreseen", "reached"), "meta": number,
                    "x": [100], "y": [reached], "hovertemplate": "%{y:.4~g} reached<extra></extra>",
                    "marker": {"size": 12, "symbol": "star", "color": figures.colour(number)},
                }
            )  # fmt: skip
    layout["xaxis"]["range"] = [-2, 103]
    return {"data": data, "layout": layout}


def _usual(run: RunRecords, found: ForecastLog) -> Figure:
    layout = figures.base_layout("% of the run", "nats per token")
    at = [100 * one.made_at for one in found.usual]
    kept = thinned(run.steps)
    usual = {
        "type": "scatter", "mode": "lines+markers", "name": "usual", "meta": 0, "x": at,
        "y": [one.loss for one in found.usual], "line": {"color": "var(--quiet)", "width": 1.5, "dash": "dash"},
        "hovertemplate": "%{y:.4~g} usual<extra></extra>",
    }  # fmt: skip
    own = {
        "type": "scatter", "mode": "lines", "name": "training loss", "meta": 0,
        "x": [100 * step.progress for step in kept], "y": [step.loss for step in kept], "opacity": 0.8,
        "line": {"color": figures.colour(0), "width": 1.5}, "hovertemplate": "%{y:.4~g} training loss<extra></extra>",
    }  # fmt: skip
    return {"data": [*_band(at, found.usual, "#7a8290"), usual, own], "layout": layout}


def _band(at: Sequence[float], forecasts: Sequence[Forecast], tint: str) -> list[Trace]:
    """The intervals as a shaded area."""
    edge = {"type": "scatter", "mode": "lines", "x": list(at), "line": {"width": 0}, "hoverinfo": "skip", "meta": 0}
    fill = {"fill": "tonexty", "fillcolor": f"{tint}2e"}
    return [
        edge | {"name": "lower edge", "y": [one.low for one in forecasts]},
        edge | fill | {"name": "upper edge", "y": [one.high for one in forecasts]},
    ]


def _reached(run: RunRecords) -> float | None:
    return run.summary.validation.loss if run.summary else None


def _early(found: ForecastLog) -> Forecast | None:
    """The first forecast that saw something of the run."""
    return next((one for one in found.forecasts if one.made_at >= EARLY - 1e-9), None)


def _row(name: Markup, run: RunRecords, found: ForecastLog) -> list[object]:
    reached, start, early = _reached(run), found.forecasts[0], _early(found)
    return [
        name, start.words, early.words if early else UNKNOWN, f"{reached:.2f}" if reached else UNKNOWN,
        _off(start, reached), _off(early, reached),
    ]  # fmt: skip


def _off(forecast: Forecast | None, reached: float | None) -> str:
    if forecast is None or reached is None:
        return UNKNOWN
    inside = "inside" if forecast.low <= reached <= forecast.high else "outside"
    return f"{percent(forecast.loss / reached - 1)}, {inside}"


def _calibration(runs: Sequence[RunRecords], foreseen: Sequence[tuple[int, ForecastLog]]) -> Markup:
    """How good the forecasts were over all runs that have ended."""
    told = []
    for words, pick in (("at the start", lambda found: found.forecasts[0]), (f"at {EARLY:.0%}", _early)):
        pairs = [
            (forecast, reached)
            for number, found in foreseen
            if (forecast := pick(found)) and (reached := _reached(runs[number]))
        ]
        if pairs:
            inside = sum(one.low <= reached <= one.high for one, reached in pairs)
            error = sum(abs(one.loss / reached - 1) for one, reached in pairs) / len(pairs)
            told.append(f"{words} {inside} of {len(pairs)} inside the interval, mean error {percent(error)}")
    return note(f"Over these runs: {'; '.join(told)}.") if told else NOTHING


def _beyond(foreseen: Sequence[tuple[int, ForecastLog]]) -> list[str]:
    return list(dict.fromkeys(found.forecasts[-1].beyond for _, found in foreseen if found.forecasts[-1].beyond))
