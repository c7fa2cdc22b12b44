"""The law against runs whose truth is known, because the test made it up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from fake_laws import PLENTY, SEEN, SIZES, TRUTH, made_up, true_loss
from hypothesis import given
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.forecasting.fitting import FEWEST, fit, leave_out
from daybreak.forecasting.law import (
    CENTRE,
    REPEATS,
    RunSpec,
    correct,
    course_means,
    log_fraction,
    predict_loss,
    usual,
    worth,
)


def of(inner: int, tokens: float, unique: float = PLENTY, compression: float = CENTRE[2]) -> RunSpec:
    return RunSpec(inner=inner, tokens=tokens, unique=unique, unigram_loss=7.0, compression=compression)


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
        z = math.log(true_loss(inner, tokens) / 7.0)
        seen = 7.0 * math.exp(0.1 + 0.5 * z + luck / SEEN)
        before = predict_loss(law, of(inner, tokens))
        after = correct(law, of(inner, tokens), mark, seen)
        assert after.loss == pytest.approx(true_loss(inner, tokens, luck), rel=0.01)
        assert after.high - after.low < before.high - before.low and after.made_at == 0.2
        band = usual(law, of(inner, tokens), mark)
        assert (band.low < seen < band.high) == (luck == 0.0)


def test_one_run_that_went_wrong_does_not_bend_the_law() -> None:
    runs = made_up(0.005, 3)
    bent = [replace(runs[7], loss=runs[7].loss * 1.4), *runs[:7], *runs[8:]]
    straight, other = (predict_loss(fit(each), of(900_000, 5e6)) for each in (runs, bent))
    assert other.loss == pytest.approx(straight.loss, rel=0.02)


@pytest.mark.parametrize(
    ("inner", "tokens", "unique", "words"),
    [
        (900_000, 1e9, PLENTY, "times the tokens"),
        (90_000_000, 5e6, PLENTY, "times the parameters"),
        (10_000, 5e6, PLENTY, "times fewer parameters"),
        (900_000, 5e6, 1e5, "50 passes"),
    ],
)
def test_what_lies_outside_of_the_runs_is_said(inner: int, tokens: float, unique: float, words: str) -> None:
    law = fit(made_up(0.01, 5))
    assert words in predict_loss(law, of(inner, tokens, unique)).beyond


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(UserError, match="too few"):
        fit(made_up(0.01, 5)[: FEWEST - 1])


def test_a_run_that_is_left_out_is_forecast_from_the_others() -> None:
    runs = made_up(0.01, 5)
    found = {each.name: each for each in leave_out(runs, [number % 5 for number in range(len(runs))])}
    assert found.keys() == {run.name for run in runs}
    apart = [abs(each.fitted / each.loss - 1) for each in found.values()]
    assert 0 < np.mean(apart) < 0.03
    strange = [replace(runs[0], loss=2 * runs[0].loss), *runs[1:]]  # its own loss is not asked
    assert leave_out(strange, [run is strange[0] for run in strange])[0].fitted == pytest.approx(
        leave_out(runs, [run is runs[0] for run in runs])[0].fitted
    )
    assert leave_out(runs[:FEWEST], [True] * FEWEST) == []


def test_means_before_marks() -> None:
    means = course_means([0.02, 0.06, 0.10, 0.11, 0.29], [9.0, 8.0, 6.0, 5.0, 4.0], (0.1, 0.2, 0.3))
    assert means == [7.0, None, 4.0]


@given(st.floats(1e3, 1e12), st.floats(1e3, 1e12))
def test_repeated_text_is_worth_less_but_never_nothing(tokens: float, unique: float) -> None:
    value = worth(tokens, unique)
    assert 0 < value <= tokens * (1 + 1e-12) and value <= unique * (1 + REPEATS) * (1 + 1e-12)
    if tokens > unique * 1.01:
        assert unique < value < tokens and worth(tokens * 1.01, unique) >= value


def test_the_form_is_that_of_hoffmann_and_begins_at_word_frequencies() -> None:
    inner, tokens, compression = 4 * CENTRE[0], 9 * CENTRE[1], CENTRE[2] + 0.1
    lasting = 0.1 + 0.12 / 4**0.4
    share = (lasting + (1 - lasting) * (1 + 9 / 0.35) ** -0.3) ** math.exp(-1.2 * 0.1)
    facts = [np.array([value]) for value in (inner, tokens, compression)]
    assert math.exp(log_fraction(TRUTH, *facts)[0]) == pytest.approx(share)
    assert log_fraction(TRUTH, facts[0], np.zeros(1), facts[2])[0] == 0.0


def test_a_time_on_a_machine_that_may_slow_down_has_a_wider_forecast() -> None:
    law, sure = fit(made_up(0.02, 1)), of(900_000, 5e6)
    unsure = replace(sure, speed_spread=0.1)
    steady, moved = predict_loss(law, sure), predict_loss(law, unsure)
    assert moved.loss == steady.loss and moved.high - moved.low > steady.high - steady.low
    # A law without any other doubt would be off by what a tenth more text changes, in one case of three.
    known = replace(law, spread=0.0, covariance=[[0.0] * 6] * 6, freedom=10**6)
    far = predict_loss(known, unsure)
    more = predict_loss(known, replace(sure, tokens=5e6 * math.exp(0.1))).loss
    assert math.log(far.loss / far.low) / 1.6449 == pytest.approx(math.log(far.loss / more), rel=0.05)
