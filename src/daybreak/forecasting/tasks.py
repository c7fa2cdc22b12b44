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
            # So many digits that the gap and the end that it lies beyond differ.
            digits = next(n for n in range(2, 18) if f"{gap:.{n}f}" not in {f"{end:.{n}f}" for end in line.gaps})
            where = f"{line.gaps[0]:.{digits}f} to {line.gaps[1]:.{digits}f} nats below the unigram baseline"
            beyond = f"measured {where}, not at {gap:.{digits}f}"
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
