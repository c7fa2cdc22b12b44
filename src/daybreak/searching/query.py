"""Queries: find the passages of a run that match a query best, by vectors, by BM25 or by both.

N passages, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.evaluation.probes.bm25 import bm25_query, standardised
from daybreak.searching.index import OpenIndex, open_index
from daybreak.searching.passages import SPLITS

Method = Literal["hybrid", "dense", "bm25"]
METHODS: tuple[str, ...] = get_args(Method)
CHUNK = 4096
"""Vectors that are multiplied at a time: as float32 they stay in the processor's cache."""


@dataclass(frozen=True)
class SearchResult:
    """A passage that was found."""

    rank: int
    """From 1."""
    score: float
    """Cosine similarity of ``dense``, BM25 score of ``bm25``; of ``hybrid`` the sum of both, each standardized over all
    passages."""
    id: int
    """Number of the passage in the index."""
    split: str
    """train or heldout."""
    document: int
    """Number of the document in its split, from 0, in the order of the prepared data."""
    text: str
    """Decoded from tokens: without capitals where the tokenizer folds them away."""


class Searcher:
    """Answers queries from an index; its model is loaded at the first query that needs it.

    Args:
        index: from ``open_index``.
    """

    def __init__(self, index: OpenIndex):
        self.index = index

    def search(self, words: str, *, top: int = 10, method: str = "hybrid") -> list[SearchResult]:
        """Return the ``top`` best passages, best first; of equal scores the earlier passage comes first.

        With ``bm25`` only passages that hold a word of the query count. Where no passage does, ``hybrid`` ranks by
        vectors alone.

        Args:
            words: the query; the model reads as many tokens of it as it was trained on.
            method: hybrid, dense or bm25.
        """
        check_query(words, top, method)
        scores = self.scores(words, method)
        if method == "bm25":
            top = min(top, int((scores > 0).sum()))
        return [self._result(rank, int(id), float(scores[id])) for rank, id in enumerate(_best(scores, top), start=1)]

    def scores(self, words: str, method: str) -> np.ndarray:
        """Return the score of every passage, float [N]."""
        if method == "dense":
            return self._dense(words)
        sparse = bm25_query(self.index.bm25, words)
        if sparse is None:
            sparse = np.zeros(self.index.state.passages)
        return sparse if method == "bm25" else standardised(sparse) + standardised(self._dense(words).astype(float))

    def _dense(self, words: str) -> np.ndarray:
        """Return float32 [N] of cosine similarities."""
        import torch

        vector, vectors = torch.from_numpy(self.embed(words)), torch.from_numpy(self.index.vectors)
        found = torch.empty(len(vectors))
        for start in range(0, len(vectors), CHUNK):
            part = vectors[start : start + CHUNK]
            torch.mv(part.float(), vector, out=found[start : start + len(part)])
        return found.numpy()

    def embed(self, words: str) -> np.ndarray:
        """Return the embedding of a query, float32 [D] of unit length."""
        from daybreak.evaluation.probes.retrieval import embed_texts

        source = self.index.source
        special = source.shards.manifest.special
        return embed_texts(self._model, source.tokenizer, [words], special=special, length=source.longest)[0]

    @cached_property
    def _model(self) -> Any:
        from daybreak.models.importing import load_pretrained

        return load_pretrained(self.index.source.model).model

    def _result(self, rank: int, id: int, score: float) -> SearchResult:
        reader = self.index.reader
        split, document = reader.passages[id, :2].tolist()
        return SearchResult(rank, score, id, SPLITS[split], document, reader.texts(id, id + 1)[0])


def open_search(
    run: Path, *, data: Path | None = None, index: Path | None = None, method: str = "hybrid", rebuild: bool = False
) -> Searcher:
    """Open the search index of a run for many queries; it is built first where it is missing.

    Args:
        data, index, rebuild: see ``daybreak.search``.
        method: of the queries; ``dense`` needs no BM25 index.
    """
    return Searcher(open_index(run, data=data, folder=index, words=method != "dense", rebuild=rebuild))


def check_query(words: str, top: int, method: str) -> None:
    """Raise UserError for a query that cannot be answered."""
    if method not in METHODS:
        raise UserError(
            f"There is no search method '{method}'.{nearest(method, METHODS)}", "Use hybrid, dense or bm25."
        )
    if top < 1:
        raise UserError(f"{top} results are too few.", "Use at least 1 with --top.")
    if not words.strip():
        raise UserError("The query is empty.", "Name the words to search for, in quotation marks.")


def _best(scores: np.ndarray, top: int) -> np.ndarray:
    """Return the indices of the ``top`` highest scores, highest first, equal ones in order."""
    if top < 1:
        return np.empty(0, int)
    least = np.partition(scores, -min(top, len(scores)))[-min(top, len(scores))]
    candidates = np.flatnonzero(scores >= least)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:top]
