"""The loss law: forecasts of the final held-out loss of a flagship model, before and during training.

N parameters outside the embedding, D tokens read, U tokens of the text. z is the log of the loss divided by the unigram
baseline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from daybreak.core.files import read_json
from daybreak.schemas.forecast import Course, Forecast, Law, UsualLoss
from daybreak.schemas.run import ValidationRecord

CENTRE = (1e6, 3e6, -0.75)
"""Reference values of N, D and the difficulty, which reduce the correlation of the coefficients."""
REPEATS = 15.39
"""Repetitions after which a token is worth 1/e of a new one (Muennighoff et al., arXiv:2305.16264, eq. 6)."""
MOST_LASTING = 0.99
"""Upper bound of the fraction of the loss that remains with unlimited text."""
COVERAGE = 0.9
SPEED_SPREAD = 0.1
"""Standard deviation of the log speed of a shared machine, relative to its speed before the first step."""
LAW_FILE = Path(__file__).with_name("law.json")
SLACK = 1.05
"""Factor by which a run may exceed the fitted range without a note."""
WINDOW = 0.05
"""Fraction of a run over which its training loss is averaged before a mark."""
FIXED = ("rows", "objective", "schedule", "ramp", "phase2", "finish", "average", "origin")
"""Fields of a recipe that must equal the flagship's."""
FREE = "until"
"""The setting of ``rows`` that may differ: the end of the views, which comes earlier with copy heads."""
STEP_TOKENS = (1_024, 4_096)
"""Fewest and most tokens per step of the fitted runs."""


@cache
def shipped_law() -> Law:
    """Return the law that comes with this version."""
    return read_json(LAW_FILE, Law)


def why_not(recipe: Mapping[str, Any], flagship: Mapping[str, Any]) -> str:
    """Return why the law does not apply to a recipe, or "" if it does.

    Args:
        recipe: plain values of the recipe.
        flagship: plain values of a recipe that the law was fitted on.
    """
    for field in FIXED:
        values = [{key: value for key, value in each[field].items() if key != FREE} for each in (recipe, flagship)]
        if json.dumps(values[0], sort_keys=True) != json.dumps(values[1], sort_keys=True):
            return f"its {field} settings differ from those of daybreak-mini"
    for field in ("model", "optimizer"):
        if recipe[field]["kind"] != flagship[field]["kind"]:
            return f"its {field} has another type than that of daybreak-mini"
    if not STEP_TOKENS[0] <= recipe["batch"] * recipe["length"] <= STEP_TOKENS[1]:
        least, most = STEP_TOKENS
        return f"a step reads {recipe['batch'] * recipe['length']:,} tokens, outside {least:,} to {most:,}"
    return ""


def inner_parameters(parameters: int, vocabulary: int, hidden_size: int) -> int:
    """Return the parameters outside the embedding, which is tied to the decoder."""
    return parameters - vocabulary * hidden_size


def effective_tokens(tokens: float, unique: float) -> float:
    """Return the equivalent number of new tokens for ``tokens`` from ``unique`` tokens (arXiv:2305.16264, eq. 5)."""
    if tokens <= unique:
        return tokens
    return unique + unique * REPEATS * (1.0 - math.exp(-(tokens / unique - 1.0) / REPEATS))


def log_fraction(
    coefficients: np.ndarray, inner: np.ndarray, tokens: np.ndarray, difficulty: np.ndarray, copy_heads: np.ndarray
) -> np.ndarray:
    """Return z [R] for coefficients [7] and N, D, difficulty and whether there are copy heads (0 or 1), each [R].

    It is 0 (the unigram baseline) at zero tokens.
    """
    floor, a, alpha, start, beta, gamma, sooner = coefficients
    lasting = np.minimum(MOST_LASTING, np.exp(floor) + np.exp(a - alpha * np.log(inner / CENTRE[0])))
    unlearned = (1.0 + tokens / (CENTRE[1] * np.exp(start - sooner * copy_heads))) ** -beta
    return np.log(lasting + (1.0 - lasting) * unlearned) * np.exp(-gamma * (difficulty - CENTRE[2]))


def gradient(coefficients: np.ndarray, *facts: np.ndarray) -> np.ndarray:
    """Return the derivatives of ``log_fraction`` by the coefficients [7, R] for the facts of ``log_fraction``."""
    steps = 1e-4 * np.eye(len(coefficients))
    return np.stack(
        [
            (log_fraction(coefficients + step, *facts) - log_fraction(coefficients - step, *facts)) / 2e-4
            for step in steps
        ]
    )


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The properties of a run that the law uses."""

    inner: int
    """Parameters outside the embedding."""
    tokens: float
    """Tokens that the run reads in total."""
    unique: float
    """Tokens of the text."""
    unigram_loss: float
    """Unigram baseline on the held-out text, in nats."""
    difficulty: float
    """See ``forecasting.difficulty``."""
    speed_spread: float = 0.0
    """Standard deviation of the log of the remaining tokens, if the budget is a time."""
    copy_heads: bool = False
    """Whether the model starts with copy heads."""


def predict_loss(law: Law, run: RunSpec, progress: float = 0.0) -> Forecast:
    """Forecast the final loss of a run from its sizes and its text, before it starts or at ``progress``."""
    z, variance, pace = _expected(law, run)
    return _forecast(law, run, progress, z, math.sqrt(variance + pace + law.spread**2))


def course_of(law: Law, run: RunSpec) -> Course:
    """Return how the losses of runs of this kind fall."""
    return law.copy_heads_course if run.copy_heads else law.course


def correct_forecast(law: Law, run: RunSpec, seen: ValidationRecord, positions: int) -> Forecast:
    """Forecast the final loss from the law and from an interim validation, each weighted by its precision.

    Args:
        positions: masked positions of the final validation, which contain those of the interim one.
    """
    if seen.progress < course_of(law, run).drops[0].at:
        return predict_loss(law, run, seen.progress)
    z, variance, pace = _expected(law, run)
    expected = variance + pace + law.spread**2
    drop, spread = expected_drop(law, run, seen.progress)
    measured = spread**2 + law.noise**2 * max(0.0, 1.0 / seen.positions - 1.0 / positions)
    weight = expected / (expected + measured)
    relative = math.log(seen.loss / seen.unigram_loss)
    return _forecast(law, run, seen.progress, z + weight * (relative - drop - z), math.sqrt(weight * measured))


def expected_drop(law: Law, run: RunSpec, progress: float) -> tuple[float, float]:
    """Return by how much the log of the held-out loss still falls after ``progress``, and its standard deviation.

    Both are interpolated between the measured points and the end, where they are 0. A run that is shorter or longer
    than all measured ones falls like the nearest of them; the deviation grows by what the slope would add.
    """
    course = course_of(law, run)
    fewest, most = course.tokens
    nearest = min(max(run.tokens, fewest), most)
    more, outside = math.log(nearest / CENTRE[1]), math.log(run.tokens / nearest)
    at = [drop.at for drop in course.drops] + [1.0]
    means = [drop.mean + drop.slope * more for drop in course.drops] + [0.0]
    spreads = [math.hypot(drop.spread, drop.slope * outside) for drop in course.drops] + [0.0]
    return float(np.interp(progress, at, means)), float(np.interp(progress, at, spreads))


def typical_loss(law: Law, run: RunSpec, mark: UsualLoss) -> Forecast:
    """Return the usual training loss just before ``mark``, with its 90 % band."""
    z, variance, _ = _expected(law, run)
    spread = math.sqrt(variance * mark.slope**2 + mark.spread**2)
    return _forecast(law, run, mark.at, mark.offset + mark.slope * z, spread)


def course_means(progress: Sequence[float], losses: Sequence[float], marks: Sequence[float]) -> list[float | None]:
    """Return the mean of the losses within the WINDOW before each mark; None if there are none."""
    at, values = np.asarray(progress), np.asarray(losses)
    found: list[float | None] = []
    for mark in marks:
        near = values[(at > mark - WINDOW) & (at <= mark)]
        found.append(float(near.mean()) if len(near) else None)
    return found


def _expected(law: Law, run: RunSpec) -> tuple[float, float, float]:
    """Return z, its variance from the coefficients, and its variance from the number of tokens."""
    theta = np.asarray(law.coefficients)

    def facts(more: float = 0.0) -> list[np.ndarray]:
        tokens = effective_tokens(run.tokens * math.exp(more), run.unique)
        return [np.array([value]) for value in (run.inner, tokens, run.difficulty, run.copy_heads)]

    slope = gradient(theta, *facts())[:, 0]
    more, less = (float(log_fraction(theta, *facts(step))[0]) for step in (1e-4, -1e-4))
    pace = (more - less) / 2e-4 * run.speed_spread
    # The covariance is stored with four digits, so a variance near zero can come out negative.
    variance = max(0.0, float(slope @ np.asarray(law.covariance) @ slope))
    return float(log_fraction(theta, *facts())[0]), variance, pace**2


def _forecast(law: Law, run: RunSpec, at: float, z: float, spread: float) -> Forecast:
    reach = float(stats.t.ppf(0.5 + COVERAGE / 2, law.freedom)) * spread
    low, middle, high = (run.unigram_loss * math.exp(z + side) for side in (-reach, 0.0, reach))
    return Forecast(made_at=at, tokens=run.tokens, loss=middle, low=low, high=high, beyond=_beyond(law, run))


def _beyond(law: Law, run: RunSpec) -> str:
    """Describe in what a run lies outside the range of the fitted runs."""
    found = []
    for what, value, (least, most) in (("parameters", run.inner, law.inner), ("tokens", run.tokens, law.tokens)):
        if value > most * SLACK:
            found.append(f"{value / most:.3g} times the {what} of the largest fitted run")
        elif value < least / SLACK:
            found.append(f"{least / value:.3g} times fewer {what} than the smallest fitted run")
    if run.tokens / run.unique > max(1.0, law.epochs) * SLACK:
        passes = run.tokens / run.unique
        found.append(f"{passes:.1f} passes over the text, where fitted runs made at most {law.epochs:.1f}")
    easiest, hardest = law.difficulty
    if run.difficulty > hardest + math.log(SLACK):
        found.append("a text that is less predictable than those of the fitted runs")
    elif run.difficulty < easiest - math.log(SLACK):
        found.append("a text that is more predictable than those of the fitted runs")
    return "; ".join(found)
