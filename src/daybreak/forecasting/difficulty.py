"""The difficulty of a text: how well two simple models that have read the training text predict the held-out text.

The unigram baseline alone does not predict the loss of an encoder. A compressor finds what repeats: phrases, templates
and words within a document. A bigram model finds how far a word determines the next one. Neither alone puts texts in
order (docs/log.md compares measures).
"""

from __future__ import annotations

import lzma
import math
from typing import Protocol

import numpy as np

TRAIN_TOKENS, HELDOUT_TOKENS, BLOCK = 1_000_000, 100_000, 5_000
"""Training and held-out tokens that are read, and tokens per block; the blocks are spread over the text so that all its
sources contribute."""
LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 24}]
"""The fastest match finder, with a dictionary that holds all training tokens."""
BIGRAM_WEIGHT = 3.0
"""Weight of the bigram model's logarithm beside the compressor's. Weights of 2 to 6 forecast the runs on a text that is
left out of the fit equally well; larger ones forecast other sizes worse (docs/log.md)."""


class Stream(Protocol):
    def __len__(self) -> int:
        """Tokens."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from ``start`` to ``stop``."""


def difficulty(train: Stream, heldout: Stream, counts: np.ndarray) -> float:
    """Return the difficulty of a text; 0 if each token is independent of the others, lower for an easier text.

    It is the sum of two logarithms. Each compares the loss of a model on held-out tokens with the unigram baseline,
    both in nats per token: ``compression`` + BIGRAM_WEIGHT * ``bigram``.

    Args:
        counts: count of each token in the whole training text [V].
    """
    compressor, pairs = measures(train, heldout, counts)
    return compressor + BIGRAM_WEIGHT * pairs


def measures(train: Stream, heldout: Stream, counts: np.ndarray) -> tuple[float, float]:
    """Return ``compression`` and ``bigram`` of a text; arguments as for ``difficulty``."""
    known, new = _sample(train, TRAIN_TOKENS), _sample(heldout, HELDOUT_TOKENS)
    frequency = np.asarray(counts, dtype=np.float64) + 1.0
    unigram = frequency / frequency.sum()
    return compression(known, new, unigram), bigram(known, new, unigram)


def compression(known: np.ndarray, new: np.ndarray, unigram: np.ndarray) -> float:
    """Return the log of the compressed size of ``new`` after ``known``, divided by the unigram baseline.

    Args:
        known: token ids of the training text [T].
        new: token ids of the held-out text [H].
        unigram: frequencies of the tokens [V], none of them 0.
    """
    ids = np.uint16 if len(unigram) <= 1 << 16 else np.uint32
    size = _compressed(np.concatenate([known, new]).astype(ids)) - _compressed(known.astype(ids))
    return math.log(max(1, size) * 8 * math.log(2) / -np.log(unigram)[new].sum())


def bigram(known: np.ndarray, new: np.ndarray, unigram: np.ndarray) -> float:
    """Return the log of the loss of a bigram model on ``new``, divided by the unigram baseline.

    The model counts the pairs of ``known`` and falls back to the unigram frequencies with Witten-Bell smoothing
    (Chen and Goodman 1999): the more kinds of tokens follow a token, the more weight they have.

    Args:
        known: token ids of the training text [T].
        new: token ids of the held-out text [H], at least two.
        unigram: frequencies of the tokens [V], none of them 0.
    """
    size = len(unigram)
    pairs, counts = np.unique(_pairs(known, size), return_counts=True)
    followed = np.bincount(pairs // size, weights=counts, minlength=size)
    kinds = np.bincount(pairs // size, minlength=size)
    wanted = _pairs(new, size)
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    seen = np.where(pairs[place] == wanted, counts[place], 0)
    first, alone = new[:-1], unigram[new[1:]]
    after = followed[first] + kinds[first]
    chance = np.where(after > 0, (seen + kinds[first] * alone) / np.maximum(after, 1), alone)
    return math.log(np.log(chance).mean() / np.log(alone).mean())


def _sample(stream: Stream, tokens: int) -> np.ndarray:
    """Return about ``tokens`` token ids in evenly spread blocks."""
    blocks = max(1, min(tokens, len(stream)) // BLOCK)
    starts = np.linspace(0, max(0, len(stream) - BLOCK), blocks).astype(np.int64)
    parts = [stream.read(int(start), min(int(start) + BLOCK, len(stream))) for start in starts]
    return np.concatenate(parts).astype(np.int64)


def _pairs(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return one number for each pair of neighboring tokens [T - 1]."""
    return ids[:-1] * vocabulary + ids[1:]


def _compressed(ids: np.ndarray) -> int:
    """Return the bytes of the compressed ids."""
    return len(lzma.compress(ids.tobytes(), format=lzma.FORMAT_RAW, filters=LZMA))
