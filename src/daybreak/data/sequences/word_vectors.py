"""Word vectors from the co-occurrence of tokens, with which the embeddings of a model are initialized.

A model that starts from random embeddings spends its first minutes on learning which tokens are similar. Counting
which tokens occur near each other gives the same information in seconds. The vectors are the singular vectors of the
positive pointwise mutual information (PPMI) of tokens and contexts, with the settings of Levy, Goldberg and Dagan 2015
(TACL 3): context counts raised to the power of 0.75, and U * sqrt(S) as vectors.

Shapes: V vocabulary, C contexts, D size of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daybreak.core.errors import check_option
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds

CONTEXTS = 4096
"""Number of frequent tokens that are counted as contexts. The table of counts takes V * C * 4 bytes."""
BLOCK = 1 << 20
"""Tokens counted at once."""
SMOOTHING = 0.75


@dataclass(frozen=True, kw_only=True)
class WordVectors:
    """Initial embeddings from the co-occurrence of tokens in the training text."""

    weight: float = 0.0
    """Correlation of the initial embeddings with the vectors, from 0 (random embeddings) to 1."""
    tokens: int = 10_000_000
    """Maximum number of tokens to count."""
    window: int = 4
    """Maximum distance of two tokens that occur together; a pair counts 1 / distance."""

    def __post_init__(self) -> None:
        check_option("--word-vectors.weight", self.weight, 0 <= self.weight <= 1, "in [0, 1]")
        check_option("--word-vectors.tokens", self.tokens, self.tokens >= 1, "of at least 1")
        check_option("--word-vectors.window", self.window, 1 <= self.window <= 100, "from 1 to 100")


def word_vectors(
    stream: TokenStream, vocabulary: int, size: int, special: SpecialIds, config: WordVectors, seed: int
) -> np.ndarray:
    """Return float32 [V, D]: a vector of unit length for each token, or zeros for tokens that are too rare to count.

    Args:
        stream: training tokens.
        vocabulary: V.
        size: D.
        special: ids that get no vector.
        seed: determines the start of the randomized decomposition and the rotation of the vectors.
    """
    from threadpoolctl import threadpool_limits

    ppmi = _ppmi(*_cooccurrences(stream, vocabulary, special, config))
    with threadpool_limits(1, "blas"):  # the order of summation, and so the bits, depend on the number of threads
        return _decomposed(ppmi, vocabulary, size, seed)


def _decomposed(ppmi: np.ndarray, vocabulary: int, size: int, seed: int) -> np.ndarray:
    """Return float32 [V, D] from the table float32 [V, C]."""
    from sklearn.utils.extmath import randomized_svd

    random = np.random.default_rng(seed % (1 << 64))  # numpy takes no negative seeds, torch does
    components = min(size, *ppmi.shape)
    left, scale, _ = randomized_svd(ppmi, components, n_iter=2, random_state=int(random.integers(1 << 31)))
    vectors = np.zeros((vocabulary, size), np.float32)
    vectors[:, :components] = left * np.sqrt(scale)
    known = ppmi.any(axis=1)
    if not known.any():
        return vectors
    vectors[known] -= vectors[known].mean(axis=0)
    # The singular vectors differ in length by far. A rotation spreads them evenly over the coordinates.
    vectors = vectors @ np.linalg.qr(random.standard_normal((size, size)))[0].astype(np.float32)
    vectors[~known] = 0
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return vectors


def _cooccurrences(
    stream: TokenStream, vocabulary: int, special: SpecialIds, config: WordVectors
) -> tuple[np.ndarray, np.ndarray]:
    """Count pairs of tokens and contexts in blocks that are spread evenly over the stream.

    Returns:
        The counts float32 [V, C], weighted by distance, and the ids of the contexts int64 [C].
    """
    blocks = max(1, min(config.tokens, len(stream)) // BLOCK)
    length = min(BLOCK, len(stream), config.tokens)
    starts = np.linspace(0, len(stream) - length, blocks).astype(np.int64).tolist()
    texts = [stream.read(start, start + length).astype(np.int64) for start in starts]
    frequencies = np.sum([np.bincount(text, minlength=vocabulary) for text in texts], axis=0)
    frequencies[[special.pad, special.unk, special.cls, special.sep, special.mask]] = 0
    contexts = np.argsort(-frequencies, kind="stable")[: min(CONTEXTS, np.count_nonzero(frequencies) or 1)]
    column = np.full(vocabulary, -1)
    column[contexts] = np.arange(len(contexts))
    counts = np.zeros((vocabulary, len(contexts)), np.float32)
    cells = counts.reshape(-1)
    for text in texts:
        rows, columns = text * len(contexts), column[text]
        is_token, is_context = frequencies[text] > 0, columns >= 0
        for distance in range(1, min(config.window, len(text) - 1) + 1):
            left, right = slice(None, -distance), slice(distance, None)
            for token, context in ((left, right), (right, left)):
                cell = (rows[token] + columns[context])[is_token[token] & is_context[context]]
                places, times = np.unique(cell, return_counts=True)
                cells[places] += times / np.float32(distance)
    return counts, contexts


def _ppmi(counts: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """Return max(0, log(p(token, context) / (p(token) * p(context)))), in place of ``counts``."""
    tokens = counts.sum(axis=1, dtype=np.float64)
    smoothed = counts.sum(axis=0, dtype=np.float64) ** SMOOTHING
    smoothed /= max(smoothed.sum(), 1e-30)
    expected = np.maximum(tokens, 1e-30)
    counts /= expected[:, None].astype(np.float32)
    counts /= np.maximum(smoothed, 1e-30)[None, :].astype(np.float32)
    np.maximum(counts, 1.0, out=counts)
    return np.log(counts, out=counts)
