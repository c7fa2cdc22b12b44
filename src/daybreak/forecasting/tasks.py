"""Forecasts of task scores from the forecast of the pretraining loss.

For each task ``benchmarks/task_forecasts.py`` fits a line to recorded runs: score = intercept + slope * gap, where the
gap is the unigram baseline minus the held-out loss, in nats. The interval is the prediction interval of linear
regression (Draper and Smith, Applied Regression Analysis, section 1.4), widened by the uncertainty of the loss. There
is no forecast outside the measured gaps.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

from scipy import stats

from daybreak.core.files import read_json
from daybreak.forecasting.law import COVERAGE
from daybreak.schemas.forecast import Forecast, TaskForecast, TaskLine, TaskTable

TABLE_FILE = Path(__file__).with_name("tasks.json")


@cache
def shipped_tasks() -> TaskTable:
    """Return the table that comes with this version."""
    return read_json(TABLE_FILE, TaskTable)


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
            low, high, here = _distinct(*line.gaps, gap)
            beyond = f"measured {low} to {high} nats below the unigram baseline, not at {here}"
            found.append(TaskForecast(task=line.task, runs=len(line.runs), beyond=beyond))
    return found


def _distinct(low: float, high: float, gap: float) -> tuple[str, str, str]:
    """Return the numbers with two digits, or with as many as show that the gap is outside."""
    for digits in range(2, 18):
        shown = f"{low:.{digits}f}", f"{high:.{digits}f}", f"{gap:.{digits}f}"
        if shown[2] not in shown[:2]:
            break
    return shown


def _forecast(line: TaskLine, gap: float, unsure: float) -> TaskForecast:
    many = len(line.runs)
    around = line.spread**2 * (1 + 1 / many + (gap - line.centre) ** 2 / line.squares)
    reach = float(stats.t.ppf(0.5 + COVERAGE / 2, many - 2)) * math.sqrt(around + (line.slope * unsure) ** 2)
    score = line.score + line.slope * (gap - line.centre)
    return TaskForecast(
        task=line.task, runs=many, score=score, low=max(-1.0, score - reach), high=min(1.0, score + reach)
    )
