"""Compute against GLUE: where runs stand among published models, by what their hardware could have computed."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from daybreak.core.formatting import score, significant
from daybreak.reporting.figures import Figure, Trace, base_layout, colour
from daybreak.reporting.flops import EXA, arithmetic_words, capacity
from daybreak.reporting.markup import Markup, figure, join, legend, section, table, tag
from daybreak.reporting.runs import Published, RunRecords
from daybreak.reporting.sections import NOTHING, UNKNOWN, run_name

ROOM = 3.0
"""Points of GLUE above and below what is drawn."""


def compute(runs: Sequence[RunRecords], published: Sequence[Published]) -> Markup:
    """The figure and its table; nothing where no run was evaluated on any of the tasks."""
    if not any(run.glue is not None or run.glue_lacks for run in runs) or not published:
        return NOTHING
    drawn = [(number, *found) for number, run in enumerate(runs) if (found := _place(run))]
    tint = colour(drawn[0][0]) if len(drawn) == 1 else "var(--ink)"
    key = legend(("dot", "var(--quiet)", "published"), *([("dot", tint, "here")] if drawn else []))
    rows = [_published_row(place, found) for place, found in enumerate(published, start=1)]
    rows += [_row(runs, number) for number, run in enumerate(runs) if run.glue is not None or run.glue_lacks]
    return section(
        "Compute against GLUE",
        figure(
            "GLUE by exaFLOP",
            "Published models by their number in the table."
            + ("" if drawn else " No run stands in the figure: the table says what each lacks."),
            compute_figure(runs, published),
            key,
            numbers=False,
        ),
        table(("Model", "exaFLOP", "GLUE"), rows),
        caption="One exaFLOP is 10^18 operations. They are counted as the Cramming paper does (arXiv:2212.14034): not "
        "what was computed, but what the devices could have in the time of pretraining. For a run here the rate is the "
        "matrix product that was measured before its first step, which stays below the peak of a data sheet. GLUE is "
        "that paper's mean of nine numbers on dev, and a run has it with all of them under its protocol.",
    )


def _place(run: RunRecords) -> tuple[float, float] | None:
    """(exaFLOP, GLUE x 100) of a run that may be drawn."""
    whole = capacity(run)
    if run.glue is None or whole is None or run.continued:
        return None
    return whole / EXA, 100 * run.glue


def _why_not(run: RunRecords) -> str:
    """Why a run is not drawn; empty where it is."""
    if run.glue is None:
        return run.glue_lacks
    if not run.pretrained_here or capacity(run) is None:
        return "not drawn: no record tells what its pretraining cost"
    return "not drawn: it goes on from another model, whose compute is not in its records" if run.continued else ""


def _published_row(number: int, found: Published) -> list[Any]:
    name = join(f"{number}. ", tag("b", found.model), tag("small", f"GLUE: {found.source}; compute: {found.how}"))
    return [name, significant(found.exaflop or 0.0), score(found.value)]


def _row(runs: Sequence[RunRecords], number: int) -> list[Any]:
    run = runs[number]
    whole, done, why = capacity(run), arithmetic_words(run), _why_not(run)
    told = [tag("small", f"computed: {done}")] if done else []
    told += [tag("small", why)] if why else []
    return [
        join(run_name(runs, number), *told),
        significant(whole / EXA) if whole and run.pretrained_here else UNKNOWN,
        UNKNOWN if run.glue is None else score(run.glue),
    ]


def compute_figure(runs: Sequence[RunRecords], published: Sequence[Published]) -> Figure:
    """Published models as numbered dots, runs in their colours, on a logarithmic axis of exaFLOP."""
    known = [(place, found) for place, found in enumerate(published, start=1) if found.exaflop]
    data: list[Trace] = [
        {
            "type": "scatter", "mode": "markers+text", "name": "published",
            "x": [found.exaflop for _, found in known], "y": [100 * found.value for _, found in known],
            "text": [str(place) for place, _ in known], "textposition": _sides([found for _, found in known]),
            "textfont": {"color": "var(--quiet)"}, "marker": {"size": 9, "color": "var(--quiet)"},
            "hovertext": [html.escape(found.model) for _, found in known],
            "hovertemplate": "%{text}. %{hovertext}: %{y:.1f} at %{x:.4~g} exaFLOP<extra></extra>",
        }
    ]  # fmt: skip
    for number, run in enumerate(runs):
        if place := _place(run):
            name = html.escape(run.label)
            data.append(
                {
                    "type": "scatter", "mode": "markers", "name": name, "meta": number, "x": [place[0]],
                    "y": [place[1]], "marker": {"size": 14, "symbol": "star", "color": colour(number)},
                    "hovertemplate": f"{name}: %{{y:.1f}} at %{{x:.4~g}} exaFLOP<extra></extra>",
                }
            )  # fmt: skip
    layout = base_layout("exaFLOP", "GLUE x 100")
    x, y = ([value for trace in data for value in trace[axis]] for axis in "xy")
    layout["hovermode"] = "closest"
    layout["xaxis"] |= {
        "type": "log",
        "dtick": 1,
        "exponentformat": "power",
        "range": [math.log10(min(x)) - 0.3, math.log10(max(x)) + 0.3],
    }
    layout["yaxis"]["range"] = [min(y) - ROOM, max(y) + ROOM]
    return {"data": data, "layout": layout}


def _sides(found: Sequence[Published]) -> list[str]:
    """On which side of its dot each number stands: of those above each other, by turns."""
    order: dict[float, int] = {}
    sides = []
    for one in found:
        turn = order[one.exaflop or 0.0] = order.get(one.exaflop or 0.0, -1) + 1
        sides.append("middle left" if turn % 2 else "middle right")
    return sides
