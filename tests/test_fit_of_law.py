"""The fit of benchmarks/law.py on runs whose truth is known, because the test made it up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import beside, script
from fake_laws import (
    DROP_SPREAD,
    MARKS,
    PLENTY,
    SIZES,
    TOKENS,
    true_drop,
    true_law,
    true_loss,
    usual_loss,
    validation,
)
from fake_runs import WriteRun, write_run

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.forecasting.law import CENTRE, RunSpec, correct_forecast, expected_drop, predict_loss, typical_loss
from daybreak.schemas.forecast import Forecast, ForecastLog, Law
from daybreak.schemas.run import Summary

__all__ = ["beside", "write_run"]  # fixtures


def made_up(noise: float, seed: int) -> list[Any]:
    """Runs of all sizes and tokens, whose log losses differ from the truth by ``noise``."""
    chance = np.random.default_rng(seed)
    found = []
    for inner in SIZES:
        for tokens in TOKENS:
            luck, difficulty = noise * chance.standard_normal(), float(chance.uniform(-1.05, -0.65))
            copy_heads = len(found) % 2 == 1
            expected = true_loss(inner, tokens, 0.0, difficulty, copy_heads)
            found.append(
                script("law").LawRun(
                    name=f"{inner}-{tokens}", inner=inner, tokens=tokens, unique=PLENTY,
                    unigram_loss=7.0, compression=difficulty, bigram=0.0,
                    loss=true_loss(inner, tokens, luck, difficulty, copy_heads), copy_heads=copy_heads,
                    course=[usual_loss(at, expected, copy_heads) * math.exp(luck) for at in MARKS],
                )
            )  # fmt: skip
    return found


def courses(seed: int, texts: int = 3, many: int = 60) -> list[Any]:
    """Held-out losses of runs of many lengths, whose rest of the way differs by DROP_SPREAD from that of the truth."""
    chance, at = np.random.default_rng(1000 + seed), [0.15, *(0.1 * tenth for tenth in range(2, 10)), 1.0]
    found = []
    for number in range(many):
        tokens, final = int(chance.uniform(1e6, 1.6e7)), float(chance.uniform(-0.8, -0.4))
        part, copy_heads = 900 if number % 2 else 1000, number % 4 > 1
        sampling = 0.6 * math.sqrt(1 / part - 1 / 1000) * chance.standard_normal()
        luck = DROP_SPREAD * chance.standard_normal(len(at) - 1) + sampling
        losses = [final + true_drop(each, tokens, copy_heads) + apart for each, apart in zip(at, luck)]
        found.append(
            script("law").HeldoutCourse(
                text=number % texts, copy_heads=copy_heads, tokens=tokens, progress=at, losses=[*losses, final],
                positions=(part, 1000), final_on_interim=final + sampling,
            )
        )  # fmt: skip
    return found


def fit(runs: list[Any]) -> Law:
    return script("law").fit(runs, courses(0))


def of(inner: int, tokens: float, copy_heads: bool = False) -> RunSpec:
    return RunSpec(
        inner=inner, tokens=tokens, unique=PLENTY, unigram_loss=7.0, difficulty=CENTRE[2], copy_heads=copy_heads
    )


def test_a_law_without_noise_is_found_again() -> None:
    law = fit(made_up(0.0, 0))
    for inner in (500_000, 5_000_000):
        for tokens in (1.5e6, 1.2e7):
            for copy_heads in (False, True):
                seen = predict_loss(law, of(inner, tokens, copy_heads))
                truth = true_loss(inner, tokens, copy_heads=copy_heads)
                assert seen.loss == pytest.approx(truth, rel=2e-3) and not seen.beyond


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
    law, (inner, tokens) = fit(made_up(0.02, 1)), (SIZES[1], 6e6)
    mark = law.course.usual[1]
    assert mark.at == 0.2
    for luck in (-0.08, 0.0, 0.08):
        before = predict_loss(law, of(inner, tokens))
        after = correct_forecast(law, of(inner, tokens), validation(0.6, tokens, true_loss(inner, tokens, luck)), 1000)
        assert after.loss == pytest.approx(true_loss(inner, tokens, luck), rel=0.01)
        assert after.high - after.low < before.high - before.low and after.made_at == 0.6
        band = typical_loss(law, of(inner, tokens), mark)
        seen = usual_loss(mark.at, true_loss(inner, tokens)) * math.exp(luck)
        assert (band.low < seen < band.high) == (luck == 0.0)


def test_the_rest_of_the_way_is_found_again() -> None:
    law = script("law").fit(made_up(0.02, 0), courses(3))
    for copy_heads, course in ((False, law.course), (True, law.copy_heads_course)):
        for drop in course.drops:
            for tokens in (2e6, 1.2e7):
                assert expected_drop(law, of(SIZES[0], tokens, copy_heads), drop.at)[0] == pytest.approx(
                    true_drop(drop.at, tokens, copy_heads), abs=DROP_SPREAD
                )
            assert 0.5 * DROP_SPREAD < drop.spread < 2.5 * DROP_SPREAD
    assert law.noise == pytest.approx(0.6, rel=0.4)
    spread = [expected_drop(law, of(SIZES[0], tokens), 0.5)[1] for tokens in (4e6, 4e8)]
    assert spread[1] > spread[0], "far longer runs than measured ones are less certain"


@pytest.mark.parametrize(("tokens", "nearest"), [(4e8, 16e6), (1e5, 1e6)])
def test_a_run_beyond_all_measured_ones_falls_like_the_nearest_and_less_certainly(
    tokens: float, nearest: float
) -> None:
    law = true_law()
    drop = next(drop for drop in law.course.drops if drop.at == 0.5)
    assert law.course.tokens == (1e6, 16e6)
    mean, spread = expected_drop(law, of(SIZES[0], tokens), 0.5)
    known, usual = expected_drop(law, of(SIZES[0], nearest), 0.5)
    assert mean == pytest.approx(known)
    assert spread == pytest.approx(math.hypot(usual, drop.slope * math.log(tokens / nearest)))


def test_too_few_runs_with_copy_heads_fall_as_all_runs_do() -> None:
    fewest = script("law").FEWEST
    few = [run for run in made_up(0.02, 0) if not run.copy_heads] + [run for run in made_up(0.02, 0) if run.copy_heads][
        1:fewest
    ]
    some = [course for course in courses(0) if not course.copy_heads]
    law = script("law").fit(few, some)
    assert law.copy_heads_course.drops == law.course.drops and law.copy_heads_course.usual != law.course.usual


@pytest.mark.parametrize("more", [-1, 0])
def test_few_courses_with_copy_heads_are_measured_with_all_others(more: int) -> None:
    law = script("law")
    with_heads = [course for course in courses(0) if course.copy_heads][: law.FEWEST_COURSES + more]
    found = [course for course in courses(0) if not course.copy_heads] + with_heads
    together = law.drops_of(found, law.noise_of(found))
    assert (law.fit(made_up(0.02, 0), found).copy_heads_course.drops == together) == (more < 0)


def test_nine_of_ten_losses_fall_into_the_interval_during_a_run() -> None:
    inside = tries = 0
    for seed in range(12):
        chance = np.random.default_rng(200 + seed)
        law = script("law").fit(made_up(0.02, seed), courses(seed))
        for _ in range(25):
            inner, tokens = int(chance.choice(SIZES)), float(chance.uniform(1e6, 1.6e7))
            at, loss = float(chance.uniform(0.25, 0.9)), true_loss(inner, tokens, 0.02 * chance.standard_normal())
            on_half = DROP_SPREAD * chance.standard_normal() + 0.6 * math.sqrt(1 / 500 - 1 / 1000) * chance.normal()
            seen = replace(validation(at, tokens, loss * math.exp(on_half)), positions=500)
            found = correct_forecast(law, of(inner, tokens), seen, 1000)
            inside, tries = inside + (found.low <= loss <= found.high), tries + 1
    assert 0.84 < inside / tries < 0.97


def test_a_text_that_the_law_does_not_know_widens_its_interval() -> None:
    """Runs on one text lie together above or below the law; only runs on other texts show that."""
    one_text = made_up(0.002, 2)
    shifts = (-0.06, 0.0, 0.06, 0.03, -0.03)
    texts = [
        replace(run, text=str(place), loss=run.loss * math.exp(shifts[place]))
        for number, run in enumerate(one_text)
        for place in [number % len(shifts)]
    ]
    assert fit(one_text).spread < 0.004
    assert 0.03 < fit(texts).spread < 0.08


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


def test_the_forecasts_of_a_finished_run_are_made_again(write_run: WriteRun) -> None:
    run, law = RunFolder(write_run()), true_law()
    summary = replace(read_json(run.summary, Summary), budget="1000steps")
    write_json(run.summary, summary)
    first = Forecast(made_at=0.0, tokens=2e6, loss=4.0, low=3.8, high=4.2)
    write_json(run.forecast, ForecastLog(forecasts=[first], usual=[], difficulty=CENTRE[2]))
    found = script("law").check(run, law)
    loss, validation = summary.validation.loss, summary.validation
    interim = [line["progress"] for line in read_json_lines(run.metrics) if line["type"] == "validation"][:-1]
    assert [each["share"] for each in found["forecasts"]] == pytest.approx(
        [0.0, 0.1, *(at for at in interim if at > 0.1)]
    )
    about = RunSpec(
        inner=summary.parameters - 8192 * 128, tokens=2e6, unique=3_412_000,
        unigram_loss=validation.unigram_loss, difficulty=CENTRE[2],
    )  # fmt: skip
    start = found["forecasts"][0]
    assert start["loss"] == pytest.approx(predict_loss(law, about).loss, abs=1e-4)
    for each in found["forecasts"]:
        assert each["error"] == pytest.approx(each["loss"] / loss - 1, abs=2e-4)
        assert each["inside"] == (each["low"] <= loss <= each["high"])
