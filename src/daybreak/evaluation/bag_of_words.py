"""The baseline that takes a second: word and character counts with a linear model, fitted on the same training rows.

A score means little without it. One sentence: TF-IDF of words and of characters with logistic regression, or ridge
regression for a number. Two sentences: how much they overlap, and which words they share and do not share. Tags: the
most frequent tag of each word. Multiple choice and questions about a text have no such baseline here.

R rows, F features, C labels.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from daybreak.evaluation.batches import EncodedRows
from daybreak.evaluation.kind import Kind
from daybreak.evaluation.spans import OUTSIDE
from daybreak.evaluation.tasks import LabelledRows, TaskRows
from daybreak.evaluation.token_labels import FirstPieces

STRENGTHS = (10.0, 1.0, 0.1, 100.0)
"""Inverse regularisation of the linear model, of which a fifth of the training rows chooses; of equals the first."""
HELD_OUT = 0.2
SEED = 0
MOST_TO_CHOOSE = 5_000
"""Training rows that the choice looks at; the fit that follows has all of them."""
MOST_FEATURES = 200_000
"""Of words, and of characters: the most frequent ones, so that a large training set takes a minute and not ten."""
UNSEEN = -30.0
"""Log-probability of a label that the training rows lack, and the lowest of all."""
TINY = 1e-15
WORD = r"(?u)\b\w+\b"


def bag_of_words(kind: Kind, data: TaskRows, train: LabelledRows) -> dict[str, np.ndarray] | None:
    """Fit the baseline on ``train`` and judge it on every part of the task.

    Args:
        kind: of the task.
        train: the training rows that a fine-tuning has.

    Returns:
        By part, what ``Kind.judge`` gives; None for a kind of task without such a baseline.
    """
    if kind.name in ("classification", "regression"):
        model = _chosen(kind, data, train)
        return {part: model.judged(model.features.of(rows.texts), rows) for part, rows in data.parts.items()}
    if kind.name == "tokens":
        return _frequent_tags(kind, data, train)
    return None


# ---------------------------------------------------------------- a label or a number


def _chosen(kind: Kind, data: TaskRows, train: LabelledRows) -> _Linear:
    """The features and the strength that are best by a part of the training rows, fitted on all of them."""
    order = np.random.default_rng(SEED).permutation(len(train))[:MOST_TO_CHOOSE]
    held = max(1, round(HELD_OUT * len(order)))
    inside, outside = train.take(order[held:].tolist()), train.take(order[:held].tolist())
    sets: tuple[type[_Features], ...] = (_Overlap, _OverlapAndWords) if len(data.task.text) > 1 else (_Words,)
    best: tuple[float, type[_Features], float] = (-np.inf, sets[0], STRENGTHS[0])
    if len(set(inside.targets)) > 1:
        for features in sets:
            model = _Linear(kind, data.labels, features())
            seen = model.features.fit(inside.texts)
            unseen = model.features.of(outside.texts)
            for strength in STRENGTHS:
                answers = model.fit(seen, inside.targets, strength).judged(unseen, outside)
                score = kind.score(answers, data.labels)[data.task.metric]
                if score > best[0]:
                    best = score, features, strength
    model = _Linear(kind, data.labels, best[1]())
    return model.fit(model.features.fit(train.texts), train.targets, best[2])


class _Linear:
    """One linear model on one set of features."""

    def __init__(self, kind: Kind, labels: Sequence[str], features: _Features):
        self.features = features
        self._kind, self._labels = kind, labels
        self._model: Any = None

    def fit(self, features: Any, targets: Sequence[Any], strength: float) -> _Linear:
        if self._kind.name == "regression":
            self._model = Ridge(alpha=1 / strength, solver="sparse_cg")
        elif len(set(targets)) > 1:
            self._model = LogisticRegression(C=strength, max_iter=1000)
        else:
            self._model = DummyClassifier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a baseline that is nearly fitted is good enough
            self._model.fit(features, targets)
        return self

    def judged(self, features: Any, rows: LabelledRows) -> np.ndarray:
        """What ``Kind.judge`` makes of the answers for ``rows``, whose features are given."""
        if self._kind.name == "regression":
            answers = self._model.predict(features)[:, None]
        else:
            answers = np.full((len(rows), len(self._labels)), UNSEEN)
            answers[:, self._model.classes_] = np.maximum(np.log(self._model.predict_proba(features) + TINY), UNSEEN)
        return self._kind.judge(EncodedRows({}, rows.targets, [], rows), list(answers), self._labels)


class _Features:
    """Texts -> float64[R, F], sparse."""

    def fit(self, texts: Sequence[tuple[str, ...]]) -> Any:
        raise NotImplementedError

    def of(self, texts: Sequence[tuple[str, ...]]) -> Any:
        raise NotImplementedError


def _vectorizers() -> tuple[TfidfVectorizer, TfidfVectorizer]:
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=MOST_FEATURES, token_pattern=WORD)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, max_features=MOST_FEATURES)
    return words, characters


class _Words(_Features):
    """TF-IDF of words and pairs of words, and of 2 to 5 characters within a word."""

    def __init__(self) -> None:
        self._parts = _vectorizers()

    def fit(self, texts: Sequence[tuple[str, ...]]) -> Any:
        return sparse.hstack([_fitted(part, [text for (text,) in texts]) for part in self._parts], "csr")

    def of(self, texts: Sequence[tuple[str, ...]]) -> Any:
        return sparse.hstack([_applied(part, [text for (text,) in texts]) for part in self._parts], "csr")


class _Overlap(_Features):
    """How much the two texts of a row have in common, as standardised numbers."""

    def __init__(self) -> None:
        self._parts = _vectorizers()
        self._scaler = StandardScaler()

    def fit(self, texts: Sequence[tuple[str, ...]]) -> Any:
        for part in self._parts:
            _fitted(part, [text for pair in texts for text in pair[:2]])
        return sparse.csr_matrix(self._scaler.fit_transform(self._numbers(texts)))

    def of(self, texts: Sequence[tuple[str, ...]]) -> Any:
        return sparse.csr_matrix(self._scaler.transform(self._numbers(texts)))

    def _numbers(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        cosines = [np.asarray(first.multiply(second).sum(axis=1)).ravel() for first, second in self._sides(texts)]
        return np.column_stack([*cosines, [overlap(pair[0], pair[1]) for pair in texts]])

    def _sides(self, texts: Sequence[tuple[str, ...]]) -> Iterator[tuple[Any, Any]]:
        for part in self._parts:
            yield _applied(part, [pair[0] for pair in texts]), _applied(part, [pair[1] for pair in texts])


class _OverlapAndWords(_Overlap):
    """The same, and which words both texts have and which only one has."""

    def fit(self, texts: Sequence[tuple[str, ...]]) -> Any:
        return sparse.hstack([super().fit(texts), self._shared(texts)], "csr")

    def of(self, texts: Sequence[tuple[str, ...]]) -> Any:
        return sparse.hstack([super().of(texts), self._shared(texts)], "csr")

    def _shared(self, texts: Sequence[tuple[str, ...]]) -> Any:
        first, second = next(self._sides(texts))
        return sparse.hstack([first.multiply(second), abs(first - second)])


def overlap(first: str, second: str) -> tuple[float, ...]:
    """Shares of words in common: of all words of both (Jaccard), of the first's, of the second's; and of the lengths.

    Returns:
        Jaccard index, |common| / |first|, |common| / |second|, shorter / longer length in words, and the share of the
        numbers in either text that are in both; each in [0, 1], and 1.0 for the last where no text has a number.
    """
    a, b = (re.findall(WORD, text.lower()) for text in (first, second))
    one, other = set(a), set(b)
    common = len(one & other)
    numbers = {word for word in one | other if word[0].isdigit()}
    return (
        common / max(1, len(one | other)),
        common / max(1, len(one)),
        common / max(1, len(other)),
        min(len(a), len(b)) / max(1, len(a), len(b)),
        len(numbers & one & other) / len(numbers) if numbers else 1.0,
    )


def _fitted(part: TfidfVectorizer, texts: Sequence[str]) -> Any:
    try:
        return part.fit_transform(texts)
    except ValueError:  # not a single word in all of the texts
        part.vocabulary_ = {}
        return sparse.csr_matrix((len(texts), 1))


def _applied(part: TfidfVectorizer, texts: Sequence[str]) -> Any:
    return part.transform(texts) if part.vocabulary_ else sparse.csr_matrix((len(texts), 1))


# ---------------------------------------------------------------- tags


def _frequent_tags(kind: Kind, data: TaskRows, train: LabelledRows) -> dict[str, np.ndarray]:
    """Each word has the tag that it had most often in training, O where it was never seen (ties: the lower id)."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for words, tags in zip(train.texts, train.targets, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    outside = data.labels.index(OUTSIDE)
    known = {word: min(found, key=lambda tag: (-found[tag], tag)) for word, found in counts.items()}
    tables = {}
    for part, rows in data.parts.items():
        answers = [np.eye(len(data.labels))[[known.get(word, outside) for word in words]] for words in rows.texts]
        notes = [FirstPieces(np.arange(len(words)), np.arange(len(words))) for words in rows.texts]
        tables[part] = kind.judge(EncodedRows({}, rows.targets, [], rows, notes), answers, data.labels)
    return tables
