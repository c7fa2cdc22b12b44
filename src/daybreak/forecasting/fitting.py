"""Fit the loss law to recorded runs: coefficients, their covariance, and the usual course of the training loss."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from scipy import optimize

from daybreak.core.errors import UserError
from daybreak.forecasting.law import log_fraction, worth
from daybreak.schemas.forecast import MARKS, Law, LawRun, Residual, UsualLoss

EXPECTED = (math.log(0.15), math.log(0.2), 0.34, math.log(0.3), 0.28, 1.0)
UNSURE = (0.5, 0.7, 0.1, 0.7, 0.1, 1.0)
"""Prior mean and standard deviation of the coefficients: the exponents of Hoffmann et al. (arXiv:2203.15556, eq. 10),
a floor near that of large models, and a million tokens until the loss falls. The prior matters only for what the runs
leave open, such as the gain of much larger models."""
NOISE = 0.02
"""Initial standard deviation of a run's log loss, which weighs the runs against the prior."""
FEWEST = 8
"""Fewest runs for a fit, and for the usual loss at a mark."""


def fit(runs: Sequence[LawRun]) -> Law:
    """Fit the law and the usual course.

    Args:
        runs: at least FEWEST runs that left the unigram plateau.
    """
    if len(runs) < FEWEST:
        raise UserError(f"{len(runs)} runs are too few to fit a law on.", f"Name at least {FEWEST}.")
    z = np.array([math.log(run.loss / run.unigram_loss) for run in runs])
    facts = _facts(runs)
    theta, covariance, spread, freedom = _coefficients(facts, z)
    expected = log_fraction(theta, *facts)
    return Law(
        coefficients=[round(float(value), 6) for value in theta],
        covariance=[[float(f"{value:.4g}") for value in row] for row in covariance],
        spread=round(spread, 6),
        freedom=freedom,
        inner=(min(run.inner for run in runs), max(run.inner for run in runs)),
        tokens=(min(run.tokens for run in runs), max(run.tokens for run in runs)),
        epochs=round(max(run.tokens / run.unique for run in runs), 2),
        usual=_usual(runs, expected, z),
        residuals=[
            Residual(name=run.name, loss=round(run.loss, 4), fitted=round(run.unigram_loss * math.exp(at), 4))
            for run, at in zip(runs, expected)
        ],
    )


def _facts(runs: Sequence[LawRun]) -> np.ndarray:
    """Return N, D and log p of each run [3, R]."""
    return np.array([(run.inner, worth(run.tokens, run.unique), run.compression) for run in runs], dtype=float).T


def _coefficients(facts: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Return the coefficients [6], their covariance, the residual deviation and the degrees of freedom.

    Uses Huber's loss, as in Hoffmann et al. (section 3.3), so that an outlier has little effect.
    """
    start, width = np.array(EXPECTED), np.array(UNSURE)
    noise = NOISE
    for _ in range(20):  # the weight of the runs and their spread depend on each other

        def errors(theta: np.ndarray, noise: float = noise) -> np.ndarray:
            return np.concatenate([(log_fraction(theta, *facts) - z) / noise, (theta - start) / width])

        found = optimize.least_squares(errors, start, loss="huber", f_scale=1.5)
        apart = found.fun[: len(z)] * noise
        # Degrees of freedom that the coefficients take from the runs rather than from the prior.
        curvature = found.jac.T @ found.jac
        taken = float(np.trace(np.linalg.solve(curvature, curvature - np.diag(width**-2.0))))
        freedom = max(1, round(len(z) - taken))
        spread = math.sqrt(float(apart @ apart) / freedom)
        if abs(spread - noise) < 1e-4 * noise:
            break
        noise = max(spread, 1e-4)
    return found.x, np.linalg.inv(curvature), spread, freedom


def _usual(runs: Sequence[LawRun], expected: np.ndarray, z: np.ndarray) -> list[UsualLoss]:
    """Return the usual loss at each mark that enough runs have."""
    found = []
    for place, at in enumerate(MARKS):
        fractions = {
            number: math.log(loss / run.unigram_loss)
            for number, run in enumerate(runs)
            if (loss := run.course[place]) is not None
        }
        if len(fractions) < FEWEST:
            continue
        there, seen = list(fractions), np.array(list(fractions.values()))
        design = np.stack([np.ones(len(there)), expected[there]], axis=1)
        (offset, slope), *_ = np.linalg.lstsq(design, seen, rcond=None)
        above, rest = seen - design @ (offset, slope), z[there] - expected[there]
        # A loss above the usual one at the mark never predicts a lower final loss.
        pull = max(0.0, float(above @ rest) / max(float(above @ above), 1e-12))
        left = rest - pull * above
        numbers = {
            "offset": float(offset),
            "slope": float(slope),
            "spread": math.sqrt(float(above @ above) / (len(there) - 2)),
            "pull": pull,
            "left": math.sqrt(float(left @ left) / (len(there) - 1)),
        }
        found.append(UsualLoss(at=at, **{name: round(value, 6) for name, value in numbers.items()}))
    return found


def leave_out(runs: Sequence[LawRun], groups: Sequence[Hashable]) -> list[Residual]:
    """Forecast each run by a law fitted without its group; groups that leave too few runs are skipped."""
    found = []
    for group in dict.fromkeys(groups):
        known = [run for run, other in zip(runs, groups) if other != group]
        if len(known) < FEWEST:
            continue
        law = fit(known)
        left = [run for run, other in zip(runs, groups) if other == group]
        for run, z in zip(left, log_fraction(np.array(law.coefficients), *_facts(left))):
            found.append(Residual(name=run.name, loss=run.loss, fitted=run.unigram_loss * math.exp(float(z))))
    return found
