"""What the page says of forecasts: the runs are made up, and so is what was forecast of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fake_corpus import html_of, words

from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.reporting.forecast import forecasts
from daybreak.reporting.runs import RunRecords, read_run
from daybreak.schemas.forecast import Forecast, ForecastLog
from daybreak.schemas.run import Summary

Write = Callable[..., Path]


def expectation(path: Path, *, start: float, early: float, beyond: str = "", looked: float = 0.1) -> RunRecords:
    """A run of which was forecast ``start`` times its final loss, and ``early`` times at ``looked``, each +- 2 %."""
    folder = RunFolder(path)
    reached = read_json(folder.summary, Summary).validation.loss if folder.summary.exists() else 4.0

    def seen(at: float, share: float) -> Forecast:
        loss = share * reached
        return Forecast(made_at=at, tokens=1e6, loss=loss, low=0.98 * loss, high=1.02 * loss, beyond=beyond)

    made, usual = [seen(0.0, start), seen(looked, early)], [seen(0.1, 1.2), seen(0.2, 1.1)]
    write_json(folder.forecast, ForecastLog(forecasts=made, usual=usual, difficulty=-0.75))
    return read_run(path)


def test_a_run_without_a_forecast_has_no_such_section(write_run: Write) -> None:
    assert forecasts([read_run(write_run())]) is None


def test_expected_and_reached(write_run: Write) -> None:
    run = expectation(write_run(), start=1.05, early=0.99)
    said = words(forecasts([run]))
    assert "5.0 %, outside" in said and "-1.0 %, inside" in said and "Training loss and typical course" in said
    assert "an extrapolation" not in said
    assert run.forecast and f"{run.forecast.forecasts[0].loss:.2f} (" in said


def test_a_forecast_at_a_fifth_is_not_shown_as_that_at_a_tenth(write_run: Write) -> None:
    said = words(forecasts([expectation(write_run(), start=1.05, early=0.99, looked=0.2)]))
    assert "5.0 %, outside" in said and "-1.0 %, inside" not in said


def test_several_runs_have_no_typical_course(write_run: Write) -> None:
    runs = [expectation(write_run("a&b", seed=1), start=1.01, early=1.0), read_run(write_run("e", seed=4))]
    page = html_of(forecasts(runs))
    assert "Training loss and typical course" not in page and "a&amp;b" in page and "a&b:" not in page


def test_a_guess_is_called_one(write_run: Write) -> None:
    run = expectation(write_run(), start=1.0, early=1.0, beyond="9 times the tokens of the largest run behind it")
    assert "The forecast is an extrapolation, outside the runs" in words(forecasts([run]))
