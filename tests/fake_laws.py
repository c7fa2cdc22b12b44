"""Runs whose law is known, because it was made up."""

from __future__ import annotations

import math

import numpy as np

from daybreak.forecasting.law import CENTRE, log_fraction
from daybreak.schemas.forecast import MARKS, LawRun

TRUTH = np.array([math.log(0.1), math.log(0.12), 0.4, math.log(0.35), 0.3, 1.2])
SIZES = (330_000, 900_000, 2_700_000, 9_000_000)
TOKENS = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)
PLENTY = 10**9
SEEN = 0.4
"""What of a run's luck shows in its course."""


def true_loss(inner: int, tokens: float, luck: float = 0.0, compression: float = CENTRE[2]) -> float:
    facts = (np.array([value]) for value in (inner, tokens, compression))
    return 7.0 * math.exp(float(log_fraction(TRUTH, *facts)[0]) + luck)


def made_up(noise: float, seed: int) -> list[LawRun]:
    chance = np.random.default_rng(seed)
    found = []
    for inner in SIZES:
        for tokens in TOKENS:
            luck, compression = noise * chance.standard_normal(), float(chance.uniform(-0.3, -0.05))
            z = math.log(true_loss(inner, tokens, 0.0, compression) / 7.0)
            course = [7.0 * math.exp(0.1 + (0.4 + 0.5 * at) * z + luck / SEEN) for at in MARKS]
            found.append(
                LawRun(
                    name=f"{inner}-{tokens}", inner=inner, tokens=tokens, unique=PLENTY,
                    unigram_loss=7.0, compression=compression,
                    loss=true_loss(inner, tokens, luck, compression), course=list(course),
                )
            )  # fmt: skip
    return found
