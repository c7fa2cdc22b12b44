"""Forecasts of task scores from the forecast of the pretraining loss.

For each task a line is fitted to recorded runs: score = intercept + slope * gap, where the gap is the unigram baseline
minus the held-out loss, in nats. The interval is the prediction interval of linear regression (Draper and Smith,
Applied Regression Analysis, section 1.4), widened by the uncertainty of the loss. There is no forecast outside the
measured gaps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.forecasting.law import COVERAGE
from daybreak.schemas.forecast import Forecast, TaskForecast, TaskLine, TaskRun, TaskTable
from daybreak.schemas.run import Summary
from daybreak.schemas.tasks import TaskResult

TABLE_FILE = Path(__file__).with_name("tasks.json")
FEWEST = 4
"""Fewest runs of a line; three leave one degree of freedom, which makes the interval useless."""
PROTOCOL = "small"
AVERAGED = ("cola", "sst2", "mrpc", "stsb", "rte")
AVERAGE = "glue5"
"""Name of the mean over AVERAGED, for runs that have all of them."""


@cache
def shipped_tasks() -> TaskTable:
    """Return the table that comes with this version."""
    return read_json(TABLE_FILE, TaskTable)


def task_run(name: str, gap: float, results: Sequence[TaskResult]) -> TaskRun:
    """Return a run as input of the fit, without results of other protocols and of untrained models.

    Args:
        gap: the unigram baseline minus the final held-out loss, in nats.
    """
    scores = {one.task: one.mean for one in results if one.protocol == PROTOCOL and one.model == "pretrained"}
    if all(task in scores for task in AVERAGED):
        scores[AVERAGE] = statistics.fmean(scores[task] for task in AVERAGED)
    rounded = {task: round(score, 5) for task, score in scores.items()}
    return TaskRun(name=name, gap=round(gap, 5), scores=rounded)


def task_run_of(run: RunFolder, name: str) -> TaskRun:
    """Return a finished and evaluated run, from its folder or its record."""
    summary, results = read_json(run.summary, Summary), read_json(run.results, list[TaskResult])
    return task_run(name, summary.validation.unigram_loss - summary.validation.loss, results)


def fit_tasks(runs: Sequence[TaskRun]) -> TaskTable:
    """Fit a line for each task that at least FEWEST runs have."""
    lines = []
    for task in dict.fromkeys(task for run in runs for task in run.scores):
        known = [run for run in runs if task in run.scores]
        if len(known) >= FEWEST and len({run.gap for run in known}) > 1:
            lines.append(_line(task, known))
    if not lines:
        raise UserError(f"No task has scores of {FEWEST} runs.", "Evaluate more runs.")
    return TaskTable(protocol=PROTOCOL, lines=lines)


def _line(task: str, runs: Sequence[TaskRun]) -> TaskLine:
    """Fit a line by ordinary least squares."""
    gaps, scores = np.array([run.gap for run in runs]), np.array([run.scores[task] for run in runs])
    centre = float(gaps.mean())
    squares = float(((gaps - centre) ** 2).sum())
    slope = float((gaps - centre) @ (scores - scores.mean())) / squares
    apart = scores - scores.mean() - slope * (gaps - centre)
    return TaskLine(
        task=task,
        runs=[run.name for run in runs],
        gaps=(float(gaps.min()), float(gaps.max())),
        centre=round(centre, 6),
        squares=round(squares, 6),
        score=round(float(scores.mean()), 6),
        slope=round(slope, 6),
        spread=round(math.sqrt(float(apart @ apart) / (len(runs) - 2)), 6),
    )


def forecast_tasks(table: TaskTable, loss: Forecast, unigram_loss: float) -> list[TaskForecast]:
    """Forecast the score of each task after fine-tuning, with a 90 % interval, or say why there is no forecast.

    Args:
        loss: the forecast of the final held-out loss, in nats.
        unigram_loss: the unigram baseline on the same text, in nats.
    """
    gap = unigram_loss - loss.loss
    unsure = (loss.high - loss.low) / 2 / float(stats.norm.ppf(0.5 + COVERAGE / 2))
    found = []
    for line in table.lines:
        if line.gaps[0] <= gap <= line.gaps[1]:
            found.append(_forecast(line, gap, unsure))
        else:
            where = f"{line.gaps[0]:.2f} to {line.gaps[1]:.2f} nats below the unigram baseline"
            beyond = f"measured {where}, not at {gap:.2f}"
            found.append(TaskForecast(task=line.task, runs=len(line.runs), beyond=beyond))
    return found


def _forecast(line: TaskLine, gap: float, unsure: float) -> TaskForecast:
    many = len(line.runs)
    around = line.spread**2 * (1 + 1 / many + (gap - line.centre) ** 2 / line.squares)
    reach = float(stats.t.ppf(0.5 + COVERAGE / 2, many - 2)) * math.sqrt(around + (line.slope * unsure) ** 2)
    score = line.score + line.slope * (gap - line.centre)
    return TaskForecast(
        task=line.task, runs=many, score=score, low=max(-1.0, score - reach), high=min(1.0, score + reach)
    )
