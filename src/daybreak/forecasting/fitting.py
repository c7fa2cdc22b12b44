"""The fit of the law: recorded runs -> coefficients, how sure they are, and what is usual on the way."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from scipy import optimize

from daybreak.core.errors import UserError
from daybreak.forecasting.law import log_fraction, worth
from daybreak.schemas.forecast import MARKS, Law, LawRun, Residual, UsualLoss

EXPECTED = (math.log(0.1), math.log(0.1), 0.34, math.log(0.3), 0.28, 5.0, 0.0, 0.0)
UNSURE = (0.7, 0.7, 0.1, 0.7, 0.1, 5.0, 0.7, 0.1)
"""Where the coefficients and ``Law.others`` are looked for, and how far from there (one deviation): the exponents of
Hoffmann et al. (arXiv 2203.15556, eq. 10), shares of the order of a tenth, and a million tokens until the loss falls.
It binds only what the runs leave open, such as how much a much larger model would gain."""
DIFFERENT = (1, 4)
"""Places of log A and beta among the coefficients: what ``Law.others`` is added to."""
OPTIMIZER = "Muon"
"""The flagship's: what is usual on the way is known from its runs alone."""
NOISE = 0.02
"""Deviation of a run's logarithm that the fit begins with: it weighs the runs against EXPECTED."""
FEWEST = 8
"""Runs below which nothing is fitted, and runs below which a mark has no usual loss."""


def fit(runs: Sequence[LawRun]) -> Law:
    """Fit the law and the usual course.

    Args:
        runs: at least FEWEST that left the unigram plateau.

    Raises:
        UserError: there are fewer.
    """
    if len(runs) < FEWEST:
        raise UserError(f"{len(runs)} runs are too few to fit a law on.", f"Name at least {FEWEST}.")
    z = np.array([math.log(run.loss / run.unigram_loss) for run in runs])
    facts = _facts(runs)
    theta, covariance, spread, freedom = _coefficients(facts, z)
    expected = _expected(theta, facts)
    now = facts[-1] == 0
    return Law(
        coefficients=[round(float(value), 6) for value in theta[:-2]],
        covariance=[[float(f"{value:.4g}") for value in row[:-2]] for row in covariance[:-2]],
        others=[round(float(value), 6) for value in theta[-2:]],
        spread=round(spread, 6),
        freedom=freedom,
        inner=(min(run.inner for run in runs), max(run.inner for run in runs)),
        tokens=(min(run.tokens for run in runs), max(run.tokens for run in runs)),
        epochs=round(max(run.tokens / run.unique for run in runs), 2),
        usual=_usual([run for run, is_now in zip(runs, now) if is_now], expected[now], z[now]),
        residuals=[
            Residual(name=run.name, loss=round(run.loss, 4), fitted=round(run.unigram_loss * math.exp(at), 4))
            for run, at in zip(runs, expected)
        ],
    )


def _facts(runs: Sequence[LawRun]) -> np.ndarray:
    """N, D, log p and whether the optimizer is another one, of each run, [4, R]."""
    return np.array(
        [(run.inner, worth(run.tokens, run.unique), run.pairs, run.optimizer != OPTIMIZER) for run in runs], dtype=float
    ).T


def _expected(theta: np.ndarray, facts: np.ndarray) -> np.ndarray:
    """z of each run [R], for coefficients and ``Law.others`` [8], and ``_facts``."""
    *known, of_others = facts
    coefficients = np.repeat(theta[:-2, None], len(of_others), axis=1)
    for place, higher in zip(DIFFERENT, theta[-2:]):
        coefficients[place] += higher * of_others
    return log_fraction(coefficients, *known)


def _coefficients(facts: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Coefficients and ``Law.others`` [8], their covariance, the deviation of a run, and its degrees of freedom.

    Huber's loss, as in Hoffmann et al. (section 3.3): one run that went wrong does not bend the law.
    """
    start, width = np.array(EXPECTED), np.array(UNSURE)
    noise = NOISE
    for _ in range(20):  # the weight of the runs and their spread find each other

        def errors(theta: np.ndarray, noise: float = noise) -> np.ndarray:
            return np.concatenate([(_expected(theta, facts) - z) / noise, (theta - start) / width])

        found = optimize.least_squares(errors, start, loss="huber", f_scale=1.5)
        apart = found.fun[: len(z)] * noise
        # Each coefficient takes from the runs what EXPECTED did not give.
        curvature = found.jac.T @ found.jac
        taken = float(np.trace(np.linalg.solve(curvature, curvature - np.diag(width**-2.0))))
        freedom = max(1, round(len(z) - taken))
        spread = math.sqrt(float(apart @ apart) / freedom)
        if abs(spread - noise) < 1e-4 * noise:
            break
        noise = max(spread, 1e-4)
    return found.x, np.linalg.inv(curvature), spread, freedom


def _usual(runs: Sequence[LawRun], expected: np.ndarray, z: np.ndarray) -> list[UsualLoss]:
    """What is usual at each mark that enough runs have."""
    found = []
    for place, at in enumerate(MARKS):
        shares = {
            number: math.log(loss / run.unigram_loss)
            for number, run in enumerate(runs)
            if (loss := run.course[place]) is not None
        }
        if len(shares) < FEWEST:
            continue
        there, seen = list(shares), np.array(list(shares.values()))
        design = np.stack([np.ones(len(there)), expected[there]], axis=1)
        (offset, slope), *_ = np.linalg.lstsq(design, seen, rcond=None)
        above, rest = seen - design @ (offset, slope), z[there] - expected[there]
        # What lies above the usual at the mark says something of the end, or nothing: never the contrary.
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
    """Each run as forecast by a law that knows no run of its group; runs of groups that leave too few are left out."""
    found = []
    for group in dict.fromkeys(groups):
        known = [run for run, other in zip(runs, groups) if other != group]
        if len(known) < FEWEST:
            continue
        law = fit(known)
        left = [run for run, other in zip(runs, groups) if other == group]
        for run, z in zip(left, _expected(np.array([*law.coefficients, *law.others]), _facts(left))):
            found.append(Residual(name=run.name, loss=run.loss, fitted=run.unigram_loss * math.exp(float(z))))
    return found
