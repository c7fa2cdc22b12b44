"""A run beside its forecast: what is written, what is said, and what a resume makes of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_laws import SIZES, true_law, true_loss, usual_loss, validation

from daybreak.core.files import read_json
from daybreak.forecasting.law import CENTRE, RunSpec
from daybreak.forecasting.live import ForecastMonitor
from daybreak.schemas.forecast import ForecastLog, Law
from daybreak.schemas.run import StepRecord
from daybreak.training.calibration import Pace

INNER, TOKENS = SIZES[1], 6e6
POSITIONS = 1000
EVEN = Pace((1.0, 1.0, 1.0)).covered


@pytest.fixture
def law() -> Law:
    return true_law()


def undertaking(tokens: float = TOKENS) -> RunSpec:
    return RunSpec(inner=INNER, tokens=tokens, unique=1e9, unigram_loss=7.0, difficulty=CENTRE[2])


def step(progress: float, luck: float, tokens_per_second: float = 1e4) -> StepRecord:
    """A line of a run as fake_laws.py makes them up, at a mark's loss all the way."""
    mark = max(0.1, math.floor(progress * 10 + 1e-9) / 10)
    loss = usual_loss(mark, true_loss(INNER, TOKENS)) * math.exp(luck)
    return StepRecord(
        step=round(progress * 1000), elapsed=600 * progress, progress=progress, tokens=round(TOKENS * progress),
        stage="causal", loss=loss, targets=1, learning_rate=1.0,
        gradient_norm=1.0, tokens_per_second=tokens_per_second,
    )  # fmt: skip


def monitor(law: Law, path: Path, tokens: float = TOKENS) -> ForecastMonitor:
    return ForecastMonitor(law, undertaking(tokens), POSITIONS, EVEN, path)


def walk(prophet: ForecastMonitor, begin: int, end: int, luck: float = 0.0) -> None:
    """Steps from one percent of a run to another; from 15 on, each that ends with a 5 is followed by a validation."""
    for percent in range(begin, end):
        prophet.on_step(step(percent / 100, luck))
        if percent > 10 and percent % 10 == 5:
            prophet.on_validation(validation(percent / 100, TOKENS, true_loss(INNER, TOKENS, luck)))


def test_forecasts_are_kept_from_the_start_on_and_narrow(
    law: Law, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forecast.json"
    prophet = monitor(law, path)
    (first,) = read_json(path, ForecastLog).forecasts
    assert first.made_at == 0 and f"{first.loss:.2f}" in prophet.remark()
    walk(prophet, 1, 100, luck=0.03)
    outlook = read_json(path, ForecastLog)
    kept = outlook.forecasts
    assert [band.made_at for band in outlook.usual] == [mark.at for mark in law.course.usual]
    assert [each.made_at for each in kept] == [0, 0.1, *(percent / 100 for percent in range(15, 100, 10))]
    assert [each.high - each.low for each in kept] == sorted((each.high - each.low for each in kept), reverse=True)
    assert kept[2].loss == kept[1].loss, "no run was measured so early"
    for late in kept[3:]:
        assert abs(late.loss / true_loss(INNER, TOKENS, 0.03) - 1) < 0.005 < abs(first.loss / late.loss - 1)
    assert kept[3].tokens == pytest.approx(TOKENS, rel=0.01)
    said = capsys.readouterr().out
    assert said.count("training loss at 10%") == 1 and "Forecast of the final loss: " in said and "rough" not in said


@pytest.mark.parametrize(("luck", "word"), [(0.0, "as usual"), (0.06, "higher than it should be"), (-0.06, "better")])
def test_it_says_whether_the_loss_is_usual(
    law: Law, tmp_path: Path, capsys: pytest.CaptureFixture[str], luck: float, word: str
) -> None:
    walk(ForecastMonitor(law, undertaking(), POSITIONS, None, tmp_path / "forecast.json"), 1, 12, luck)
    assert word in capsys.readouterr().out


def test_a_faster_machine_than_expected_reads_more(law: Law, tmp_path: Path) -> None:
    prophet = monitor(law, tmp_path / "forecast.json", TOKENS / 2)
    walk(prophet, 1, 12)
    assert prophet.forecasts[1].tokens == pytest.approx(TOKENS, rel=0.02)
    assert prophet.forecasts[1].loss < prophet.forecasts[0].loss


def test_a_resumed_run_goes_on_with_its_forecasts(law: Law, tmp_path: Path) -> None:
    path = tmp_path / "forecast.json"
    walk(monitor(law, path), 1, 37)
    again = monitor(law, path, 1.0)
    assert [each.made_at for each in again.forecasts] == [0, 0.1, 0.15, 0.25, 0.35]
    assert len(read_json(path)["forecasts"]) == 5
    walk(again, 33, 57)  # steps and a validation that were lost come again
    assert [each.made_at for each in again.forecasts] == [0, 0.1, 0.15, 0.25, 0.35, 0.45, 0.55]


def test_a_validation_on_few_positions_counts_less(law: Law, tmp_path: Path) -> None:
    """The positions of an interim validation are part of the final ones, so all of them leave no sampling error."""
    widths = []
    for positions in (100, 500, POSITIONS):
        prophet = monitor(law, tmp_path / f"{positions}.json")
        prophet.on_step(step(0.01, 0.0))
        prophet.on_validation(validation(0.5, TOKENS, true_loss(INNER, TOKENS, 0.05), positions))
        made = prophet.forecasts[-1]
        widths.append((made.high / made.low, made.loss))
    assert widths == sorted(widths, key=lambda each: (-each[0], each[1]))


@pytest.mark.parametrize("loss", [math.nan, math.inf, 0.0])
def test_a_validation_without_a_number_gives_no_forecast(law: Law, tmp_path: Path, loss: float) -> None:
    prophet = monitor(law, tmp_path / "forecast.json")
    prophet.on_validation(replace(validation(0.5, TOKENS, 4.0), loss=loss))
    prophet.on_validation(replace(validation(1.0, TOKENS, 4.0), final=True))
    assert len(prophet.forecasts) == 1


def test_stages_of_different_speed_are_reckoned_with(law: Law, tmp_path: Path) -> None:
    """An even first half, and a second one in which the speed grows to three times as much."""
    pace = Pace((1.0, 1.0, 3.0))
    assert pace.covered(0.25) == pytest.approx(0.25) and pace.covered(0.75) == pytest.approx(0.5 + 0.25 + 0.125)
    assert pace.covered(1.0) == pytest.approx(1.5)
    prophet = ForecastMonitor(law, undertaking(), POSITIONS, pace.covered, tmp_path / "forecast.json")
    for percent in range(1, 95):
        progress = percent / 100
        tokens = round(TOKENS * pace.covered(progress) / pace.covered(1.0))
        prophet.on_step(replace(step(progress, 0.0), tokens=tokens))
        if percent % 20 == 0:
            prophet.on_validation(replace(validation(progress, TOKENS, true_loss(INNER, TOKENS)), tokens=tokens))
    assert len(prophet.forecasts) == 6
    assert [one.tokens for one in prophet.forecasts] == pytest.approx([TOKENS] * 6, rel=1e-4)
