"""The course of training: losses, accuracy, learning rate, throughput, time by category, and events."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from daybreak.core.formatting import significant
from daybreak.core.terminal import duration
from daybreak.reporting import charts
from daybreak.reporting.blocks import (
    UNKNOWN,
    Block,
    Legend,
    figure,
    fold,
    grid,
    heading,
    join,
    note,
    run_name,
    section,
    small,
    table,
)
from daybreak.reporting.charts import Figure, Trace, color, straight_line
from daybreak.reporting.compute import flops_unit, trained
from daybreak.reporting.events import Event, events
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.run import StepRecord, ValidationRecord

MANY_RUNS = 5
"""With more runs, training losses are faint behind held-out losses and events are not marked."""
EVENT_COLORS = {"resumed": "var(--quiet)", "dropped": "#d9a441", "changed": "var(--accent)"}
EVENTS_MARKED = 60
"""Most events that one figure marks; the table lists all."""
EVENTS_SHOWN = 25
TRACES_PER_RUN = 12
"""Long traces of one run on the page, which share the points of the page."""
CATEGORIES = {
    "train": ("", "#3b6fd4"), "communicate": ("communication", "#6b5fc7"), "data": ("data wait", "#b5489c"),
    "clock": ("clock agreement", "#7a8290"), "monitor": ("monitors", "#8fb52f"), "validate": ("", "#2a9d78"),
    "start": ("", "#d9a441"), "checkpoint": ("", "#8d7cc3"), "export": ("", "#5aa9bd"), "lost": ("", "#c44e52"),
}  # fmt: skip
"""Category -> its name on the page, where the key is too short, and its color."""
EXPLAINED = {
    "data": "Data wait: steps wait for their sequences.",
    "clock": "Clock agreement: reading the time that is left, on which all processes agree.",
    "monitor": "Monitors: metrics, forecasts and trackers.",
}
"""Categories whose name does not say what the time was used for."""


class Axis:
    """The x axis that all runs share: elapsed time, tokens read, or floating-point operations of training.

    Args:
        runs: at least one; for ``flops`` at least one whose operations are known.
        against: ``time``, ``tokens`` or ``flops``.
    """

    def __init__(self, runs: Sequence[RunRecords], against: str):
        self.runs = runs
        self.against = against
        self.many = len(runs) > MANY_RUNS
        self.trained = [trained(run) for run in runs] if against == "flops" else []
        if against == "time":
            self.size, self.unit = charts.time_unit(max(run.elapsed for run in runs))
        elif against == "tokens":
            self.size, self.unit = charts.token_unit(max(run.tokens for run in runs))
        else:
            self.size, self.unit = flops_unit(max(each.total for each in self.trained if each))

    def of(self, run: int, record: StepRecord | ValidationRecord | Event) -> float | None:
        """The x value of a record; None if it has none."""
        if self.against == "time":
            return record.elapsed / self.size
        if self.against == "tokens":
            return record.tokens / self.size
        operations = self.trained[run]
        return operations.at(record.tokens) / self.size if operations and record.tokens > 0 else None

    def trace(
        self, run: int, records: Sequence[Any], name: str, value: Callable[[Any], float | None],
        most: int = charts.POINTS_PER_TRACE, **look: Any,
    ) -> Trace:  # fmt: skip
        """A line of one run, with at most ``most`` points."""
        points = min(most, charts.POINTS_PER_PAGE // (TRACES_PER_RUN * len(self.runs)))
        kept = charts.thinned([record for record in records if self.of(run, record) is not None], points)
        look = {"mode": "lines", "hover": "%{y:.4~g}"} | look
        x, y = [self.of(run, record) for record in kept], [value(record) for record in kept]
        return charts.run_line(self.runs, run, name, x, y, **look)

    def heldout(self, run: int, name: str, value: Callable[[Any], float | None]) -> Trace:
        """The held-out values of one run, with markers; runs next to each other differ in the marker as well."""
        symbol = marker(run)
        return self.trace(run, self.runs[run].validations, name, value, mode="lines+markers", width=2.5, symbol=symbol)

    def layout(self, title: str) -> Figure:
        layout = charts.base_layout(f"{self.unit} of budget" if self.against == "time" else self.unit, title)
        if self.many:
            layout["hovermode"] = "closest"
        logarithmic: Figure = {"type": "log", "dtick": 1, "minor": {"dtick": "D1", "ticks": "outside"}}
        layout["xaxis"] |= logarithmic if self.against == "flops" else {"rangemode": "tozero"}
        layout["xaxis"]["hoverformat"] = ".4~g"
        return layout


def marker(run: int) -> str:
    """The symbol of a run's points."""
    return charts.SYMBOLS[run % 4]


# ---------------------------------------------------------------- figures


def losses(runs: Sequence[RunRecords], against: str) -> Figure:
    """Training and held-out losses, the unigram baseline and the change of the objective; see ``Axis``."""
    axis = Axis(runs, against)
    data: list[Trace] = []
    for number, run in enumerate(runs):
        for stage in dict.fromkeys(step.stage for step in run.steps):
            steps = [step for step in run.steps if step.stage == stage]
            name, dash = ("next-token loss", "dot") if stage == "causal" else ("masked loss, training", "solid")
            look: dict[str, Any] = {"width": 1.5, "dash": dash, "opacity": 0.25 if axis.many else 0.7}
            data.append(axis.trace(number, steps, name, lambda step: step.loss, **look))
        data.append(axis.heldout(number, "masked loss, held out", _loss_of_interim_sequences))
    layout = axis.layout("nats per token")
    if axis.many:
        layout["height"] = 440
    # On the sequences of the curve: those of the interim validations, if there were any.
    levels = [run.validations[0].unigram_loss for run in runs if run.validation and run.validations]
    side = "left" if any(run.validation and run.validation.on_plateau for run in runs) else "right"
    _mark_levels(layout, {significant(level): level for level in levels}, "unigram baseline", side)
    _mark_stages(layout, axis, named=True)
    _mark_events(layout, axis)
    return {"data": data, "layout": layout}


def _loss_of_interim_sequences(record: ValidationRecord) -> float:
    """The loss on the sequences that all validations of a run share, so that the curve compares equal text."""
    return record.loss if record.interim_loss is None else record.interim_loss


def _accuracy_on_interim_sequences(record: ValidationRecord) -> float:
    """The accuracy on the same sequences, in percent."""
    return 100 * (record.accuracy if record.interim_accuracy is None else record.interim_accuracy)


def accuracy(runs: Sequence[RunRecords]) -> Figure:
    """Accuracy on held-out masked tokens, and the accuracy of always predicting the most frequent token."""
    axis = Axis(runs, "time")
    data = [axis.heldout(number, "masked accuracy", _accuracy_on_interim_sequences) for number in range(len(runs))]
    layout = axis.layout("accuracy, %")
    layout["yaxis"]["rangemode"] = "tozero"
    baselines = [100 * run.validations[0].most_frequent_fraction for run in runs if run.validation and run.validations]
    _mark_levels(layout, {f"{value:.1f} %": value for value in baselines}, "most frequent token")
    _mark_stages(layout, axis)
    return {"data": data, "layout": layout}


def by_time(runs: Sequence[RunRecords], title: str, value: Callable[[StepRecord], float]) -> Figure:
    """A property of the steps over the time, such as the learning rate."""
    axis = Axis(runs, "time")
    data = [axis.trace(number, run.steps, title, value, width=1.8) for number, run in enumerate(runs)]
    layout = axis.layout(title)
    layout["yaxis"]["rangemode"] = "tozero"
    _mark_stages(layout, axis)
    return {"data": data, "layout": layout}


def _mark_levels(layout: Figure, heights: Mapping[str, float], name: str, side: str = "right") -> None:
    """A dashed horizontal line at each height; the highest has one label for all, because they may be close together.

    Args:
        heights: number in words -> height.
    """
    known = {text: height for text, height in heights.items() if math.isfinite(height)}
    for height in known.values():
        straight_line(layout, y=height)
    if known:
        place = {"x": float(side == "right"), "xanchor": side, "y": max(known.values()), "yanchor": "bottom"}
        charts.label(layout, f"{name} {', '.join(known)}", xref="paper", **place)


def _mark_stages(layout: Figure, axis: Axis, named: bool = False) -> None:
    """A thin vertical line where a run changes its objective; with a name if there is only one run."""
    single = len(axis.runs) == 1
    for number, run in enumerate(axis.runs):
        for step in run.stage_changes:
            x = axis.of(number, step)
            if x is not None:
                straight_line(layout, "var(--quiet)" if single else color(number), x=x, width=1, dash="dot")
                if named and single:  # on a logarithmic axis plotly places annotations by the exponent
                    charts.upright_label(layout, f"{step.stage} stage", math.log10(x) if axis.against == "flops" else x)


def _mark_events(layout: Figure, axis: Axis) -> None:
    for number, run in enumerate([] if axis.many else axis.runs):
        for event in events(run)[:EVENTS_MARKED]:
            x = axis.of(number, event)
            if x is not None:
                straight_line(layout, EVENT_COLORS[event.kind], x=x, width=1, dash="solid", opacity=0.6)


def time_bars(runs: Sequence[RunRecords]) -> Figure:
    """One bar per run: the fractions of the time charged by category."""
    ended = [(html.escape(run.label), run.summary.time_by_category) for run in runs if run.summary is not None]
    data: list[Trace] = []
    for key in dict.fromkeys([*CATEGORIES, *(key for _, times in ended for key in times)]):
        seconds = [times.get(key, 0.0) for _, times in ended]
        parts = [100 * part / (math.fsum(times.values()) or 1.0) for part, (_, times) in zip(seconds, ended)]
        name, tint = _category(key)
        words = [f"{run}: {name} {part:.1f} s ({y:.2f} %)" for (run, _), part, y in zip(ended, seconds, parts)]
        bar = {"type": "bar", "orientation": "h", "name": name, "y": [run for run, _ in ended], "x": parts}
        text: Trace = {"text": [f"{name} {part:.0f} %" if part >= 5 + len(name) else "" for part in parts]}
        text |= {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        look = {"meta": None, "marker": {"color": tint}, "hoverinfo": "text", "hovertext": words}
        data += [bar | text | look] if any(seconds) else []
    height = 90 + 44 * len(ended)
    layout = charts.base_layout("% of the time charged", "", barmode="stack", hovermode="closest", height=height)
    layout["xaxis"]["range"] = [0, 100]
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "showgrid": False, "showticklabels": len(runs) > 1}
    return {"data": data, "layout": layout}


def _category(key: str) -> tuple[str, str]:
    """(name, color) of a category of time."""
    name, tint = CATEGORIES.get(key, ("", "#888888"))
    return html.escape(name or key), tint


# ---------------------------------------------------------------- sections


def training(runs: Sequence[RunRecords]) -> Block | None:
    """Losses, accuracy, learning rate and throughput."""
    if not any(run.pretrained_here for run in runs):
        return None
    if not any(run.steps or run.validations for run in runs):
        return section("Training", note("No step has been recorded yet."))
    tint = charts.key_color(runs)
    causal = any(step.stage == "causal" for run in runs for step in run.steps)
    kinds = {event.kind for run in runs for event in events(run)} if len(runs) <= MANY_RUNS else set()
    key = [
        *([("dotted", tint, "next-token loss (causal stage)")] if causal else []),
        ("thin", tint, "masked loss, training"),
        ("marked", tint, "masked loss, held out"),
        ("dashed", "var(--quiet)", "unigram baseline"),
        *(("bar", mark, kind) for kind, mark in EVENT_COLORS.items() if kind in kinds),
    ]
    caption = (
        "The dashed line is the loss of predicting each token by its frequency; below it, the model uses context. The "
        "held-out curve is measured on the same sequences throughout; the loss at the top of the page is that of all "
        "held-out sequences."
    )
    if causal:
        caption += " The dotted part is the next-token loss, which cannot be compared with the masked loss."
    accuracy_key = [("marked", tint, "held out"), ("dashed", "var(--quiet)", "most frequent token")]
    about_accuracy = "Accuracy on held-out masked tokens; dashed: always predicting the most frequent token."
    return section(
        "Training",
        figure("Loss against time", caption, losses(runs, "time"), key),
        grid(
            figure("Loss against tokens", "The same losses by tokens read.", losses(runs, "tokens"), key),
            _by_flops(runs, key),
            figure("Masked accuracy", about_accuracy, accuracy(runs), accuracy_key),
            figure(
                "Learning rate",
                "The learning rate of the schedule.",
                by_time(runs, "learning rate", lambda step: step.learning_rate),
            ),
            figure(
                "Throughput",
                "Tokens read per second of training.",
                by_time(runs, "tokens per second", lambda step: step.tokens_per_second),
            ),
        ),
    )


def _by_flops(runs: Sequence[RunRecords], key: Legend) -> Block | None:
    known = [trained(run) is not None for run in runs]
    if not any(known):
        return None
    caption = (
        "The same losses by floating-point operations: matrix products and attention of all steps of the run. The "
        "backward pass counts twice the forward pass."
    )
    if not all(known):
        caption += " Runs of other architectures than Daybreak's cannot be counted."
    return figure("Loss against FLOPs", caption, losses(runs, "flops"), key)


def time_spent(runs: Sequence[RunRecords]) -> Block | None:
    """The seconds of the budget by category."""
    ended = [(number, run.summary) for number, run in enumerate(runs) if run.summary is not None]
    if not ended:
        return None
    used = dict.fromkeys(key for _, summary in ended for key, time in summary.time_by_category.items() if time)
    names = {key: _category(key) for key in used}
    explained = [EXPLAINED[key] for key in used if key in EXPLAINED]
    rows = []
    for number, summary in ended:
        times, whole = summary.time_by_category, math.fsum(summary.time_by_category.values()) or 1.0
        cells = [(times.get(key, 0.0), f"{100 * times.get(key, 0.0) / whole:.2f} %") for key in names]
        cells = [(summary.elapsed, f"budget: {summary.budget}"), *cells]
        times_of_run = [join(f"{seconds:.1f} s", small(detail)) for seconds, detail in cells]
        rows.append([run_name(runs, number), *times_of_run, f"{summary.parity_seconds:.1f} s"])
    key = [("dot", tint, Markup(name)) for name, tint in names.values()]
    head = ("Run", "Charged", *(Markup(name) for name, _ in names.values()), "Parity check (not charged)")
    return section(
        "Time by category",
        figure(
            "The budget by category",
            " ".join(["All time from the start of the process counts.", *explained]),
            time_bars(runs),
            key,
            numbers=False,
        ),
        table(head, rows),
    )


def course(runs: Sequence[RunRecords]) -> Block | None:
    """The table of events; nothing if no run has any."""
    blocks: list[Block] = []
    for number, run in enumerate(runs):
        found, notes = events(run), _notes(run)
        if not found and not notes:
            continue
        shown, more = found[:EVENTS_SHOWN], found[EVENTS_SHOWN:]
        blocks += [heading(run_name(runs, number))] if len(runs) > 1 else []
        blocks += [_events_table(shown)] if shown else []
        blocks += [fold(f"{len(more)} more", _events_table(more))] if more else []
        blocks += [note(" ".join(notes), "quiet")] if notes else []
    if not blocks:
        return None
    caption = (
        "In order of time. Step and elapsed time come from the next line of metrics.jsonl. A skipped step leaves the "
        "weights unchanged. Lost work was charged to the budget."
    )
    return section("Events during training", *blocks, caption=caption)


def _events_table(found: Sequence[Event]) -> Block:
    rows = [
        [each.words, f"{each.step:,}", duration(each.elapsed), UNKNOWN if each.lost is None else f"{each.lost:.1f} s"]
        for each in found
    ]
    return table(("Event", "Step", "Elapsed", "Work lost"), rows)


def _notes(run: RunRecords) -> list[str]:
    """Resumes that lost no line, the time between processes, and the number of lost lines."""
    notes = []
    summary = run.summary
    listed = sum(event.kind == "resumed" for event in events(run))
    unlisted = (summary.resumes if summary else 0) - listed
    if unlisted > 0:
        times = "once" if unlisted == 1 else f"{unlisted:,} times"
        notes.append(f"Resumed {times}{' more' if listed else ''}, without lost lines.")
    if summary and (lost := summary.time_by_category.get("lost", 0.0)):
        notes.append(f"In total {lost:.1f} s of work was lost.")
    if summary and summary.resumes:
        notes.append(f"Time between stop and resume: {duration(max(0.0, summary.wall - summary.elapsed))}.")
    if run.lost:
        lines = "1 metric line" if len(run.lost) == 1 else f"{len(run.lost):,} metric lines"
        notes.append(f"{lines} of lost work in metrics.lost.jsonl.")
    return notes
