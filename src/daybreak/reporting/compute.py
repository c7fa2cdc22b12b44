"""Floating-point operations of runs, and the figure of GLUE by compute among published models."""

from __future__ import annotations

import html
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daybreak.core.formatting import percent, score, significant
from daybreak.reporting.blocks import UNKNOWN, Block, bold, figure, join, run_name, section, small, table
from daybreak.reporting.charts import Figure, base_layout, color, scatter
from daybreak.reporting.events import time_of_step
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.tasks import PublishedAverage

EXA = 1e18
UNITS = ((EXA, "exaFLOP"), (1e15, "petaFLOP"), (1e12, "teraFLOP"), (1e9, "gigaFLOP"))
BACKWARD = 2
"""Matrix products of the backward pass for each one of the forward pass."""
MARGIN = 3.0
"""Points of GLUE above and below the plotted values."""


# ---------------------------------------------------------------- operations of a run


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of a training step in matrix products and attention, as ``pretraining`` counts them."""

    token: float
    """For each token read: all layers up to the last layer's keys and values."""
    target: float
    """For each predicted position: the rest of the last layer, which runs on these positions only, and the head."""


@dataclass(frozen=True)
class Trained:
    """Operations since the start of a run at each recorded line, linear between two lines."""

    tokens: list[int]
    flops: list[float]

    @property
    def total(self) -> float:
        return self.flops[-1]

    def at(self, tokens: int) -> float:
        """Operations until ``tokens`` tokens, at least one, were read."""
        after = bisect_left(self.tokens, tokens)
        if after == len(self.tokens):
            return self.total * tokens / self.tokens[-1]
        start, done = (self.tokens[after - 1], self.flops[after - 1]) if after else (0, 0.0)
        fraction = (tokens - start) / (self.tokens[after] - start)
        return done + fraction * (self.flops[after] - done)


def cost(shape: Mapping[str, Any], vocabulary: int, length: int) -> Cost | None:
    """The cost of an encoder in sequences of ``length`` tokens; None for an unknown architecture.

    Args:
        shape: ``model`` of a recipe as plain JSON.
    """
    try:
        layers, hidden = int(shape["layers"]), int(shape["hidden_size"])
        intermediate, kind = int(shape["intermediate_size"]), shape["kind"]
        gated = {"ModernEncoder": True, "BertEncoder": False, "CrammedEncoder": shape.get("gated", True)}[kind]
    except (KeyError, TypeError, ValueError):
        return None
    square = 2 * hidden * hidden
    attention, feed_forward = 4 * length * hidden, (6 if gated else 4) * hidden * intermediate
    head = 0 if kind == "CrammedEncoder" and shape.get("head", "none") == "none" else square
    layer = 4 * square + attention + feed_forward
    token = (layers - 1) * layer + 2 * square
    target = 2 * square + attention + feed_forward + head + 2 * hidden * vocabulary
    return Cost((1 + BACKWARD) * token, (1 + BACKWARD) * target)


def trained(run: RunRecords) -> Trained | None:
    """The operations of all steps of the run; None if its architecture or its steps are unknown.

    A second phase that may start early, when the loss is flat, counts from its latest possible start. A run that
    extends another one after that start is in the second phase from its first step on.
    """
    phase2, finish, origin = (run.recipe.get(part) or {} for part in ("phase2", "finish", "origin"))
    start = phase2.get("start", 1.0)
    begin = 0.0 if origin.get("begin", 0.0) >= start else start
    first, second, last = (_cost(run, part.get("length")) for part in (run.recipe, phase2, finish))
    tokens, flops = [], []
    read = targets = 0
    done = 0.0
    for step in run.steps:
        now = second if start < 1 and step.progress >= begin else first
        now = now if step.contrastive is None else last
        if now is None:
            return None
        done += now.token * (step.tokens - read) + now.target * (step.targets - targets)
        read, targets = step.tokens, step.targets
        tokens.append(read)
        flops.append(done)
    return Trained(tokens, flops) if read > 0 and done > 0 else None


def _cost(run: RunRecords, length: Any) -> Cost | None:
    if run.manifest is None or not isinstance(length, int):
        return None
    return cost(run.recipe.get("model") or {}, run.manifest.vocabulary, length)


def capacity(run: RunRecords) -> float | None:
    """Operations that the devices could do in the time charged, at the measured rate of a matrix product.

    None if no rate is recorded in the precision of training.
    """
    decisions = run.decisions
    rate = decisions.matmul_gflops.get(decisions.precision) if decisions else None
    if not decisions or not rate or not math.isfinite(rate) or run.elapsed <= 0:
        return None
    seconds, since, devices = 0.0, 0.0, decisions.world_size
    for change in run.changes:
        now = time_of_step(run, change.step)[0]
        seconds += devices * max(0.0, now - since)
        since, devices = max(since, now), change.world_size
    return 1e9 * rate * (seconds + devices * max(0.0, run.elapsed - since))


def flops_unit(most: float) -> tuple[float, str]:
    """(operations in the unit, its name): ``(1e15, 'petaFLOP')``."""
    return next((unit for unit in UNITS if most >= unit[0]), UNITS[-1])


def flops_words(flops: float) -> str:
    """``1.234e16`` -> ``12.3 petaFLOP``."""
    size, name = flops_unit(flops)
    return f"{significant(flops / size)} {name}"


def training_flops(run: RunRecords) -> str | None:
    """The operations of a run, and the fraction of its devices' capacity; None if they cannot be counted."""
    done = trained(run)
    if done is None:
        return None
    possible = capacity(run)
    fraction = f", {percent(done.total / possible)} of its devices' capacity" if possible else ""
    return f"{flops_words(done.total)}{fraction}"


# ---------------------------------------------------------------- GLUE by compute


def compute(runs: Sequence[RunRecords], published: Sequence[PublishedAverage]) -> Block | None:
    """The figure and its table; nothing if no run was evaluated on a task of GLUE."""
    evaluated = [number for number, run in enumerate(runs) if run.glue is not None or run.glue_lacks]
    if not evaluated or not published:
        return None
    drawn = [number for number, run in enumerate(runs) if _point(run)]
    tint = color(drawn[0]) if len(drawn) == 1 else "var(--ink)"
    key = [("dot", "var(--quiet)", "published"), *([("dot", tint, "here")] if drawn else [])]
    caption = "Published models by their number in the table."
    caption += "" if drawn else " No run is in the figure: the table says what is missing."
    rows = [_published_row(number, model) for number, model in enumerate(published, start=1)]
    return section(
        "Compute against GLUE",
        figure("GLUE by exaFLOP", caption, compute_figure(runs, published), key, numbers=False),
        table(("Model", "exaFLOP", "GLUE"), [*rows, *(_row(runs, number) for number in evaluated)]),
        caption="One exaFLOP is 10^18 operations. The count follows the Cramming paper (arXiv:2212.14034): the "
        "operations that the devices could do in the time of pretraining. For a run here the rate is that of a matrix "
        "product measured before the first step, which is below the peak rate of a data sheet. GLUE is that paper's "
        "mean of nine numbers on dev; a run needs all nine under the paper's protocol.",
    )


def _point(run: RunRecords) -> tuple[float, float] | None:
    """(exaFLOP, GLUE x 100) of a run; None if it is not plotted."""
    possible = capacity(run)
    return None if run.glue is None or possible is None or run.continued else (possible / EXA, 100 * run.glue)


def _why_not(run: RunRecords) -> str:
    """Why a run is not plotted; empty if it is."""
    if run.glue is None:
        return run.glue_lacks
    if capacity(run) is None:
        return "not plotted: the compute of its pretraining is not recorded"
    return "not plotted: it continues another model, whose compute is not recorded" if run.continued else ""


def _published_row(number: int, model: PublishedAverage) -> list[Any]:
    sources = small(f"GLUE: {model.source}; compute: {model.how}")
    return [join(f"{number}. ", bold(model.model), sources), significant(model.exaflop or 0.0), score(model.value)]


def _row(runs: Sequence[RunRecords], number: int) -> list[Any]:
    run = runs[number]
    possible, done, why = capacity(run), training_flops(run), _why_not(run)
    details = [small(text) for text in (done and f"computed: {done}", why) if text]
    return [
        join(run_name(runs, number), *details),
        significant(possible / EXA) if possible else UNKNOWN,
        UNKNOWN if run.glue is None else score(run.glue),
    ]


def compute_figure(runs: Sequence[RunRecords], published: Sequence[PublishedAverage]) -> Figure:
    """Published models as numbered dots, runs in their colors, on a logarithmic axis of exaFLOP."""
    known = [(number, model) for number, model in enumerate(published, start=1) if model.exaflop]
    seen = Counter[float | None]()
    sides = []
    for _, model in known:  # models of the same compute are above each other: their numbers alternate
        sides.append("middle left" if seen[model.exaflop] % 2 else "middle right")
        seen[model.exaflop] += 1
    at = "%{y:.1f} at %{x:.4~g} exaFLOP"
    data = [
        scatter(
            "published", [model.exaflop for _, model in known], [100 * model.value for _, model in known],
            "var(--quiet)", mode="markers+text", size=9, hover=f"%{{text}}. %{{hovertext}}: {at}",
            text=[str(number) for number, _ in known], textposition=sides, textfont={"color": "var(--quiet)"},
            hovertext=[html.escape(model.model) for _, model in known],
        )
    ]  # fmt: skip
    for number, run in enumerate(runs):
        if point := _point(run):
            x, y = [point[0]], [point[1]]
            data.append(
                scatter(html.escape(run.label), x, y, color(number), run=number, mode="markers", size=14,
                        symbol="star", hover=at)
            )  # fmt: skip
    layout = base_layout("exaFLOP", "GLUE x 100", hovermode="closest")
    x, y = ([value for trace in data for value in trace[axis]] for axis in "xy")
    ends = [math.log10(min(x)) - 0.3, math.log10(max(x)) + 0.3]
    layout["xaxis"] |= {"type": "log", "dtick": 1, "exponentformat": "power", "range": ends}
    layout["yaxis"]["range"] = [min(y) - MARGIN, max(y) + MARGIN]
    return {"data": data, "layout": layout}
