"""Forecasts of the held-out loss beside the loss reached, and the training loss beside its typical course."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from daybreak.core.formatting import percent
from daybreak.reporting.blocks import Block, Inline, figure, grid, note, records_table, run_name, section
from daybreak.reporting.charts import Figure, Trace, base_layout, color, run_line, scatter, thinned
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.training import marker
from daybreak.schemas.forecast import Forecast, ForecastLog

EARLY = 0.1
"""Fraction of a run at which its forecast is evaluated again."""


def forecasts(runs: Sequence[RunRecords]) -> Block | None:
    """Forecasts and the typical course; nothing without forecasts."""
    logs = [(number, run.forecast) for number, run in enumerate(runs) if run.forecast]
    if not logs:
        return None
    single = len(runs) == 1
    caption = "Forecast of the final held-out loss by the fraction of the run at which it was made"
    caption += ", with the 90 % interval (shaded)." if single else "; without intervals for several runs."
    if any(map(_reached, runs)):
        caption += " The star is the loss that was reached."
    plots = [figure("Forecasts of the final loss", caption, _finals(runs, logs))]
    if single and runs[0].steps:
        caption = "The training loss and the typical loss of such runs at each tenth (shaded: 90 % of runs)."
        key = [("thin", color(0), "training loss"), ("dashed", "var(--quiet)", "typical")]
        plots.append(figure("Training loss and typical course", caption, _typical(runs[0], logs[0][1]), key))
    rows = [_row(run_name(runs, number), runs[number], log) for number, log in logs]
    outside = dict.fromkeys(log.forecasts[-1].beyond for _, log in logs if log.forecasts[-1].beyond)
    return section(
        "Forecasts",
        grid(*plots),
        records_table(rows),
        *(
            note(f"The forecast is an extrapolation, outside the runs that the law was fitted on: {words}.")
            for words in outside
        ),
        caption="From the scaling law of this version of Daybreak; 90 % of the intervals should contain the result.",
    )


def _finals(runs: Sequence[RunRecords], logs: Sequence[tuple[int, ForecastLog]]) -> Figure:
    data: list[Trace] = []
    hover = "%{y:.4~g}"
    for number, log in logs:
        x, y = [100 * forecast.made_at for forecast in log.forecasts], [forecast.loss for forecast in log.forecasts]
        if len(runs) == 1:
            data += _band(x, log.forecasts, color(number))
        data.append(run_line(runs, number, "forecast", x, y, width=2.5, symbol=marker(number), hover=hover))
        if reached := _reached(runs[number]):
            star: dict[str, Any] = {"mode": "markers", "size": 12, "symbol": "star"}
            data.append(run_line(runs, number, "reached", [100], [reached], hover=hover, **star))
    layout = base_layout("% of the run", "nats per token")
    layout["xaxis"]["range"] = [-2, 103]
    return {"data": data, "layout": layout}


def _typical(run: RunRecords, log: ForecastLog) -> Figure:
    x, y = [100 * each.made_at for each in log.usual], [each.loss for each in log.usual]
    steps = thinned(run.steps)
    look: dict[str, Any] = {"run": 0, "width": 1.5, "hover": "%{y:.4~g}"}
    progress, losses = [100 * step.progress for step in steps], [step.loss for step in steps]
    data = [
        *_band(x, log.usual, "#7a8290"),
        scatter("typical", x, y, "var(--quiet)", dash="dash", **look),
        scatter("training loss", progress, losses, color(0), mode="lines", opacity=0.8, **look),
    ]
    return {"data": data, "layout": base_layout("% of the run", "nats per token")}


def _band(x: Sequence[float], forecasts: Sequence[Forecast], tint: str) -> list[Trace]:
    """The intervals as a shaded area."""
    look: dict[str, Any] = {"run": 0, "mode": "lines", "width": 0, "hoverinfo": "skip"}
    fill: dict[str, Any] = {"fill": "tonexty", "fillcolor": f"{tint}2e"}
    return [
        scatter("lower end", x, [each.low for each in forecasts], tint, **look),
        scatter("upper end", x, [each.high for each in forecasts], tint, **look, **fill),
    ]


def _reached(run: RunRecords) -> float | None:
    return run.summary.validation.loss if run.summary else None


def _row(name: Markup, run: RunRecords, log: ForecastLog) -> dict[str, Inline | None]:
    reached, start = _reached(run), log.forecasts[0]
    # A run that resumes just before has none there.
    early = next((each for each in log.forecasts if abs(each.made_at - EARLY) < 1e-9), None)
    return {
        "Run": name,
        "Forecast at the start": start.words,
        f"at {EARLY:.0%}": early.words if early else None,
        "Reached": f"{reached:.2f}" if reached else None,
        "Error at the start": _error(start, reached),
        f"error at {EARLY:.0%}": _error(early, reached),
    }


def _error(forecast: Forecast | None, reached: float | None) -> str | None:
    if forecast is None or reached is None:
        return None
    inside = "inside" if forecast.low <= reached <= forecast.high else "outside"
    return f"{percent(forecast.loss / reached - 1)}, {inside}"
