"""A law whose truth is known, because it was made up."""

from __future__ import annotations

import math

import numpy as np

from daybreak.forecasting.law import CENTRE, log_fraction
from daybreak.schemas.forecast import Course, Drop, Law, UsualLoss
from daybreak.schemas.run import ValidationRecord

TRUTH = np.array([math.log(0.1), math.log(0.12), 0.4, math.log(0.35), 0.3, 1.2, 0.4])
SIZES = (330_000, 900_000, 2_700_000, 9_000_000)
TOKENS = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)
PLENTY = 10**9
LUCK = 0.02
"""Standard deviation of a run's luck: the log of its loss over that of the law."""
DROP_SPREAD = 0.005
"""Standard deviation of the rest of the way of a held-out loss."""
USUAL = (0.1, 0.05)
"""Offset of the usual training loss without and with copy heads."""
WAY = (0.3, 0.2)
"""How far the log of the held-out loss falls on the whole way, without and with copy heads."""
MARKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def true_loss(
    inner: int, tokens: float, luck: float = 0.0, difficulty: float = CENTRE[2], copy_heads: bool = False
) -> float:
    facts = (np.array([value]) for value in (inner, tokens, difficulty, copy_heads))
    return 7.0 * math.exp(float(log_fraction(TRUTH, *facts)[0]) + luck)


def usual_loss(at: float, loss: float, copy_heads: bool = False) -> float:
    """The training loss at a mark, in nats, of a run that ends with ``loss``."""
    return 7.0 * math.exp(USUAL[copy_heads] + (0.4 + 0.5 * at) * math.log(loss / 7.0))


def true_drop(at: float, tokens: float, copy_heads: bool = False) -> float:
    """How far the log of the held-out loss still falls at a point of a run."""
    return (1.0 - at) * (WAY[copy_heads] - 0.02 * math.log(tokens / CENTRE[1]))


def validation(at: float, tokens: float, loss: float, positions: int = 1000) -> ValidationRecord:
    """An interim validation of a run of ``tokens`` that ends with ``loss``."""
    return ValidationRecord(
        step=round(at * 1000), elapsed=600 * at, progress=at, tokens=round(tokens * at),
        loss=loss * math.exp(true_drop(at, tokens)), accuracy=0.3, positions=positions, distinct=100,
        unigram_loss=7.0, most_frequent_fraction=0.05, final=False, seconds=1.0,
    )  # fmt: skip


def true_course(copy_heads: bool) -> Course:
    return Course(
        usual=[UsualLoss(at=at, offset=USUAL[copy_heads], slope=0.4 + 0.5 * at, spread=LUCK) for at in MARKS],
        drops=[
            Drop(at=at, mean=WAY[copy_heads] * (1 - at), slope=-0.02 * (1 - at), spread=DROP_SPREAD) for at in MARKS[1:]
        ],
        tokens=(TOKENS[0], TOKENS[-1]),
    )


def true_law() -> Law:
    """What a fit to very many runs of these sizes and tokens would find."""
    return Law(
        coefficients=TRUTH.tolist(),
        covariance=[[0.0] * 7] * 7,
        spread=LUCK,
        freedom=1000,
        inner=(SIZES[0], SIZES[-1]),
        tokens=(TOKENS[0], TOKENS[-1]),
        epochs=TOKENS[-1] / PLENTY,
        difficulty=(CENTRE[2] - 0.3, CENTRE[2] + 0.3),
        course=true_course(False),
        copy_heads_course=true_course(True),
        noise=0.6,
    )
