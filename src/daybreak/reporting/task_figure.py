"""The dot chart of task scores: a dot a seed, with and without pretraining, beside its baselines."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from daybreak.core.task_pairs import pair_results, several_models
from daybreak.reporting.figures import Figure, Trace, base_layout, colour
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.tasks import TaskResult

LANE = 1.0
GAP = 0.9
"""Space between two tasks, in lanes."""


def task_scores(runs: Sequence[RunRecords]) -> Figure:
    """One band a task, one lane a run and model: seeds as dots, the mean as a bar, its spread as a whisker."""
    bands: dict[tuple[str, str], list[tuple[int, TaskResult]]] = {}
    named: set[int] = set()
    for number, run in enumerate(runs):
        pairs = pair_results(run.results)
        if several_models(pairs):
            named.add(number)
        for pair in pairs:
            sides = [side for side in (pair.pretrained, pair.untrained) if side is not None]
            bands.setdefault((pair.protocol, pair.task), []).extend((number, side) for side in sides)
    data: list[Trace] = []
    ticks, names, shapes = [], [], []
    top = 0.0
    for (protocol, task), lanes in bands.items():
        ticks.append(top + LANE * (len(lanes) - 1) / 2)
        names.append(f"<b>{html.escape(task)}</b><br>{html.escape(protocol)}")
        first, span = lanes[0][1], (top - LANE * 0.55, top + LANE * (len(lanes) - 0.45))
        shapes.append(_baseline(100 * first.baseline, *span, dash="dot"))
        words = [result.bag_of_words[result.metric] for _, result in lanes if result.bag_of_words]
        shapes += [_baseline(100 * value, *span, dash="solid") for value in dict.fromkeys(words)]
        for lane, (number, result) in enumerate(lanes):
            data += _lane(runs, number, result, top + lane * LANE, number in named)
        top += LANE * len(lanes) + GAP
    layout = base_layout("score x 100", "")
    layout |= {"hovermode": "closest", "height": int(90 + 30 * top), "shapes": shapes}
    layout["xaxis"]["showgrid"] = True
    layout["yaxis"] |= {
        "tickvals": ticks, "ticktext": names, "showgrid": False, "range": [top - GAP + 0.2, -LANE * 0.8],
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _lane(runs: Sequence[RunRecords], number: int, result: TaskResult, height: float, named: bool) -> list[Trace]:
    trained = result.model == "pretrained"
    tint = colour(number) if trained else "var(--quiet)"
    words = "with pretraining" if trained else "without pretraining"
    label = words if len(runs) == 1 else f"{html.escape(runs[number].label)}, {words}"
    label = f"{html.escape(result.model_name)}, {label}" if named else label
    seeds = [100 * value for value in result.scores.get(result.metric, [])]
    look: dict[str, Any] = {"type": "scatter", "mode": "markers", "meta": number, "name": label}
    dots: Trace = look | {
        "x": seeds, "y": [height] * len(seeds), "customdata": result.seeds,
        "marker": {"symbol": "circle", "size": 10, "color": tint, "opacity": 0.45},
        "hovertemplate": f"{label}: %{{x:.1f}}, seed %{{customdata}}<extra></extra>",
    }  # fmt: skip
    mean: Trace = look | {
        "x": [100 * result.mean], "y": [height], "customdata": [100 * result.spread],
        "error_x": {"type": "data", "array": [100 * result.spread], "color": tint, "thickness": 2, "width": 5},
        "marker": {"symbol": "line-ns", "size": 15, "line": {"width": 3.5, "color": tint}, "color": tint},
        "hovertemplate": f"{label}: mean %{{x:.1f}} &plusmn; %{{customdata:.1f}}<extra></extra>",
    }  # fmt: skip
    return [dots, mean]


def _baseline(x: float, y0: float, y1: float, dash: str) -> dict[str, Any]:
    line = {"color": "var(--ink)", "width": 1.5, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": y0, "y1": y1, "line": line}
