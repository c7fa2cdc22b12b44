"""BM25 over words, by the package bm25s, and how its scores are added to those of another ranker.

N passages, Q queries.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from daybreak.core.words import word_pattern

DENSE_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Weights of the other ranker's scores, from which queries with a known passage select one."""


def import_bm25s() -> ModuleType:
    """Import bm25s without letting JAX, where it is installed, reserve three quarters of the GPU's memory.

    bm25s computes with JAX while it is imported, and JAX takes the GPU unless told otherwise before its own import.
    """
    decides = "jax" not in sys.modules and "JAX_PLATFORMS" not in os.environ
    if decides:
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        return importlib.import_module("bm25s")
    finally:
        if decides:
            del os.environ["JAX_PLATFORMS"]


def bm25_index(passages: Iterable[str]) -> Any:
    """Return a ``bm25s.BM25`` over the lower-cased words of the passages, with the usual k1 = 1.5 and b = 0.75.

    Equal passages give equal arrays. The memory is 8 bytes a word while the index is built, the texts not counted.
    """
    bm25s = import_bm25s()  # here, so that training does without it
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in _words(passage)] for passage in passages]
    index = bm25s.BM25(k1=1.5, b=0.75, csc_backend="scipy")
    with np.errstate(invalid="ignore"):  # the mean length of passages without words
        index.index((ids, vocabulary or {"": 0}), show_progress=False)
    return index


def _words(text: str) -> list[str]:
    return re.findall(word_pattern(), text.lower())


def bm25_query(index: Any, query: str) -> np.ndarray | None:
    """Return float64 [N] of BM25 scores; None where no passage holds a word of the query."""
    words = [word for word in dict.fromkeys(_words(query)) if word in index.vocab_dict]
    return index.get_scores(words).astype(np.float64) if words else None


def bm25_scores(passages: Sequence[str], queries: Sequence[str]) -> np.ndarray:
    """Return float64 [Q, N] of BM25 scores."""
    index = bm25_index(passages)
    scores = np.zeros((len(queries), len(passages)))
    for row, query in zip(scores, queries, strict=True):
        found = bm25_query(index, query)
        if found is not None:
            row[:] = found
    return scores


def standardize(scores: np.ndarray) -> np.ndarray:
    """Scores [..., N] of each query with mean 0 and deviation 1, so that those of two rankers add up."""
    spread = scores.std(axis=-1, keepdims=True)
    return (scores - scores.mean(axis=-1, keepdims=True)) / np.where(spread > 0, spread, 1.0)


def ranks_of(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return float64 [Q]: the rank, from 1, of passage ``targets`` [Q] in each row of ``scores`` [Q, N].

    Equal scores share the mean rank.
    """
    own = np.take_along_axis(scores, targets[:, None], axis=1)
    return 1.0 + (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2


def best_weight(ranks: np.ndarray) -> int:
    """Return the index of the weight with the highest mean reciprocal rank, from the ranks [weights, queries]."""
    return int((1 / ranks).mean(axis=1).argmax())
