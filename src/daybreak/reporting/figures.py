"""Runs -> plotly figures as plain JSON values: {"data": [...], "layout": {...}}.

One colour is one run on the whole page. Colours written as ``var(--name)`` are theme colours: the page's script
replaces them by the value that the light or the dark style sheet gives.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

from daybreak.core.formatting import significant
from daybreak.reporting.events import Event, events
from daybreak.reporting.flops import UNITS, trained
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.series import POINTS_PER_PAGE, POINTS_PER_TRACE, thinned, time_unit, token_unit
from daybreak.schemas.run import StepRecord, ValidationRecord

Figure = dict[str, Any]
Trace = dict[str, Any]

RUN_COLOURS = (
    "#3f77e0", "#d9822b", "#2a9d78", "#b5489c", "#8a6d3b", "#6b5fc7", "#c44e52", "#4c9fb8",
    "#8fb52f", "#e377c2", "#c9a400", "#7a8290", "#14b8c4", "#a0522d", "#9d7be8", "#5f8f5a",
)  # fmt: skip
MARKS = ("circle", "diamond", "square", "triangle-up")
"""Of the held-out points, so that neighbouring runs differ in more than their colour."""
CROWD = 5
"""With more runs than these, what is recorded at every step steps back behind what is held out."""
EVENT_COLOURS = {"resumed": "var(--quiet)", "dropped": "#d9a441", "changed": "var(--accent)"}
EVENTS_MARKED = 60
"""Most events that are drawn into one figure; the table holds all."""
TRACES_PER_RUN = 12
"""Long traces that one run puts on the page, to share out the points."""


def colour(run: int) -> str:
    return RUN_COLOURS[run % len(RUN_COLOURS)]


def mark(run: int, runs: Sequence[RunRecords]) -> dict[str, Any]:
    """The look of the held-out points of a run."""
    return {"size": 7, "symbol": MARKS[run % len(MARKS)] if len(runs) > 1 else MARKS[0]}


def losses(runs: Sequence[RunRecords], against: str) -> Figure:
    """Training and held-out losses, the unigram plateau and the change of stage.

    Args:
        against: ``time``, ``tokens``, or ``arithmetic`` for the operations of training on a logarithmic axis, of the
            runs whose operations can be counted.
    """
    axis = Axis(runs, against)
    data: list[Trace] = []
    for number, run in enumerate(runs):
        for stage in dict.fromkeys(step.stage for step in run.steps):
            part = [step for step in run.steps if step.stage == stage]
            words = "next-token loss" if stage == "causal" else "masked loss, training"
            line = {"color": colour(number), "width": 1.5, "dash": "dot" if stage == "causal" else "solid"}
            opacity = 0.7 if len(runs) <= CROWD else 0.25
            data.append(axis.trace(runs, number, part, words, lambda step: step.loss, line=line, opacity=opacity))
        data.append(
            axis.trace(
                runs, number, run.validations, "masked loss, held out", _on_interim_rows,
                mode="lines+markers", line={"color": colour(number), "width": 2.5}, marker=mark(number, runs),
            )
        )  # fmt: skip
    layout = axis.layout("nats per token")
    plateaus = {significant(run.validation.unigram_loss): run.validation.unigram_loss for run in runs if run.validation}
    side = "left" if any(run.validation and run.validation.on_plateau for run in runs) else "right"
    for words, height in plateaus.items():
        _level(layout, height, f"unigram plateau {words}", side)
    _mark_stages(layout, runs, axis)
    _mark_events(layout, runs, axis)
    return {"data": data, "layout": layout}


def _on_interim_rows(record: ValidationRecord) -> float:
    """The loss on the rows that all validations of a run share, so that its curve compares like with like."""
    return record.loss if record.interim_loss is None else record.interim_loss


def accuracy(runs: Sequence[RunRecords]) -> Figure:
    """Accuracy on masked held-out tokens, with the accuracy of always predicting the most frequent token."""
    axis = Axis(runs, "time")
    data = [
        axis.trace(
            runs, number, run.validations, "masked accuracy", lambda record: 100 * record.accuracy,
            mode="lines+markers", line={"color": colour(number), "width": 2.5}, marker=mark(number, runs),
        )
        for number, run in enumerate(runs)
    ]  # fmt: skip
    layout = axis.layout("% right")
    layout["yaxis"]["rangemode"] = "tozero"
    shares = {
        f"{100 * r.validation.most_frequent_fraction:.1f}": 100 * r.validation.most_frequent_fraction
        for r in runs
        if r.validation
    }
    for words, height in shares.items():
        _level(layout, height, f"most frequent token {words} %")
    _mark_stages(layout, runs, axis, words="")
    return {"data": data, "layout": layout}


def learning_rate(runs: Sequence[RunRecords]) -> Figure:
    return _of_steps(runs, "learning rate", "learning rate", lambda step: step.learning_rate)


def throughput(runs: Sequence[RunRecords]) -> Figure:
    return _of_steps(runs, "tokens per second", "tokens per second", lambda step: step.tokens_per_second)


def _of_steps(runs: Sequence[RunRecords], words: str, title: str, value: Callable[[StepRecord], float]) -> Figure:
    axis = Axis(runs, "time")
    data = [
        axis.trace(runs, number, run.steps, words, value, line={"color": colour(number), "width": 1.8})
        for number, run in enumerate(runs)
    ]
    layout = axis.layout(title)
    layout["yaxis"]["rangemode"] = "tozero"
    _mark_stages(layout, runs, axis, words="")
    return {"data": data, "layout": layout}


def readable_on(ground: str) -> str:
    """Black or white, whichever differs more from a colour (contrast of WCAG 2.2)."""
    parts = [int(ground[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    light = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


class Axis:
    """The x axis that all runs share: elapsed time, tokens read, or operations of training."""

    def __init__(self, runs: Sequence[RunRecords], against: str):
        self.against = against
        self.crowded = len(runs) > CROWD
        self.trained = [trained(run) for run in runs] if against == "arithmetic" else []
        if against == "time":
            self.size, self.unit = time_unit(max((run.elapsed for run in runs), default=0.0))
        elif against == "tokens":
            self.size, self.unit = token_unit(max((run.tokens for run in runs), default=0))
        else:
            most = max((found.total for found in self.trained if found), default=0.0)
            self.size, self.unit = next((unit for unit in UNITS if most >= unit[0]), UNITS[-1])

    def of(self, number: int, record: StepRecord | ValidationRecord | Event) -> float | None:
        """Where a record of run ``number`` stands; None where it has no place."""
        if self.against == "time":
            return record.elapsed / self.size
        if self.against == "tokens":
            return record.tokens / self.size
        found = self.trained[number]
        return found.at(record.tokens) / self.size if found and record.tokens > 0 else None

    def trace(
        self,
        runs: Sequence[RunRecords],
        number: int,
        records: Sequence[Any],
        words: str,
        value: Callable[[Any], float | None],
        **look: Any,
    ) -> Trace:
        """One line of one run; in an overlay its name carries the run's label."""
        placed = [record for record in records if self.of(number, record) is not None]
        kept = thinned(placed, min(POINTS_PER_TRACE, POINTS_PER_PAGE // (TRACES_PER_RUN * len(runs))))
        name = words if len(runs) == 1 else f"{html.escape(runs[number].label)}: {words}"
        points = {"x": [self.of(number, record) for record in kept], "y": [value(record) for record in kept]}
        hover = f"%{{y:.4~g}} {name}<extra></extra>"
        return {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            **points,
            "hovertemplate": hover,
            "meta": number,
        } | look

    def layout(self, title: str) -> Figure:
        layout = base_layout(f"{self.unit} of budget" if self.against == "time" else self.unit, title)
        if self.crowded:
            layout |= {"hovermode": "closest", "height": 440 if title == "nats per token" else 340}
        logarithmic: Figure = {"type": "log", "dtick": 1, "minor": {"dtick": "D1", "ticks": "outside"}}
        layout["xaxis"] |= logarithmic if self.against == "arithmetic" else {"rangemode": "tozero"}
        layout["xaxis"]["hoverformat"] = ".4~g"
        return layout


def base_layout(x_title: str, y_title: str) -> Figure:
    """What all figures share; the colours follow the page's theme."""
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
    }


def _level(layout: Figure, height: float, words: str, side: str = "right") -> None:
    """A dashed horizontal line with its name at the end that the curves keep clear of."""
    if not math.isfinite(height):
        return
    line = {"color": "var(--quiet)", "width": 1.5, "dash": "dash"}
    layout["shapes"].append(
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line}
    )
    layout["annotations"].append(
        {
            "xref": "paper", "x": float(side == "right"), "y": height, "xanchor": side, "yanchor": "bottom",
            "showarrow": False, "text": words, "font": {"color": "var(--quiet)", "size": 12},
            "bgcolor": "var(--card)",
        }
    )  # fmt: skip


def _mark_stages(layout: Figure, runs: Sequence[RunRecords], axis: Axis, words: str = "{} stage") -> None:
    """A thin vertical line where a run changes its objective; named where there is only one run."""
    for number, run in enumerate(runs):
        for step in run.stage_changes:
            x = axis.of(number, step)
            if x is None:
                continue
            tint = "var(--quiet)" if len(runs) == 1 else colour(number)
            line = {"color": tint, "width": 1, "dash": "dot"}
            layout["shapes"].append({"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line})
            if words and len(runs) == 1:
                logarithmic = axis.against == "arithmetic"  # where plotly wants the exponent, of words alone
                layout["annotations"].append(
                    {
                        "x": math.log10(x) if logarithmic else x, "yref": "paper", "y": 1, "xanchor": "left",
                        "yanchor": "top", "showarrow": False,
                        "text": words.format(step.stage), "font": {"color": "var(--quiet)", "size": 12}, "xshift": 4,
                    }
                )  # fmt: skip


def _mark_events(layout: Figure, runs: Sequence[RunRecords], axis: Axis) -> None:
    """A thin vertical line for each resume, dropped steps and change of course; of a crowd none."""
    if axis.crowded:
        return
    for number, run in enumerate(runs):
        for event in events(run)[:EVENTS_MARKED]:
            x, line = axis.of(number, event), {"color": EVENT_COLOURS[event.kind], "width": 1}
            if x is None:
                continue
            layout["shapes"].append(
                {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line, "opacity": 0.6}
            )
