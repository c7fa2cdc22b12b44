"""The difficulty of a text: how far a compressor that has read the training text compresses the held-out text.

The unigram baseline alone does not predict the loss of a model. The compressed size also reflects what repeats:
phrases, templates, and words within a document (docs/log.md compares measures).
"""

from __future__ import annotations

import lzma
import math
from typing import Protocol

import numpy as np

TRAIN_TOKENS, HELDOUT_TOKENS, BLOCK = 1_000_000, 100_000, 5_000
"""Training and held-out tokens that are compressed, and tokens per block; the blocks are spread over the text so that
all its sources contribute."""
LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 24}]
"""The fastest match finder, with a dictionary that holds all training tokens."""


class Stream(Protocol):
    def __len__(self) -> int:
        """Tokens."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from ``start`` to ``stop``."""


def compression(train: Stream, heldout: Stream, counts: np.ndarray) -> float:
    """Return the log of the compressed size of held-out tokens divided by the unigram baseline, both in nats a token.

    Args:
        counts: count of each token in the whole training text [V].
    """
    ids = np.uint16 if len(counts) <= 1 << 16 else np.uint32
    known, new = _sample(train, TRAIN_TOKENS).astype(ids), _sample(heldout, HELDOUT_TOKENS).astype(ids)
    size = _compressed(np.concatenate([known, new])) - _compressed(known)
    frequency = np.asarray(counts, dtype=np.float64) + 1.0
    unigram = -np.log(frequency / frequency.sum())[new].sum()
    return math.log(max(1, size) * 8 * math.log(2) / unigram)


def _sample(stream: Stream, tokens: int) -> np.ndarray:
    """Return about ``tokens`` tokens in evenly spread blocks."""
    blocks = max(1, min(tokens, len(stream)) // BLOCK)
    starts = np.linspace(0, max(0, len(stream) - BLOCK), blocks).astype(np.int64)
    return np.concatenate([stream.read(int(start), min(int(start) + BLOCK, len(stream))) for start in starts])


def _compressed(ids: np.ndarray) -> int:
    """Return the bytes of the compressed ids."""
    return len(lzma.compress(ids.tobytes(), format=lzma.FORMAT_RAW, filters=LZMA))
