"""A corpus report -> plotly figures as plain JSON values; see ``figures`` for what all figures share.

A record that makes no sense (edges that do not rise, a share that is no number) gives a figure without data.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from daybreak.core.formatting import significant
from daybreak.reporting.figures import RUN_COLOURS, Figure, base_layout, readable_on
from daybreak.reporting.series import thinned
from daybreak.schemas.corpus import CorpusReport, Histogram, StepReport, TokenizerQuality, VocabularyAdvice

INCOMPRESSIBLE = 0.25
"""Tokens per character from which on Cramming (Geiping and Goldstein 2022, arXiv 2212.14034) leaves a document out, in
the settings of all its published runs."""
LABELS = 7
"""Most labels below a histogram of half the page's width."""
SEGMENTS = 10
"""Most parts of a bar that have a colour of their own."""
NAME_LENGTH = 40
"""Characters of a name that fit into a figure."""
LAST_WORD = re.compile(r"(?<=[a-z0-9])[A-Z][a-z]+$")
KEPT = "#2a9d78"
OTHERS = "#7a8290"
LEFT_OUT = "#d9822b"


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bar of a histogram; the outermost ones also hold what lies beyond their edge."""

    low: float
    high: float
    count: int
    first: bool
    last: bool

    @property
    def words(self) -> str:
        if self.first and self.last:
            return "any"
        if self.first:
            return f"below {edge(self.high)}"
        return f"{edge(self.low)} or more" if self.last else f"{edge(self.low)} to {edge(self.high)}"


def bins(histogram: Histogram) -> list[Bin]:
    """The bins from the first to the last that holds anything; none where the record makes no sense."""
    edges, counts = histogram.edges, histogram.counts
    rising = all(map(math.isfinite, edges)) and all(low < high for low, high in pairwise(edges))
    if not rising or len(edges) != len(counts) + 1 or min(counts, default=0) < 0 or not any(counts):
        return []
    full = [place for place, number in enumerate(counts) if number]
    return [
        Bin(
            low=edges[place], high=edges[place + 1], count=counts[place], first=place == 0,
            last=place == len(counts) - 1,
        )
        for place in range(full[0], full[-1] + 1)
    ]  # fmt: skip


def edge(value: float) -> str:
    """``1048576.0`` -> ``1,048,576``; ``0.25`` stays."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:.3g}"


def median(found: Sequence[Bin]) -> tuple[float, float] | None:
    """(place on the axis of equally wide bins, value) below which half of what was counted lies; None without bins.

    Inside its bin the value is taken to be spread evenly over the logarithm.
    """
    whole, before = sum(one.count for one in found), 0
    for place, one in enumerate(found):
        if 2 * (before + one.count) >= whole:
            share = (whole / 2 - before) / one.count
            if one.low > 0:
                return place + share, math.exp((1 - share) * math.log(one.low) + share * math.log(one.high))
            return place + share, one.low + share * (one.high - one.low)
        before += one.count
    return None


def lengths(histogram: Histogram) -> Figure:
    """Share of the documents by characters. Edges are powers of two, so equally wide bars make a logarithmic axis."""
    found = bins(histogram)
    layout = base_layout("characters", "% of the documents")
    layout |= {"bargap": 0.04, "hovermode": "closest"}
    edges = [*(one.low for one in found), *(one.high for one in found[-1:])]
    places = range(0, len(edges), -(-len(edges) // LABELS) or 1)
    layout["xaxis"] |= {
        "tickvals": list(places), "ticktext": [edge(edges[place]) for place in places], "tickangle": 0,
        "range": [-0.1, len(found) + 0.1],
    }  # fmt: skip
    middle = median(found)
    if middle is not None:
        _upright(layout, middle[0], "half are shorter")
    centres = [place + 0.5 for place in range(len(found))]
    return {"data": _bars(found, centres, 1.0, "characters", "var(--accent)"), "layout": _with_room(layout, found)}


def compressibility(histogram: Histogram) -> Figure:
    """Share of the documents by tokens per character, with the line from which on Cramming leaves them out."""
    found = bins(histogram)
    layout = base_layout("tokens per character", "% of the documents")
    layout |= {"bargap": 0.04, "hovermode": "closest"}
    low = min([INCOMPRESSIBLE, *(one.low for one in found[:1])])
    high = max([INCOMPRESSIBLE, *(one.high for one in found[-1:])])
    layout["xaxis"]["range"] = [low, high + (high - low) / 20]
    _upright(layout, INCOMPRESSIBLE, f"{INCOMPRESSIBLE}")
    tints = [LEFT_OUT if one.low >= INCOMPRESSIBLE else "var(--accent)" for one in found]
    centres = [one.low + (one.high - one.low) / 2 for one in found]
    widths = [one.high - one.low for one in found]
    data = _bars(found, centres, widths, "tokens per character", tints)
    return {"data": data, "layout": _with_room(layout, found)}


def incompressible(histogram: Histogram) -> float | None:
    """Share of the documents that Cramming would leave out; None unless one of the edges parts them exactly."""
    found = bins(histogram)
    below, above = [one for one in found if one.high <= INCOMPRESSIBLE], [o for o in found if o.low >= INCOMPRESSIBLE]
    if not found or len(below) + len(above) < len(found):
        return None
    return sum(one.count for one in above) / sum(one.count for one in found)


def _bars(
    found: Sequence[Bin], places: list[float], width: float | list[float], unit: str, tint: str | list[str]
) -> list[dict[str, Any]]:
    whole = sum(one.count for one in found)
    if not whole:
        return []
    shares = [100 * one.count / whole for one in found]
    words = [f"{one.words} {unit}: {one.count:,} documents, {share:.2g} %" for one, share in zip(found, shares)]
    look = {"marker": {"color": tint}, "hovertext": words, "hoverinfo": "text"}
    return [{"type": "bar", "x": places, "y": shares, "width": width, "name": unit} | look]


def _with_room(layout: Figure, found: Sequence[Bin]) -> Figure:
    """Room above the highest bar for the words beside an upright line."""
    whole = sum(one.count for one in found)
    layout["yaxis"]["range"] = [0, 115 * max(one.count for one in found) / whole] if whole else [0, 1]
    return layout


def _upright(layout: Figure, x: float, words: str) -> None:
    """A dashed vertical line with its name beside its upper end."""
    line = {"color": "var(--ink)", "width": 1.5, "dash": "dash"}
    layout["shapes"].append({"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line})
    layout["annotations"].append(
        {
            "x": x, "yref": "paper", "y": 1, "xanchor": "left", "yanchor": "top", "xshift": 4, "showarrow": False,
            "text": words, "font": {"color": "var(--quiet)", "size": 12}, "bgcolor": "var(--card)",
        }
    )  # fmt: skip


def dropped(step: StepReport) -> tuple[int, int]:
    """(documents, characters) that a step left out."""
    return max(0, step.documents_in - step.documents_out), max(0, step.characters_in - step.characters_out)


def where_it_went(report: CorpusReport) -> Figure:
    """Two bars, of the documents and of the characters read: what was kept, and what each step left out."""
    parts = {"kept": (float(max(0, report.documents)), float(max(0, report.characters)))}
    for place, step in enumerate(report.steps, start=1):
        documents, characters = dropped(step)
        parts[f"{place}. {spoken(step.name)}"] = float(documents), float(characters)
    return _stacked(("documents", "characters"), parts, first=KEPT)


def source_mix(report: CorpusReport, names: Sequence[str]) -> Figure:
    """Bars of the characters by source: as read, as kept, and as they stand in the training text."""
    times = [source.epochs if math.isfinite(source.epochs) else 0.0 for source in report.sources]
    parts = {
        f"{place}. {name}": (
            float(max(0, source.characters)),
            float(max(0, source.kept_characters)),
            max(0.0, source.kept_characters * epochs),
        )
        for place, (name, source, epochs) in enumerate(zip(names, report.sources, times), start=1)
    }
    if all(epochs == 1 for epochs in times):
        return _stacked(("read", "kept"), {name: values[:2] for name, values in parts.items()})
    return _stacked(("read", "kept", "with epochs"), parts)


def _stacked(rows: Sequence[str], parts: Mapping[str, Sequence[float]], first: str | None = None) -> Figure:
    """One bar a row, of the parts' shares in it; small parts together where there are many.

    Args:
        first: the colour of the first part, where it is another kind of thing than the others.
    """
    told = {name: values for name, values in parts.items() if any(values)}
    largest = sorted(told, key=lambda name: -max(told[name]))[:SEGMENTS]
    shown = {name: told[name] for name in told if name in largest}
    rest = [told[name] for name in told if name not in largest]
    if rest:
        shown["others"] = [math.fsum(values) for values in zip(*rest)]
    wholes = [math.fsum(values) for values in zip(*shown.values())] or [0.0] * len(rows)
    tints = iter(tint for tint in RUN_COLOURS if tint != first)
    data = []
    for name, values in shown.items():
        tint = first if first and name == next(iter(parts)) else OTHERS if name == "others" else next(tints)
        shares = [100 * value / whole if whole else 0.0 for value, whole in zip(values, wholes)]
        label = html.escape(clipped(name, NAME_LENGTH))
        data.append(
            {
                "type": "bar", "orientation": "h", "name": label, "y": list(rows), "x": shares,
                "marker": {"color": tint}, "insidetextfont": {"color": readable_on(tint)},
                "text": [f"{label} {_whole(one)} %" if one >= 5 + len(name[:NAME_LENGTH]) else "" for one in shares],
                "textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "hoverinfo": "text",
                "hovertext": [f"{row}: {label} {share:.2f} %" for row, share in zip(rows, shares)],
            }
        )  # fmt: skip
    layout = base_layout("%", "")
    layout |= {"barmode": "stack", "hovermode": "closest", "height": 90 + 44 * len(rows)}
    layout["xaxis"]["range"] = [0, 100]
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    return {"data": data, "layout": layout}


def _whole(percent: float) -> str:
    """Without decimals, but 100 only where it is all: something was left out of 99.8 %."""
    return f"{percent:.0f}" if percent == 100 or percent < 99.5 else f"{math.floor(10 * percent) / 10:.1f}"


def vocabulary_curve(advice: VocabularyAdvice, own: TokenizerQuality | None) -> Figure:
    """Characters per token by size of the vocabulary; the recommended one and the tokenizer of the data stand out."""
    sizes = sorted((one for one in advice.sizes if _can_be_drawn(one)), key=lambda one: one.vocabulary)
    layout = base_layout("pieces in the vocabulary", "characters per token")
    ticks = [one.vocabulary for one in thinned(sizes, LABELS)]
    layout |= {"hovermode": "closest"}
    layout["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [f"{size:,}" for size in ticks]}
    data = []
    line = {"mode": "lines+markers", "line": {"color": "var(--accent)", "width": 2}, "marker": {"size": 7}}
    data += [_points(sizes, "a vocabulary made from this text") | line] if sizes else []
    best = [one for one in sizes if one.vocabulary == advice.recommended]
    marker = {"size": 14, "symbol": "circle-open", "color": KEPT, "line": {"width": 3}}
    named = {"mode": "markers+text", "text": ["recommended"], "textposition": "bottom right", "marker": marker}
    data += [_points(best[:1], "recommended") | named] if best else []
    mine = [own] if own is not None and _can_be_drawn(own) else []
    marker = {"size": 10, "symbol": "diamond", "color": LEFT_OUT}
    data += [_points(mine, "the tokenizer of this data") | {"mode": "markers", "marker": marker}] if mine else []
    return {"data": data, "layout": layout}


def _can_be_drawn(one: TokenizerQuality) -> bool:
    return one.vocabulary > 0 and math.isfinite(one.characters_per_token)


def _points(found: Sequence[TokenizerQuality], name: str) -> dict[str, Any]:
    words = [f"{name}: {one.vocabulary:,} pieces, {significant(one.characters_per_token)} characters" for one in found]
    x, y = [one.vocabulary for one in found], [one.characters_per_token for one in found]
    return {"type": "scatter", "name": name, "x": x, "y": y, "hovertext": words, "hoverinfo": "text"}


def spoken(name: str) -> str:
    """The name of a step, a class, as words: ``NearDuplicates`` -> ``Near duplicates``, ``FineWebQuality`` -> ``FineWeb
    quality``; cut where it is longer than fits."""
    parted = LAST_WORD.sub(lambda found: f" {found[0].lower()}", name)
    return clipped(parted, NAME_LENGTH)


def clipped(text: str, most: int) -> str:
    """A name from outside, cut where it is longer than fits."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
