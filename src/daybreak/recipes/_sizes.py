"""What ``--size`` does to a recipe of the literature: the shape, and what has to go with it.

The papers' recipes are for a base model, hundreds to thousands of rows a step and a day or more. Below that size the
batch shrinks by a fixed factor, so that a short run still has a thousand steps, and, unless --faithful, the peak rate
grows and the initial weights widen as the hidden size shrinks: at the papers' values a narrow model stays at the
unigram entropy for its whole budget (docs/log.md).
"""

from __future__ import annotations

import math

BASE_WIDTH = 768
VOCABULARY = {"tiny": 8_192, "mini": 8_192, "small": 16_384}
"""Of a smaller size; base and large have the paper's."""
BATCH_DIVISOR = {"tiny": 512, "mini": 512, "small": 64, "base": 1, "large": 1}
SMALLEST_BATCH = 16


def vocabulary(size: str, paper: int) -> int:
    return VOCABULARY.get(size, paper)


def batch(size: str, paper: int) -> int:
    """Rows of a step: the paper's, or a fixed part of them below base."""
    return max(min(SMALLEST_BATCH, paper), paper // BATCH_DIVISOR[size])


def rate(paper: float, hidden_size: int, faithful: bool) -> float:
    """Peak learning rate: in inverse proportion to the square root of the hidden_size below base."""
    return (
        paper if faithful or hidden_size >= BASE_WIDTH else float(f"{paper * math.sqrt(BASE_WIDTH / hidden_size):.2g}")
    )


def init_std(hidden_size: int, faithful: bool) -> float:
    """Deviation of the initial weights: 0.02 from base on, one over the square root of the hidden_size below."""
    return 0.02 if faithful or hidden_size >= BASE_WIDTH else round(1 / math.sqrt(hidden_size), 4)
