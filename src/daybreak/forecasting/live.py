"""Forecasts during a run, and whether its training loss is as usual."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from daybreak.core.files import read_json, write_json
from daybreak.core.terminal import say
from daybreak.forecasting.law import (
    SPEED_SPREAD,
    WINDOW,
    RunSpec,
    correct_forecast,
    course_means,
    course_of,
    predict_loss,
    typical_loss,
)
from daybreak.schemas.forecast import Forecast, ForecastLog, Law, UsualLoss
from daybreak.schemas.run import MachineRecord, StepRecord, ValidationRecord


class ForecastMonitor:
    """A monitor that writes RUN/forecast.json, and prints at the first mark whether the loss is as usual.

    There is a forecast at the start, one at the first mark, and one after each interim validation. A resumed run
    continues with the file.

    Args:
        run: the run as planned.
        positions: masked positions of the final validation.
        covered: the fraction of the tokens that is read at a progress, because phases differ in speed; None for a
            budget in tokens or steps.
        path: of forecast.json.
    """

    def __init__(self, law: Law, run: RunSpec, positions: int, covered: Callable[[float], float] | None, path: Path):
        self._law, self._run, self._positions, self._covered, self._path = law, run, positions, covered, path
        self._begun: StepRecord | None = None
        self._seen: list[tuple[float, float]] = []
        self.forecasts: list[Forecast] = read_json(path, ForecastLog).forecasts if path.exists() else []
        if not self.forecasts:
            self._keep(first := self._from_here(run, 0.0), predict_loss(law, first))

    def remark(self) -> str:
        """Return the forecast for the progress line."""
        forecast = self.forecasts[-1]
        return f"  forecast {forecast.loss:.2f} ({forecast.interval})"

    def on_step(self, record: StepRecord) -> None:
        self._begun, mark = self._begun or record, course_of(self._law, self._run).usual[0]
        if self.forecasts[-1].made_at >= mark.at:
            return
        if record.progress > mark.at - WINDOW:
            self._seen.append((record.progress, record.loss))
        if record.progress >= mark.at:
            self._look(mark, record)

    def _look(self, mark: UsualLoss, record: StepRecord) -> None:
        progress, losses = zip(*self._seen)
        (seen,) = course_means(progress, losses, (mark.at,))
        run = self._from_here(replace(self._run, tokens=self._tokens(record)), record.progress)
        self._keep(run, predict_loss(self._law, run, mark.at))
        level = f"{verdict(seen, typical_loss(self._law, run, mark))} " if seen else ""
        say(f"{level}Forecast of the final loss: {self.forecasts[-1].words_with_reason}.")

    def _from_here(self, run: RunSpec, progress: float) -> RunSpec:
        """Return the run with the uncertainty of its remaining tokens."""
        return run if self._covered is None else replace(run, speed_spread=SPEED_SPREAD * (1.0 - progress))

    def _tokens(self, record: StepRecord | ValidationRecord) -> float:
        """Return the total tokens of the run at the mean speed so far."""
        if self._covered is None or self._begun is None or record.progress <= self._begun.progress:
            return record.tokens / max(record.progress, 1e-9)
        here = self._covered(record.progress)
        rate = (record.tokens - self._begun.tokens) / (here - self._covered(self._begun.progress))
        return record.tokens + rate * (self._covered(1.0) - here)

    def _keep(self, run: RunSpec, forecast: Forecast) -> None:
        self.forecasts.append(forecast)
        bands = [typical_loss(self._law, run, mark) for mark in course_of(self._law, run).usual]
        write_json(self._path, ForecastLog(forecasts=self.forecasts, usual=bands, difficulty=run.difficulty))

    def on_validation(self, record: ValidationRecord) -> None:
        """Correct the forecast by an interim validation."""
        if record.final or record.progress <= self.forecasts[-1].made_at or not 0.0 < record.loss < math.inf:
            return
        run = self._from_here(replace(self._run, tokens=self._tokens(record)), record.progress)
        self._keep(run, correct_forecast(self._law, run, record, self._positions))

    def on_machine(self, record: MachineRecord) -> None:
        """Do nothing."""


def verdict(seen: float, band: Forecast) -> str:
    """Say whether a training loss is as usual."""
    level = "higher than it should be" if seen > band.high else "better than usual" if seen < band.low else "as usual"
    return f"The training loss at {band.made_at:.0%} is {level}: {seen:.2f}, usual here is {band.words}."
