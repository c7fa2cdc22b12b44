"""Compare variants by held-out loss and task scores, in pairs of cells with the same seed.

Two cells of one seed share the order of the rows and the masks, so their difference varies less than each of them. The
interval is Student's t over the differences (n - 1 degrees of freedom), which assumes that they are normal. Its factor
is 12.7 for two seeds, 4.3 for three and 2.8 for five, so two seeds can only show differences many times their standard
deviation. The interval does not cover the choice of the held-out positions or of the task's rows.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from daybreak.core.files import read_json_lines
from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.scoring.resampling import t_interval
from daybreak.schemas.studies import CurvePoint, LossComparison, ScoreComparison, StudyCell, TimeRatio
from daybreak.schemas.tasks import CLAIM_SEEDS, ROUNDING, spread

LEVELS = (0.75, 0.5, 0.25)
"""Fractions of the loss range that all curves of a pair cover, at which the times are compared."""


def compare_all(cells: Sequence[StudyCell], names: Sequence[str], unit: str) -> list[LossComparison]:
    """Compare each variant with each earlier one, on the seeds for which both have a result.

    Args:
        cells: the last attempt of each cell. Those without a result end the claims, as all void cells do.
        unit: unit of the budget; only ``seconds`` is an equal clock.
    """
    return [found for a, b in _pairs(cells, names) if (found := compare(a, b, unit))]


def _pairs(cells: Sequence[StudyCell], names: Sequence[str]) -> list[tuple[list[StudyCell], list[StudyCell]]]:
    """Return for each two variants their cells of common seeds."""
    found = []
    for names_of_pair in itertools.combinations(names, 2):
        a, b = ({cell.seed: cell for cell in cells if cell.variant == name} for name in names_of_pair)
        if seeds := sorted(a.keys() & b.keys()):
            found.append(([a[seed] for seed in seeds], [b[seed] for seed in seeds]))
    return found


def compare(a: Sequence[StudyCell], b: Sequence[StudyCell], unit: str) -> LossComparison | None:
    """Compare B with A; both have the same seeds in the same order. None if no seed has a result of both."""
    void = any(cell.void for cell in [*a, *b])
    both = [pair for pair in zip(a, b, strict=True) if all(cell.has_result for cell in pair)]
    if not both:
        return None
    a, b = zip(*both)
    found = _compared(a, b, [cell.loss for cell in a], [cell.loss for cell in b], unit, better=-1, void=void)
    return LossComparison(
        **found, times=[] if void else time_ratios([cell.curve for cell in a], [cell.curve for cell in b])
    )


def _compared(
    a: Sequence[StudyCell],
    b: Sequence[StudyCell],
    here: list[float],
    there: list[float],
    unit: str,
    *,
    better: int,
    void: bool,
) -> dict[str, Any]:
    """The fields of a PairedComparison of the values ``here`` of A and ``there`` of B.

    Args:
        better: 1 if a larger value is better, -1 if a smaller one is.
        void: whether a cell of the two variants is void.
    """
    differences = [after - before for before, after in zip(here, there, strict=True)]
    ends, wider = t_interval(differences), max(spread(here), spread(there))
    return {
        "a": a[0].variant,
        "b": b[0].variant,
        "seeds": [cell.seed for cell in a],
        "difference": statistics.fmean(differences),
        "low": ends[0] if ends else None,
        "high": ends[1] if ends else None,
        "spread": wider,
        "verdict": _verdict([better * each for each in differences], wider, void=void, unit=unit),
    }


def scores_of(cell: StudyCell) -> dict[str, float]:
    """Return the cell's score on each task and, for several tasks, the mean."""
    scores = {one.task: one.score for one in cell.tasks}
    if len(scores) > 1:
        scores[f"mean of {len(scores)} tasks"] = statistics.fmean(scores.values())
    return scores


def compare_scores(cells: Sequence[StudyCell], names: Sequence[str], unit: str) -> list[ScoreComparison]:
    """Compare each variant with each earlier one on each task and on the mean over tasks.

    Seeds of which a cell was not fine-tuned are left out, but a void cell among them ends the claims as well.

    Args:
        cells, names, unit: see ``compare_all``.
    """
    metrics = {one.task: one.metric for cell in cells for one in cell.tasks}
    found = []
    for pair in _pairs(cells, names):
        void = any(cell.void for side in pair for cell in side)
        for a, b in _pairs([cell for side in pair for cell in side if cell.tasks], names):
            scores = [[scores_of(cell) for cell in side] for side in (a, b)]
            for task in scores[0][0]:
                here, there = ([score[task] for score in side] for side in scores)
                values = _compared(a, b, here, there, unit, better=1, void=void)
                found.append(ScoreComparison(task=task, metric=metrics.get(task, ""), **values))
    return found


def _verdict(gains: Sequence[float], wider: float, *, void: bool, unit: str) -> str:
    """Return the verdict. A claim needs CLAIM_SEEDS seeds, an interval without 0, a difference above the standard
    deviation, an equal clock and no void cell.

    Args:
        gains: the lead of B for each seed.
    """
    middle, ends = statistics.fmean(gains), t_interval(gains)
    ahead = f"{'B' if middle > 0 else 'A'} is ahead"
    if void:
        return "no claim: a cell is void"
    if abs(middle) <= ROUNDING:
        return "no difference shown"
    if ends is None:
        return f"{ahead} in one run, no claim"
    if ends[0] <= 0 <= ends[1]:
        return "no difference shown"
    if len(gains) < CLAIM_SEEDS:
        return f"{ahead}, no claim from fewer than {CLAIM_SEEDS} seeds"
    if abs(middle) <= wider + ROUNDING:
        return f"{ahead} by no more than the standard deviation, no claim"
    if unit != "seconds":
        return f"{ahead} at equal {unit}, which does not give equal time: no claim"
    return f"{'B' if middle > 0 else 'A'} is better"


# ---------------------------------------------------------------- time to the same loss


def read_curve(run: RunFolder) -> list[CurvePoint]:
    """Return the validations of a run on the held-out sequences of its interim ones."""
    points: list[CurvePoint] = []
    for line in read_json_lines(run.metrics, skip_damaged=True):
        if line["type"] == "validation":
            point = CurvePoint(**{name: line[name] for name in ("elapsed", "step", "tokens", "loss", "positions")})
            if line.get("interim_loss") is not None and points:
                point = replace(point, loss=line["interim_loss"], positions=points[-1].positions)
            points.append(point)
    return points


def reached(curve: Sequence[CurvePoint], loss: float) -> float | None:
    """Return the seconds at which ``curve`` first reached ``loss``, by linear interpolation.

    None if it never did, or before its first point.
    """
    for before, point in itertools.pairwise(curve):
        if before.loss == loss:
            return before.elapsed
        if before.loss < loss:
            return None
        if point.loss <= loss:
            fraction = (before.loss - loss) / (before.loss - point.loss)
            return before.elapsed + fraction * (point.elapsed - before.elapsed)
    return curve[-1].elapsed if curve and curve[-1].loss == loss else None


def time_ratios(a: Sequence[Sequence[CurvePoint]], b: Sequence[Sequence[CurvePoint]]) -> list[TimeRatio]:
    """Return the ratio of B's time to A's time to reach A's final loss, B's final loss, and losses in between.

    Args:
        a, b: one curve per seed, paired.
    """
    if not all(a) or not all(b):
        return []
    found = [
        _ratio("A's final loss", a, b, [curve[-1].loss for curve in a]),
        _ratio("B's final loss", a, b, [curve[-1].loss for curve in b]),
    ]
    curves = [*a, *b]
    high = min(curve[0].loss for curve in curves)
    low = max(min(point.loss for point in curve) for curve in curves)
    for fraction in LEVELS if high > low else ():
        level = round(low + fraction * (high - low), 3)
        found.append(_ratio(f"{level:.3f}", a, b, [level] * len(a)))
    return found


def _ratio(
    words: str, a: Sequence[Sequence[CurvePoint]], b: Sequence[Sequence[CurvePoint]], levels: Sequence[float]
) -> TimeRatio:
    ratios: list[float | None] = []
    for here, there, level in zip(a, b, levels, strict=True):
        first, second = reached(here, level), reached(there, level)
        alike = here[-1].positions == there[-1].positions  # else the two losses are those of other sequences
        ratios.append(second / first if alike and first and second else None)
    known = [ratio for ratio in ratios if ratio is not None]
    return TimeRatio(
        level=words,
        ratios=ratios,
        ratio=statistics.geometric_mean(known) if known and len(known) == len(ratios) else None,
    )
