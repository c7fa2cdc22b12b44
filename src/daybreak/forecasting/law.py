"""The law: what the held-out loss of a flagship will be, before it is trained and while it is.

N parameters outside of the embedding, D tokens read, U tokens of the text. The share is a loss over that of word
frequencies alone, z its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from daybreak.core.files import read_json
from daybreak.schemas.forecast import Forecast, Law, UsualLoss

CENTRE = (1e6, 3e6, -0.25)
"""N, D and log p from which all are counted, so that coefficients are not tied to each other more than need be."""
REPEATS = 15.39
"""Readings after which a repeated token is worth 1/e of a new one (Muennighoff et al., arXiv 2305.16264, eq. 6)."""
MOST_LASTING = 0.99
"""Of the share, what text does not take away; it is less than all."""
COVERAGE = 0.9
SPEED_SPREAD = 0.1
"""How far a machine's speed strays from what it was before the first step: one deviation of its logarithm, as seen on
processors that others share (records: forecasts)."""
LAW_FILE = Path(__file__).with_name("law.json")
SLACK = 1.05
"""What may lie outside of the measured range by so little that nobody need be told."""
WINDOW = 0.05
"""Share of a run over which its training loss is averaged before a mark."""


@cache
def shipped_law() -> Law:
    """The law that comes with this version."""
    return read_json(LAW_FILE, Law)


def worth(tokens: float, unique: float) -> float:
    """Tokens of new text that ``tokens`` from a text of ``unique`` tokens are worth (arXiv 2305.16264, eq. 5)."""
    if tokens <= unique:
        return tokens
    return unique + unique * REPEATS * (1.0 - math.exp(-(tokens / unique - 1.0) / REPEATS))


def log_fraction(coefficients: np.ndarray, inner: np.ndarray, tokens: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """z for coefficients [6] or [6, R] and N, D and log p, each [R]; 0 at no tokens: word frequencies come first."""
    floor, a, alpha, start, beta, gamma = coefficients
    lasting = np.minimum(MOST_LASTING, np.exp(floor) + np.exp(a - alpha * np.log(inner / CENTRE[0])))
    told = (1.0 + tokens / (CENTRE[1] * np.exp(start))) ** -beta
    return np.log(lasting + (1.0 - lasting) * told) * np.exp(-gamma * (pairs - CENTRE[2]))


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a run is, as far as the law asks."""

    inner: int
    """Parameters outside of the embedding."""
    tokens: float
    """That it will have read."""
    unique: float
    """Tokens of its text."""
    unigram_loss: float
    """Of word frequencies alone on its held-out text, nats."""
    pairs: float
    """How foretellable its text is, see ``difficulty``."""
    speed_spread: float = 0.0
    """Deviation of the logarithm of the tokens that are still to be read, where time decides them."""


def predict_loss(law: Law, run: RunSpec) -> Forecast:
    """The loss at the end of a run, before it begins."""
    z, variance, pace = _expected(law, run)
    return _forecast(law, run, 0.0, z, math.sqrt(variance + pace + law.spread**2))


def correct(law: Law, run: RunSpec, mark: UsualLoss, seen: float) -> Forecast:
    """The loss at the end of a run whose training loss just before ``mark`` was ``seen``, in nats."""
    z, variance, pace = _expected(law, run)
    above = math.log(seen / run.unigram_loss) - (mark.offset + mark.slope * z)
    # What the law is unsure of shows in the course, too: only what the pull does not explain stays.
    kept = variance * (1.0 - min(1.0, max(0.0, mark.pull * mark.slope))) ** 2
    return _forecast(law, run, mark.at, z + mark.pull * above, math.sqrt(kept + pace + mark.left**2))


def usual(law: Law, run: RunSpec, mark: UsualLoss) -> Forecast:
    """The training loss that is usual just before ``mark``, with its 90 % band."""
    z, variance, _ = _expected(law, run)
    spread = math.sqrt(variance * mark.slope**2 + mark.spread**2)
    return _forecast(law, run, mark.at, mark.offset + mark.slope * z, spread)


def course_means(progress: Sequence[float], losses: Sequence[float], marks: Sequence[float]) -> list[float | None]:
    """Mean of the losses within the WINDOW of a run before each mark; None where there are none."""
    at, values = np.asarray(progress), np.asarray(losses)
    found: list[float | None] = []
    for mark in marks:
        near = values[(at > mark - WINDOW) & (at <= mark)]
        found.append(float(near.mean()) if len(near) else None)
    return found


def _expected(law: Law, run: RunSpec) -> tuple[float, float, float]:
    """z, and the variance that it has because the coefficients are known only so well, and the tokens."""
    theta = np.asarray(law.coefficients)

    def at(coefficients: np.ndarray, more: float = 0.0) -> float:
        tokens = worth(run.tokens * math.exp(more), run.unique)
        return float(log_fraction(coefficients, *(np.array([value]) for value in (run.inner, tokens, run.pairs)))[0])

    slope = np.array([(at(theta + step) - at(theta - step)) / 2e-4 for step in 1e-4 * np.eye(len(theta))])
    pace = (at(theta, 1e-4) - at(theta, -1e-4)) / 2e-4 * run.speed_spread
    return at(theta), float(slope @ np.asarray(law.covariance) @ slope), pace**2


def _forecast(law: Law, run: RunSpec, at: float, z: float, spread: float) -> Forecast:
    reach = float(stats.t.ppf(0.5 + COVERAGE / 2, law.freedom)) * spread
    low, middle, high = (run.unigram_loss * math.exp(z + side) for side in (-reach, 0.0, reach))
    return Forecast(made_at=at, tokens=run.tokens, loss=middle, low=low, high=high, beyond=_beyond(law, run))


def _beyond(law: Law, run: RunSpec) -> str:
    """What of a run lies outside of the law's range."""
    found = []
    for what, value, (least, most) in (("parameters", run.inner, law.inner), ("tokens", run.tokens, law.tokens)):
        if value > most * SLACK:
            found.append(f"{value / most:.3g} times the {what} of the largest fitted run")
        elif value < least / SLACK:
            found.append(f"{least / value:.3g} times fewer {what} than the smallest fitted run")
    if run.tokens / run.unique > max(1.0, law.epochs) * SLACK:
        passes = run.tokens / run.unique
        found.append(f"{passes:.0f} passes over the text, where fitted runs made at most {law.epochs:.1f}")
    return "; ".join(found)
