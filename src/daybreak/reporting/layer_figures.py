"""Probes -> plotly figures: what each layer knows, and which words the model can guess."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from daybreak.reporting.figures import Figure, Trace, base_layout, colour
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.probes import BucketScore, MaskedWords, Probes

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Of the tasks, so that a colour stays one run."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")


def probed(runs: Sequence[RunRecords]) -> list[tuple[int, Probes]]:
    return [(number, run.probes) for number, run in enumerate(runs) if run.probes is not None]


def worded(runs: Sequence[RunRecords]) -> list[tuple[int, MaskedWords]]:
    return [(number, probes.masked_words) for number, probes in probed(runs) if probes.masked_words is not None]


def _dashed(tasks: Sequence[str], task: str, number: int) -> dict[str, Any]:
    place = tasks.index(task) % len(DASHES)
    return {
        "mode": "lines+markers", "line": {"color": colour(number), "width": 2, "dash": DASHES[place]},
        "marker": {"size": 7, "symbol": SYMBOLS[place], "color": colour(number)},
    }  # fmt: skip


def layer_scores(runs: Sequence[RunRecords]) -> Figure:
    """A line a task: what a linear model reads off each layer."""
    tasks = list(dict.fromkeys(probe.task for _, probes in probed(runs) for probe in probes.layer_probes))
    data = []
    for number, probes in probed(runs):
        for probe in probes.layer_probes:
            x, y = [found.layer for found in probe.layers], [100 * found.score for found in probe.layers]
            name = _name(runs, number, f"{probe.task}, {probe.metric}")
            data.append(_line(number, x, y, name) | _dashed(tasks, probe.task, number))
    return {"data": data, "layout": _of_layers("score x 100")}


def similarity(runs: Sequence[RunRecords]) -> Figure:
    """How well cosines of mean-pooled sentences follow what people said, by layer; centred ones drawn thin."""
    data = []
    for number, probes in probed(runs):
        for probe in probes.similarity:
            layers = [found.layer for found in probe.layers]
            for words, values, dash in (
                ("", [100 * found.spearman for found in probe.layers], "solid"),
                (", centred", [100 * found.centred for found in probe.layers], "dot"),
            ):
                look = {"mode": "lines+markers", "marker": {"size": 7, "color": colour(number)}}
                name = _name(runs, number, f"{probe.task}{words}")
                data.append(
                    _line(number, layers, values, name)
                    | look
                    | {"line": {"color": colour(number), "width": 2, "dash": dash}}
                )
    return {"data": data, "layout": _of_layers("Spearman x 100")}


def by_frequency(runs: Sequence[RunRecords]) -> Figure:
    """Accuracy by how common the hidden token is."""
    return _of_buckets([(number, "", found.frequency) for number, found in worded(runs)], runs, "rank of the token")


def by_position(runs: Sequence[RunRecords]) -> Figure:
    """Accuracy by position in the row, a line for each length of row, and where training ended."""
    parts = [
        (number, f"rows of {row.length}", row.positions) for number, found in worded(runs) for row in found.lengths
    ]
    figure = _of_buckets(parts, runs, "position in the row")
    line = {"color": "var(--quiet)", "width": 1.5, "dash": "dash"}
    for length in {found.trained_length for _, found in worded(runs)}:
        figure["layout"]["shapes"].append(
            {"type": "line", "x0": length, "x1": length, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        )
    return figure


def loss_by_position(runs: Sequence[RunRecords]) -> Figure:
    """Mean loss by position in the row, as ``by_position`` draws the accuracy."""
    figure = by_position(runs)
    rows = [row for _, found in worded(runs) for row in found.lengths]
    for trace, row in zip(figure["data"], rows, strict=True):
        del trace["error_y"]
        trace["y"] = [bucket.loss for bucket in row.positions]
        trace["hovertemplate"] = f"%{{customdata}}: %{{y:.3f}} nats {trace['name']}<extra></extra>"
    figure["layout"]["yaxis"] |= {"title": {"text": "nats per token", "standoff": 8}, "rangemode": "normal"}
    return figure


def calibration(runs: Sequence[RunRecords]) -> Figure:
    """How often the model is right when it is so sure; the diagonal is to be right as often as sure."""
    data = []
    for number, found in worded(runs):
        x = [100 * each.confidence for each in found.calibration]
        y = [100 * each.accuracy for each in found.calibration]
        counts = [each.count for each in found.calibration]
        look = {
            "mode": "lines+markers", "customdata": counts, "line": {"color": colour(number), "width": 2},
            "marker": {"size": 7, "color": colour(number)},
            "hovertemplate": "sure %{x:.0f} %, right %{y:.0f} %, %{customdata:,} tokens<extra></extra>",
        }  # fmt: skip
        data.append(_line(number, x, y, _name(runs, number, "calibration")) | look)
    layout = base_layout("% sure", "% right")
    line = {"color": "var(--quiet)", "width": 1.5, "dash": "dash"}
    layout["shapes"] = [{"type": "line", "x0": 0, "y0": 0, "x1": 100, "y1": 100, "line": line}]
    layout["hovermode"] = "closest"
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = [0, 101]
    return {"data": data, "layout": layout}


def _of_buckets(parts: Sequence[tuple[int, str, list[BucketScore]]], runs: Sequence[RunRecords], title: str) -> Figure:
    """Each range stands at its upper end on a logarithmic axis; of an open one, the next end would be."""
    data = []
    kinds = list(dict.fromkeys(words for _, words, _ in parts))
    for number, words, buckets in parts:
        middle = [100 * bucket.accuracy for bucket in buckets]
        name = _name(runs, number, words or "accuracy")
        bars = {
            "type": "data", "symmetric": False, "color": colour(number), "thickness": 1.5, "width": 3,
            "array": [100 * bucket.high - at for bucket, at in zip(buckets, middle)],
            "arrayminus": [at - 100 * bucket.low for bucket, at in zip(buckets, middle)],
        }  # fmt: skip
        tokens = [f"{each.first:,} to {each.last:,}" if each.last else f"from {each.first:,}" for each in buckets]
        hover = f"%{{customdata}}: %{{y:.1f}} % {name}<extra></extra>"
        dash = DASHES[kinds.index(words) % len(DASHES)]
        look = {
            "mode": "lines+markers", "error_y": bars, "customdata": tokens, "hovertemplate": hover,
            "line": {"color": colour(number), "width": 2, "dash": dash}, "marker": {"size": 7, "color": colour(number)},
        }  # fmt: skip
        ends = [float(bucket.last or 2 * bucket.first) for bucket in buckets]
        data.append(_line(number, ends, middle, name) | look)
    layout = base_layout(title, "% right")
    layout["hovermode"] = "closest"
    layout["xaxis"] |= {"type": "log"}
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


def _line(number: int, x: Sequence[float], y: Sequence[float], name: str) -> Trace:
    hover = f"%{{y:.1f}} {name}<extra></extra>"
    return {"type": "scatter", "x": list(x), "y": list(y), "name": name, "meta": number, "hovertemplate": hover}


def _name(runs: Sequence[RunRecords], number: int, words: str) -> str:
    words = html.escape(words)
    return words if len(runs) == 1 else f"{html.escape(runs[number].label)}: {words}"


def _of_layers(title: str) -> Figure:
    layout = base_layout("layer, 0 is the embeddings", title)
    layout["xaxis"]["dtick"] = 1
    layout["hovermode"] = "closest"
    return layout
