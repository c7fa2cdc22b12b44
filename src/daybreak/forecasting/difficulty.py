"""The difficulty of a text: the loss of a bigram model relative to the unigram baseline.

The unigram baseline alone does not predict the loss: texts of equal size differ by a tenth (docs/log.md).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

TRAIN_TOKENS, HELDOUT_TOKENS, BLOCK = 2_000_000, 200_000, 5_000
"""Training tokens for the bigram counts, held-out tokens for the loss, and tokens per block; the blocks are spread over
the text so that all its sources contribute."""
DISCOUNT = 0.75
"""Absolute discount of each bigram count (Ney, Essen and Kneser 1994)."""


class Stream(Protocol):
    def __len__(self) -> int:
        """Tokens."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from ``start`` to ``stop``."""


def pairs_log_fraction(train: Stream, heldout: Stream, counts: np.ndarray) -> float:
    """Return the log of the held-out loss of a bigram model divided by the unigram baseline.

    Args:
        counts: count of each token in the whole training text [V].
    """
    vocabulary = len(counts)
    frequency = np.asarray(counts, dtype=np.float64) + 1.0
    frequency /= frequency.sum()
    before, after = _pairs(train, TRAIN_TOKENS)
    pairs, seen = np.unique(before * vocabulary + after, return_counts=True)
    total = np.bincount(before, minlength=vocabulary)
    kinds = np.bincount(pairs // vocabulary, minlength=vocabulary)
    context, answer = _pairs(heldout, HELDOUT_TOKENS)
    wanted = context * vocabulary + answer
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    count = np.where(pairs[place] == wanted, seen[place], 0)
    known = np.maximum(total[context], 1)
    rest = np.where(total[context] > 0, DISCOUNT * kinds[context] / known, 1.0)
    probability = np.maximum(count - DISCOUNT, 0.0) / known + rest * frequency[answer]
    return float(np.log(-np.log(probability).mean() / -np.log(frequency[answer]).mean()))


def _pairs(stream: Stream, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbouring tokens (first, second) from evenly spread blocks, about ``tokens`` in total, as int64."""
    blocks = max(1, min(tokens, len(stream)) // BLOCK)
    starts = np.linspace(0, max(0, len(stream) - BLOCK), blocks).astype(np.int64)
    parts = [stream.read(int(start), min(int(start) + BLOCK, len(stream))).astype(np.int64) for start in starts]
    return np.concatenate([part[:-1] for part in parts]), np.concatenate([part[1:] for part in parts])
