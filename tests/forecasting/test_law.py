"""The law: its form, how much repeated text is worth, and what a forecast says of its own doubt."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from fake_laws import PLENTY, TRUTH, true_law
from hypothesis import given
from hypothesis import strategies as st

from daybreak.forecasting.law import (
    CENTRE,
    REPEATS,
    RunSpec,
    course_means,
    effective_tokens,
    log_fraction,
    predict_loss,
)


def of(inner: int, tokens: float, unique: float = PLENTY) -> RunSpec:
    return RunSpec(inner=inner, tokens=tokens, unique=unique, unigram_loss=7.0, difficulty=CENTRE[2])


@pytest.mark.parametrize(
    ("inner", "tokens", "unique", "words"),
    [
        (900_000, 1e9, PLENTY, "times the tokens"),
        (90_000_000, 5e6, PLENTY, "times the parameters"),
        (10_000, 5e6, PLENTY, "times fewer parameters"),
        (900_000, 5e6, 1e5, "50.0 passes"),
    ],
)
def test_what_lies_outside_of_the_runs_is_said(inner: int, tokens: float, unique: float, words: str) -> None:
    assert words in predict_loss(true_law(), of(inner, tokens, unique)).beyond


@pytest.mark.parametrize(("apart", "words"), [(0.4, "less predictable"), (0.3, ""), (-0.4, "more predictable")])
def test_a_text_unlike_all_fitted_ones_is_said(apart: float, words: str) -> None:
    beyond = predict_loss(true_law(), replace(of(900_000, 5e6), difficulty=CENTRE[2] + apart)).beyond
    assert beyond == (f"a text that is {words} than those of the fitted runs" if words else "")


def test_means_before_marks() -> None:
    means = course_means([0.02, 0.06, 0.10, 0.11, 0.29], [9.0, 8.0, 6.0, 5.0, 4.0], (0.1, 0.2, 0.3))
    assert means == [7.0, None, 4.0]


@given(st.floats(1e3, 1e12), st.floats(1e3, 1e12))
def test_repeated_text_is_worth_less_but_never_nothing(tokens: float, unique: float) -> None:
    value = effective_tokens(tokens, unique)
    assert 0 < value <= tokens * (1 + 1e-12) and value <= unique * (1 + REPEATS) * (1 + 1e-12)
    if tokens > unique * 1.01:
        assert unique < value < tokens and effective_tokens(tokens * 1.01, unique) >= value


def test_the_form_is_that_of_hoffmann_and_begins_at_word_frequencies() -> None:
    inner, tokens, difficulty = 4 * CENTRE[0], 9 * CENTRE[1], CENTRE[2] + 0.1
    lasting = 0.1 + 0.12 / 4**0.4
    share = (lasting + (1 - lasting) * (1 + 9 / 0.35) ** -0.3) ** math.exp(-1.2 * 0.1)
    facts = [np.array([value]) for value in (inner, tokens, difficulty, 0)]
    assert math.exp(log_fraction(TRUTH, *facts)[0]) == pytest.approx(share)
    assert log_fraction(TRUTH, facts[0], np.zeros(1), *facts[2:])[0] == 0.0


def test_a_model_with_copy_heads_learns_as_from_more_tokens() -> None:
    tokens, ones = np.array([1e6, 5e6, 1e8]), np.ones(3)
    inner, difficulty = CENTRE[0] * ones, CENTRE[2] * ones
    with_heads = log_fraction(TRUTH, inner, tokens, difficulty, ones)
    assert with_heads == pytest.approx(log_fraction(TRUTH, inner, tokens * math.exp(0.4), difficulty, 0 * ones))


def test_a_time_on_a_machine_that_may_slow_down_has_a_wider_forecast() -> None:
    law, sure = true_law(), of(900_000, 5e6)
    unsure = replace(sure, speed_spread=0.1)
    steady, moved = predict_loss(law, sure), predict_loss(law, unsure)
    assert moved.loss == steady.loss and moved.high - moved.low > steady.high - steady.low
    # A law without any other doubt would be off by what a tenth more text changes, in one case of three.
    known = replace(law, spread=0.0, freedom=10**6)
    far = predict_loss(known, unsure)
    more = predict_loss(known, replace(sure, tokens=5e6 * math.exp(0.1))).loss
    assert math.log(far.loss / far.low) / 1.6449 == pytest.approx(math.log(far.loss / more), rel=0.05)
