"""Forecasts of task scores, and the fit of benchmarks/task_forecasts.py, on runs whose truth the test made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_tasks
from benchmark_scripts import beside, script
from scipy import stats

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.serialization import from_dict
from daybreak.forecasting.tasks import forecast_tasks, shipped_tasks
from daybreak.schemas.forecast import Forecast, TaskForecast, TaskTable
from daybreak.schemas.tasks import TaskResult

__all__ = ["beside"]  # a fixture

RECORDS = Path(__file__).resolve().parents[2] / "records"
TRUTH = (0.20, 0.15)
"""Score at no gap and a nat."""
NOISE = 0.03


def made_up(rng: np.random.Generator, runs: int = 8, noise: float = NOISE) -> list[Any]:
    start, slope = TRUTH
    gaps = rng.uniform(1.0, 3.0, runs).tolist()
    scores = [{"stsb": start + slope * gap + noise * rng.standard_normal()} for gap in gaps]
    task_run = script("task_forecasts").TaskRun
    return [task_run(name=str(at), gap=gap, scores=score) for at, (gap, score) in enumerate(zip(gaps, scores))]


def fit_tasks(runs: Sequence[Any]) -> TaskTable:
    table: TaskTable = script("task_forecasts").fit_tasks(runs)
    return table


def at(gap: float, half: float = 0.0, unigram: float = 7.0) -> Forecast:
    return Forecast(made_at=0.0, tokens=1e6, loss=unigram - gap, low=unigram - gap - half, high=unigram - gap + half)


def one(table: TaskTable, gap: float, half: float = 0.0) -> TaskForecast:
    (found,) = forecast_tasks(table, at(gap, half), 7.0)
    return found


def test_a_line_without_noise_is_found_again() -> None:
    table = fit_tasks(made_up(np.random.default_rng(0), noise=0.0))
    (line,) = table.lines
    middle = (line.gaps[0] + line.gaps[1]) / 2
    assert one(table, middle).score == pytest.approx(TRUTH[0] + TRUTH[1] * middle, abs=1e-4)


def test_a_gap_just_outside_is_not_rounded_into_the_measured_ones() -> None:
    table = fit_tasks(made_up(np.random.default_rng(0)))
    low, high = table.lines[0].gaps
    found = one(table, low - 1e-4)
    assert found.beyond == f"measured {low:.4f} to {high:.4f} nats below the unigram baseline, not at {low - 1e-4:.4f}"


def test_nine_of_ten_new_runs_fall_into_the_interval() -> None:
    rng = np.random.default_rng(1)
    inside = tries = 0
    for _ in range(600):
        table, new = fit_tasks(made_up(rng, 6)), made_up(rng, 4)
        for run in new:
            found = one(table, run.gap)
            if found.low is not None and found.high is not None:
                inside, tries = inside + (found.low <= run.scores["stsb"] <= found.high), tries + 1
    assert tries > 1000 and abs(inside / tries - 0.9) < 0.03


def test_nine_of_ten_stay_inside_where_the_loss_is_a_forecast() -> None:
    """The gap that comes lies around the forecast one."""
    rng = np.random.default_rng(2)
    inside = tries = 0
    for _ in range(1500):
        table, expected, spread = fit_tasks(made_up(rng, 12)), float(rng.uniform(1.6, 2.4)), 0.3
        gap = expected + spread * rng.standard_normal()
        found = one(table, expected, half=spread * float(stats.norm.ppf(0.95)))
        if found.low is None or found.high is None:
            continue
        score = TRUTH[0] + TRUTH[1] * gap + NOISE * rng.standard_normal()
        inside, tries = inside + (found.low <= score <= found.high), tries + 1
    assert tries > 1000 and abs(inside / tries - 0.9) < 0.03


def test_the_interval_is_that_of_a_new_point_around_a_fitted_line() -> None:
    runs = made_up(np.random.default_rng(3), 7)
    gaps, scores = [run.gap for run in runs], [run.scores["stsb"] for run in runs]
    fitted = stats.linregress(gaps, scores)
    rest = np.array(scores) - fitted.intercept - fitted.slope * np.array(gaps)
    squares = float(((np.array(gaps) - np.mean(gaps)) ** 2).sum())
    width = np.sqrt((rest @ rest / 5) * (1 + 1 / 7 + (2.0 - np.mean(gaps)) ** 2 / squares)) * stats.t.ppf(0.95, 5)
    found = one(fit_tasks(runs), 2.0)
    expected = fitted.intercept + 2 * fitted.slope
    assert found.score == pytest.approx(expected, abs=1e-4) and found.runs == 7
    assert (found.low, found.high) == pytest.approx((expected - width, expected + width), abs=1e-4)
    told = [f"{100 * value:.0f}" for value in (expected, expected - width, expected + width)]
    assert found.words == f"stsb {told[0]} ({told[1]} to {told[2]})"


def test_outside_of_what_was_measured_there_is_no_forecast() -> None:
    table = fit_tasks(made_up(np.random.default_rng(4)))
    (line,) = table.lines
    for gap in (line.gaps[0] - 0.01, line.gaps[1] + 0.01):
        found = one(table, gap)
        assert found.score is None and found.words == "stsb not measured there" and f"not at {gap:.2f}" in found.beyond


def test_too_few_runs_have_no_line() -> None:
    runs, fewest = made_up(np.random.default_rng(6)), script("task_forecasts").FEWEST
    assert len(fit_tasks(runs[:fewest]).lines) == 1
    with pytest.raises(UserError, match=f"No task has scores of {fewest} runs"):
        fit_tasks(runs[: fewest - 1])


def result(task: str, mean: float, protocol: str = "small", model: str = "pretrained") -> TaskResult:
    return small_tasks.result(task, {"accuracy": [mean]}, protocol=protocol, model=model)


def test_the_scores_of_a_run_are_those_of_its_model_under_one_protocol() -> None:
    scores_of, averaged = script("task_forecasts").scores_of, script("task_forecasts").AVERAGED
    others = [result("sst2", 0.9, protocol="bert"), result("sst2", 0.1, model="untrained")]
    found = scores_of([*others, *(result(task, 0.6) for task in averaged)])
    assert found == dict.fromkeys([*averaged, "glue5"], 0.6)
    assert "glue5" not in scores_of([result("sst2", 0.6)])


def test_the_shipped_table_is_that_of_the_records() -> None:
    fit = script("task_forecasts")
    kept = [run for path in sorted(RECORDS.glob("*task-runs*.json")) for run in read_json(path)["runs"]]
    again, table = fit_tasks([from_dict(fit.TaskRun, run) for run in kept]), shipped_tasks()
    assert again == table, "python benchmarks/task_forecasts.py --records records --table ..."
    filed = max(RECORDS.glob("*-task-forecasts.json"))
    assert from_dict(TaskTable, read_json(filed)["table"]) == table
    assert {line.task for line in table.lines} >= {*fit.AVERAGED, "glue5"}
    assert all(len(line.runs) >= fit.FEWEST for line in table.lines)
