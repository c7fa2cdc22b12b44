"""Queries: find the passages of a run that match a query best, by vectors, by BM25 or by both.

N passages, D hidden size.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.run_folder import RunFolder, warn_if_refused
from daybreak.core.serialization import check_choice
from daybreak.core.terminal import working
from daybreak.data.readers.cleaning import clean
from daybreak.evaluation.probes.bm25 import DENSE_WEIGHTS, best_weight, bm25_query, ranks_of, standardize
from daybreak.searching.index import OpenIndex, open_index, with_change
from daybreak.searching.passages import SPLITS
from daybreak.searching.query_encoder import QueryEncoder, supports

Method = Literal["hybrid", "dense", "bm25"]
METHODS: tuple[str, ...] = get_args(Method)
CHUNK = 1024
"""Vectors that are multiplied at a time: as float32 they stay in the processor's cache."""
HALF_BITS = np.uint32(0x8FFFE000).view(np.int32)
"""The places of sign, exponent and fraction of a float16 in a float32."""
HALF_SCALE = np.float32(2.0**112)
"""The bits of a float16 in these places mean its value divided by this, because the two biases differ."""
TIES = 1e-6
"""Smallest weight of the vectors: it orders passages that are equal in words, such as those without any."""
FEWEST_QUERIES, MOST_QUERIES = 50, 200
"""Number of queries that the weight of the vectors is measured with."""


@dataclass(frozen=True)
class SearchResult:
    """A passage that was found."""

    rank: int
    """From 1."""
    score: float
    """Cosine similarity of ``dense``, BM25 score of ``bm25``; of ``hybrid`` the weighted sum of both, each standardized
    over all passages."""
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
        method: of queries that name none.
    """

    def __init__(self, index: OpenIndex, method: str = "hybrid"):
        self.index = index
        self.method = method

    def search(self, words: str, *, top: int = 10, method: str | None = None) -> list[SearchResult]:
        """Return the ``top`` best passages, best first; of equal scores the earlier passage comes first.

        With ``bm25`` only passages that hold a word of the query count. ``hybrid`` ranks passages that are equal in
        words by their vectors, and all passages where none holds a word.

        Args:
            words: the query; the model reads as many tokens of it as it was trained on.
            method: hybrid, dense or bm25; defaults to the one that the index was opened for.

        Raises:
            UserError: the query cannot be answered, or needs the BM25 index, and this one was opened for ``dense``.
        """
        method = method or self.method
        check_query(words, top, method)
        words = clean(words)  # as the text was
        if method != "dense" and self.index.bm25 is None:
            raise UserError(f"This index was opened without BM25, which '{method}' needs.", "Open it with that method.")
        scores = self.scores(words, method)
        if method == "bm25":
            top = min(top, int((scores > 0).sum()))
        return [self._result(rank, int(id), float(scores[id])) for rank, id in enumerate(_best(scores, top), start=1)]

    def scores(self, words: str, method: str) -> np.ndarray:
        """Return the score of every passage, float [N]."""
        if method == "dense":
            return self._dense(words)
        if method == "bm25":
            return self._sparse(words)
        sparse, weight = self._sparse(words), self.index.state.dense_weight
        if weight is None or not sparse.any():
            weight = weight or 1.0
        dense = standardize(self._dense(words).astype(float))
        return standardize(sparse) + max(weight, TIES) * dense

    def _sparse(self, words: str) -> np.ndarray:
        """Return float64 [N] of BM25 scores, of the query as the passages are: decoded from tokens.

        The tokenizer may remove accents, or part ``read_csv`` and Chinese words.
        """
        tokenizer = self.index.source.tokenizer
        found = bm25_query(self.index.bm25, tokenizer.decode(tokenizer.encode(words, add_special_tokens=False).ids))
        return np.zeros(self.index.state.passages) if found is None else found

    def _dense(self, words: str) -> np.ndarray:
        """Return float32 [N] of cosine similarities."""
        return products(self.index.vectors, self.embed(words))

    def embed(self, words: str) -> np.ndarray:
        """Return the embedding of a query, float32 [D] of unit length."""
        source = self.index.source
        special = source.shards.manifest.special
        ids = source.tokenizer.encode(words, add_special_tokens=False).ids[: source.longest - 2]
        return self._encode([special.cls, *ids, special.sep])

    @cached_property
    def _encode(self) -> Callable[[Sequence[int]], np.ndarray]:
        """Returns the embedding of a text of which the ids are given, with special tokens."""
        folder = self.index.source.model
        if supports(folder):
            return QueryEncoder(folder).embed
        from daybreak.evaluation.probes.retrieval import embed_ids
        from daybreak.models.importing import load_pretrained

        model, special = load_pretrained(folder).model, self.index.source.shards.manifest.special
        return lambda ids: embed_ids(model, [ids[1:-1]], special=special)[0]

    def _result(self, rank: int, id: int, score: float) -> SearchResult:
        reader = self.index.reader
        split, document = reader.passages[id, :2].tolist()
        return SearchResult(rank, score, id, SPLITS[split], document, reader.texts(id, id + 1)[0])


def open_search(
    run: Path | str,
    *,
    data: Path | str | None = None,
    index: Path | str | None = None,
    method: str = "hybrid",
    rebuild: bool = False,
) -> Searcher:
    """Open the search index of a run for many queries; it is built first where it is missing.

    Args:
        data, index, rebuild: see ``daybreak.search``.
        method: of the queries; ``dense`` needs no BM25 index and opens none.
    """
    run, data, index = Path(run), Path(data) if data else None, Path(index) if index else None
    warn_if_refused(RunFolder(run).model)
    opened = open_index(run, data=data, folder=index, words=method != "dense", rebuild=rebuild)
    if method == "hybrid" and opened.state.dense_weight is None:
        with working("Measuring the weight of the vectors"):
            weight = dense_weight(Searcher(opened))
        # It is measured at each opening of an index that is read only or that another process builds again.
        state = with_change(index or RunFolder(run).search, opened.state, dense_weight=weight)
        opened = replace(opened, state=state)
    return Searcher(opened, method)


def dense_weight(searcher: Searcher) -> float:
    """Return the weight of the vectors with which hybrid search ranks best in this index, one of DENSE_WEIGHTS.

    A query is the beginning of a passage, without its first words, and has to find the passage before it in the
    document. The passage that holds the query does not count. Passages of held-out documents are used where there are
    enough of them, because the model may know the training text.

    Returns:
        1.0 if the index has too few such passages.
    """
    ranks = [_ranks(searcher, target, query) for target, query in _neighbors(searcher)]
    return DENSE_WEIGHTS[best_weight(np.array(ranks).T)] if len(ranks) >= FEWEST_QUERIES else 1.0


def _neighbors(searcher: Searcher) -> Iterator[tuple[int, str]]:
    """Yield up to MOST_QUERIES evenly spread passages, each with a query from the passage after it."""
    from daybreak.evaluation.probes.retrieval import GAP_WORDS, QUERY_WORDS

    reader = searcher.index.reader
    place = np.asarray(reader.passages[:, :2])
    followed = np.flatnonzero((place[1:] == place[:-1]).all(axis=1))
    held_out = followed[place[followed, 0] == SPLITS.index("heldout")]
    chosen = held_out if len(held_out) >= FEWEST_QUERIES else followed
    for target in chosen[np.linspace(0, len(chosen) - 1, min(MOST_QUERIES, len(chosen))).astype(int)].tolist():
        query = reader.texts(target + 1, target + 2)[0].split()[GAP_WORDS : GAP_WORDS + QUERY_WORDS]
        if len(query) == QUERY_WORDS:
            yield target, " ".join(query)


def _ranks(searcher: Searcher, target: int, query: str) -> np.ndarray:
    """Return the rank of a passage for each of DENSE_WEIGHTS, float64, without the passage after it.

    That passage holds the query, and its score would decide the scale of those of a small index.
    """
    words, vectors = (
        standardize(np.delete(searcher.scores(query, method).astype(float), target + 1)) for method in ("bm25", "dense")
    )
    scores = words + np.outer(DENSE_WEIGHTS, vectors)
    return ranks_of(scores, np.full(len(scores), target))


def check_query(words: str, top: int, method: str) -> None:
    """Raise UserError for a query that cannot be answered."""
    check_choice("--method", method, METHODS)
    if not isinstance(top, numbers.Integral):
        raise UserError(f"{top!r} is no number of results.", "Give a whole number, such as 10.")
    if top < 1:
        raise UserError(f"{top} results are too few.", "Use at least 1 with --top.")
    if not isinstance(words, str):
        raise UserError(f"The query {words!r} is not text.", "Search for one query at a time, given as a string.")
    if not clean(words):
        raise UserError("The query is empty.", "Name the words to search for, in quotation marks.")


def products(vectors: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the products of float16 vectors [N, D], which are finite, with a float32 vector [D]: float32 [N].

    numpy converts a float16 four times as slowly as its bits are moved.
    """
    scaled, found = vector * HALF_SCALE, np.empty(len(vectors), np.float32)
    wide = np.empty((min(CHUNK, len(vectors)), len(vector)), np.int32)
    for start in range(0, len(vectors), CHUNK):
        part = vectors[start : start + CHUNK]
        bits = wide[: len(part)]
        np.left_shift(part.view(np.int16), 13, out=bits, dtype=np.int32, casting="unsafe")
        np.bitwise_and(bits, HALF_BITS, out=bits)
        np.dot(bits.view(np.float32), scaled, out=found[start : start + len(part)])
    return found


def _best(scores: np.ndarray, top: int) -> np.ndarray:
    """Return the indices of the ``top`` highest scores, highest first, equal ones in order."""
    if top < 1:
        return np.empty(0, int)
    least = np.partition(scores, -min(top, len(scores)))[-min(top, len(scores))]
    candidates = np.flatnonzero(scores >= least)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:top]
