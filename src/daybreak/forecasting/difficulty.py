"""How much of a text can be forecast from one word to the next: what tells an easy text from a hard one.

Frequencies alone do not: beside them, texts of one size and model differ by a tenth of the loss (docs/log.md).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

LEARNED, JUDGED, BLOCK = 2_000_000, 200_000, 5_000
"""Tokens that pairs are counted on, and judged on, and tokens of each of the blocks that they are taken in, so that
all sources of a text have their share."""
DISCOUNT = 0.75
"""Taken from each count of a pair and given to the frequencies (Ney, Essen and Kneser 1994)."""


class Stream(Protocol):
    def __len__(self) -> int:
        """Tokens."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from ``start`` to ``stop``."""


def pairs_log_fraction(train: Stream, heldout: Stream, counts: np.ndarray) -> float:
    """Logarithm of the loss of a model of pairs (bigrams), over that of frequencies alone, on held-out text.

    Args:
        counts: of each piece in the whole training text [V].
    """
    vocabulary = len(counts)
    frequency = np.asarray(counts, dtype=np.float64) + 1.0
    frequency /= frequency.sum()
    before, after = _pairs(train, LEARNED)
    pairs, seen = np.unique(before * vocabulary + after, return_counts=True)
    total = np.bincount(before, minlength=vocabulary)
    kinds = np.bincount(pairs // vocabulary, minlength=vocabulary)
    asked, answer = _pairs(heldout, JUDGED)
    wanted = asked * vocabulary + answer
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    count = np.where(pairs[place] == wanted, seen[place], 0)
    known = np.maximum(total[asked], 1)
    rest = np.where(total[asked] > 0, DISCOUNT * kinds[asked] / known, 1.0)
    chance = np.maximum(count - DISCOUNT, 0.0) / known + rest * frequency[answer]
    return float(np.log(-np.log(chance).mean() / -np.log(frequency[answer]).mean()))


def _pairs(stream: Stream, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours (first, second) from evenly spread blocks of about ``tokens`` tokens in all, as int64."""
    blocks = max(1, min(tokens, len(stream)) // BLOCK)
    starts = np.linspace(0, max(0, len(stream) - BLOCK), blocks).astype(np.int64)
    parts = [stream.read(int(start), min(int(start) + BLOCK, len(stream))).astype(np.int64) for start in starts]
    return np.concatenate([part[:-1] for part in parts]), np.concatenate([part[1:] for part in parts])
