"""The fit of benchmarks/law.py on runs whose truth is known, because the test made it up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import beside, script
from fake_laws import MARKS, PLENTY, SEEN, SIZES, TOKENS, true_loss, usual_loss
from fake_runs import WriteRun, write_run

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.forecasting.law import CENTRE, RunSpec, correct, predict_loss, usual
from daybreak.schemas.forecast import Law
from daybreak.schemas.run import Summary

__all__ = ["beside", "write_run"]  # fixtures


def made_up(noise: float, seed: int) -> list[Any]:
    """Runs of all sizes and tokens, whose log losses differ from the truth by ``noise``."""
    chance = np.random.default_rng(seed)
    found = []
    for inner in SIZES:
        for tokens in TOKENS:
            luck, difficulty = noise * chance.standard_normal(), float(chance.uniform(-1.05, -0.65))
            expected = true_loss(inner, tokens, 0.0, difficulty)
            found.append(
                script("law").LawRun(
                    name=f"{inner}-{tokens}", inner=inner, tokens=tokens, unique=PLENTY,
                    unigram_loss=7.0, compression=difficulty, bigram=0.0,
                    loss=true_loss(inner, tokens, luck, difficulty),
                    course=[usual_loss(at, expected) * math.exp(luck / SEEN) for at in MARKS],
                )
            )  # fmt: skip
    return found


def fit(runs: list[Any]) -> Law:
    return script("law").fit(runs)


def of(inner: int, tokens: float) -> RunSpec:
    return RunSpec(inner=inner, tokens=tokens, unique=PLENTY, unigram_loss=7.0, difficulty=CENTRE[2])


def test_a_law_without_noise_is_found_again() -> None:
    law = fit(made_up(0.0, 0))
    for inner in (500_000, 5_000_000):
        for tokens in (1.5e6, 1.2e7):
            seen = predict_loss(law, of(inner, tokens))
            assert seen.loss == pytest.approx(true_loss(inner, tokens), rel=2e-3) and not seen.beyond


def test_nine_of_ten_new_runs_fall_into_the_interval() -> None:
    inside = tries = 0
    for seed in range(12):
        law, chance = fit(made_up(0.02, seed)), np.random.default_rng(100 + seed)
        for _ in range(25):
            inner, tokens = int(chance.choice(SIZES)), float(chance.uniform(1e6, 1.6e7))
            loss = true_loss(inner, tokens, 0.02 * chance.standard_normal())
            seen = predict_loss(law, of(inner, tokens))
            inside, tries = inside + (seen.low <= loss <= seen.high), tries + 1
    assert 0.84 < inside / tries < 0.96


def test_the_course_corrects_what_the_law_could_not_know() -> None:
    law = fit(made_up(0.02, 1))
    mark = law.usual[1]
    assert mark.at == 0.2
    for luck in (-0.05, 0.0, 0.05):
        inner, tokens = SIZES[1], 6e6
        seen = usual_loss(mark.at, true_loss(inner, tokens)) * math.exp(luck / SEEN)
        before = predict_loss(law, of(inner, tokens))
        after = correct(law, of(inner, tokens), mark, seen)
        assert after.loss == pytest.approx(true_loss(inner, tokens, luck), rel=0.01)
        assert after.high - after.low < before.high - before.low and after.made_at == 0.2
        band = usual(law, of(inner, tokens), mark)
        assert (band.low < seen < band.high) == (luck == 0.0)


def test_nine_of_ten_losses_fall_into_the_interval_near_the_end() -> None:
    """The course shows only a part of what a run's loss has over that of the law."""
    inside = tries = 0
    for seed in range(12):
        chance = np.random.default_rng(200 + seed)
        runs = made_up(0.02, seed)
        law = fit([replace(run, loss=run.loss * math.exp(0.01 * chance.standard_normal())) for run in runs])
        mark = law.usual[-1]
        assert mark.at == 0.9
        for _ in range(25):
            inner, tokens = int(chance.choice(SIZES)), float(chance.uniform(1e6, 1.6e7))
            shown, hidden = 0.02 * chance.standard_normal(), 0.01 * chance.standard_normal()
            seen = usual_loss(mark.at, true_loss(inner, tokens)) * math.exp(shown / SEEN)
            found = correct(law, of(inner, tokens), mark, seen)
            inside, tries = inside + (found.low <= true_loss(inner, tokens, shown + hidden) <= found.high), tries + 1
    assert 0.84 < inside / tries < 0.96


def test_one_run_that_went_wrong_does_not_bend_the_law() -> None:
    runs = made_up(0.005, 3)
    bent = [replace(runs[7], loss=runs[7].loss * 1.4), *runs[:7], *runs[8:]]
    straight, other = (predict_loss(fit(each), of(900_000, 5e6)) for each in (runs, bent))
    assert other.loss == pytest.approx(straight.loss, rel=0.02)


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(UserError, match="too few"):
        fit(made_up(0.01, 5)[: script("law").FEWEST - 1])


def test_a_run_that_is_left_out_is_forecast_from_the_others() -> None:
    leave_out, fewest, runs = script("law").leave_out, script("law").FEWEST, made_up(0.01, 5)
    found = {each.name: each for each in leave_out(runs, [number % 5 for number in range(len(runs))])}
    assert found.keys() == {run.name for run in runs}
    apart = [abs(each.fitted / each.loss - 1) for each in found.values()]
    assert 0 < np.mean(apart) < 0.03
    strange = [replace(runs[0], loss=2 * runs[0].loss), *runs[1:]]  # its own loss is not asked
    assert leave_out(strange, [run is strange[0] for run in strange])[0].fitted == pytest.approx(
        leave_out(runs, [run is runs[0] for run in runs])[0].fitted
    )
    assert leave_out(runs[:fewest], [True] * fewest) == []


def test_the_forecasts_of_a_run_are_compared_with_its_loss(write_run: WriteRun) -> None:
    run = RunFolder(write_run())
    loss = read_json(run.summary, Summary).validation.loss
    forecasts = [
        {
            "made_at": at,
            "tokens": 1e6,
            "loss": loss * by,
            "low": loss * (by - 0.1),
            "high": loss * (by + 0.1),
            "beyond": "",
        }
        for at, by in ((0.0, 1.05), (0.5, 0.8))
    ]
    write_json(run.forecast, {"forecasts": forecasts, "usual": [], "difficulty": -0.75})
    first, second = script("law").check(run)["forecasts"]
    assert (first["share"], first["inside"], first["error"]) == (0.0, True, pytest.approx(0.05, abs=1e-4))
    assert (second["share"], second["inside"], second["error"]) == (0.5, False, pytest.approx(-0.2, abs=1e-4))
