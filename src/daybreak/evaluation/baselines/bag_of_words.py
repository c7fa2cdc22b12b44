"""The bag-of-words baseline: word and character counts with a linear model, fitted on the same training rows.

Classification uses TF-IDF of words and characters with logistic regression; regression uses ridge regression. Pairs use
the overlap of the two texts, their common words and their different words. Multiple choice treats (context, choice) as
a pair. Token classification predicts the most frequent tag of each word. Question answering has no such baseline.

R rows, F features, C labels.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from daybreak.core.words import word_pattern
from daybreak.evaluation.tasks.batches import EncodedRows
from daybreak.evaluation.tasks.sequences import OneOfSeveral
from daybreak.evaluation.tasks.task import LabeledRows, TaskRows
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.evaluation.tasks.token_labels import OUTSIDE, FirstTokens

VERSION = 5
"""Version of the baseline's numbers; kept scores of another version are not reused."""
STRENGTHS = (10.0, 1.0, 0.1, 100.0)
"""Inverse regularization of the linear model (scikit-learn's C), selected on a fifth of the training rows."""
HELD_OUT = 0.2
FOLDS = 5
"""Folds of ``held_out_predictions``."""
SEED = 0
MOST_TO_CHOOSE = 5_000
"""Most training rows for the selection; the final fit uses all rows."""
MOST_CHARACTERS = 8_000_000
"""Most characters of training text, which take about a minute on one core. SST-2 has 4 million; for MNLI, QQP and QNLI
only the first rows of the seeded shuffle are used."""
AT_A_TIME = 5_000
"""Rows without labels that are predicted at a time, to bound the memory."""
MOST_FEATURES = 200_000
"""Words and pairs of words, and as many character n-grams: the most frequent ones."""
MOST_COEFFICIENTS = 6_000_000
"""Most coefficients of the linear model, features times labels. The solver keeps about 25 times as many numbers."""
MOST_ITERATIONS = 1_000
"""Iterations of logistic regression."""
OVERLAP_NUMBERS = 5
PAIR_VARIANTS = (slice(2 + OVERLAP_NUMBERS), slice(None))
"""Sets of columns of the features of a pair: with the numbers alone, and with the words."""
UNSEEN = -30.0
"""Lowest log-probability, and that of labels that the training rows lack."""
TINY = 1e-15


@dataclass(frozen=True)
class WordScores:
    """The predictions of the baseline."""

    scored_rows: dict[str, np.ndarray]
    """By part, the values of ``Kind.evaluate``."""
    rows: int
    """Number of training rows."""


def bag_of_words(kind: Kind, data: TaskRows, train: LabeledRows) -> WordScores:
    """Fit the baseline on ``train``, in its seeded order, and evaluate it on every part of the task.

    Nothing is fitted for a kind without such a baseline, such as question answering.
    """
    if kind.name == "tokens":
        return WordScores(_most_frequent_tags(kind, data, train), len(train))
    if not (kind.numeric or isinstance(kind, OneOfSeveral)):
        return WordScores({}, 0)
    train = _bounded(train)
    answers = _linear(kind, data, train, *_select(kind, data, train))
    scored = {part: _evaluated(kind, data.labels, answers(rows), rows) for part, rows in data.parts.items()}
    return WordScores(scored, len(train))


def held_out_predictions(kind: Kind, data: TaskRows, train: LabeledRows, more: LabeledRows | None = None) -> np.ndarray:
    """Predict each training row with a baseline that is fitted on rows of other folds, then ``more`` with all rows.

    Features and regularization are selected once, on all training rows. Where there are no rows of other folds, labels
    are equally probable and the number is the mean.

    Args:
        more: rows that are in no fold; their targets do not count.

    Returns:
        The probabilities of classification, float64[R, C], or the numbers of regression, float64[R, 1].
    """
    bounded = _bounded(train)
    columns, strength = _select(kind, data, bounded)
    folds = np.random.default_rng(SEED).permutation(len(train)) % FOLDS
    unknown = np.mean(train.targets) if kind.numeric else -np.log(len(data.labels))
    found = np.full((len(train), 1 if kind.numeric else len(data.labels)), unknown)
    for fold in range(FOLDS):
        others, rows = np.flatnonzero(folds[: len(bounded)] != fold), np.flatnonzero(folds == fold)
        if len(others) and len(rows):
            answers = _linear(kind, data, bounded.take(others.tolist()), columns, strength)
            found[rows] = answers(train.take(rows.tolist()))
    if more:
        answers = _linear(kind, data, bounded, columns, strength)
        places = range(len(more))
        parts = (more.take(places[start : start + AT_A_TIME]) for start in places[::AT_A_TIME])
        found = np.concatenate([found, *map(answers, parts)])
    return found if kind.numeric else np.exp(found)


def _bounded(train: LabeledRows) -> LabeledRows:
    """Return the first rows with at most MOST_CHARACTERS characters in total (at least one row)."""
    ends = accumulate(sum(map(len, texts)) for texts in train.texts)
    fitting = sum(end <= MOST_CHARACTERS for end in ends)
    return train if fitting == len(train) else train.take(range(max(1, fitting)))


# ---------------------------------------------------------------- classification, regression, multiple choice


def _select(kind: Kind, data: TaskRows, train: LabeledRows) -> tuple[slice, float]:
    """Return the columns of the features and the regularization that are best on a part of the training rows."""
    order = np.random.default_rng(SEED).permutation(len(train))[:MOST_TO_CHOOSE]
    held = max(1, round(HELD_OUT * len(order)))
    inside, outside = train.take(order[held:].tolist()), train.take(order[:held].tolist())
    features = _Features(kind, data)
    columns, strength, best = features.variants[0], STRENGTHS[0], -np.inf
    if len(set(inside.targets)) > 1:
        sample = _samples(kind, inside)
        seen, unseen = features.of(sample.texts, fit=True), features.of(_samples(kind, outside).texts)
        for some in features.variants:
            for each in STRENGTHS:
                model = _fitted(kind, seen[:, some], sample.targets, each)
                table = _evaluated(kind, data.labels, _answers(kind, data.labels, model, unseen[:, some]), outside)
                if (score := kind.score(table, data.labels)[data.task.metric]) > best:
                    columns, strength, best = some, each, score
    return columns, strength


def _linear(
    kind: Kind, data: TaskRows, train: LabeledRows, columns: slice, strength: float
) -> Callable[[LabeledRows], np.ndarray]:
    """Fit the linear model on ``train`` with these columns of the features and this regularization.

    Returns:
        A function of rows, which returns the answers of the model to their samples as ``_answers`` does.
    """
    features, sample = _Features(kind, data), _samples(kind, train)
    model = _fitted(kind, features.of(sample.texts, fit=True)[:, columns], sample.targets, strength)
    return lambda rows: _answers(kind, data.labels, model, features.of(_samples(kind, rows).texts)[:, columns])


def _samples(kind: Kind, rows: LabeledRows) -> LabeledRows:
    """Return the samples of the linear model: the rows, or for multiple choice (context, choice) pairs with 0 or 1."""
    if kind.name != "choice":
        return rows
    return LabeledRows(
        [(texts[0], ending) for texts in rows.texts for ending in texts[1:]],
        [int(place == target) for texts, target in zip(rows.texts, rows.targets) for place in range(len(texts) - 1)],
    )


def _fitted(kind: Kind, features: Any, targets: Sequence[Any], strength: float) -> Any:
    if kind.numeric:
        model = Ridge(alpha=1 / strength, solver="sparse_cg")
    elif len(set(targets)) > 1:
        model = LogisticRegression(C=strength, max_iter=MOST_ITERATIONS)
    else:
        model = DummyClassifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the selection compares what was reached
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)  # labels are no numbers
        return model.fit(features, targets)


def _answers(kind: Kind, labels: Sequence[str], model: Any, features: Any) -> np.ndarray:
    """Return the model's log-probabilities, float64[R, C], or numbers, float64[R, 1]."""
    if kind.numeric:
        return np.asarray(model.predict(features))[:, None]
    answers = np.full((features.shape[0], len(labels) or 2), UNSEEN)
    answers[:, model.classes_] = np.maximum(np.log(model.predict_proba(features) + TINY), UNSEEN)
    return answers


def _evaluated(kind: Kind, labels: Sequence[str], answers: np.ndarray, rows: LabeledRows) -> np.ndarray:
    """Return ``Kind.evaluate`` of the answers to the samples of ``rows``."""
    if kind.name == "choice":
        answers = answers[:, 1].reshape(len(rows), -1)
    return kind.evaluate(EncodedRows({}, rows.targets, [], rows), list(answers), labels)


class _Features:
    """Features of rows of texts, float64[R, F], sparse.

    Of one text: TF-IDF of words and pairs of words, and of 2 to 5 characters within a word. Of a pair: the standardized
    overlap of the two texts, and their words, which are the product and the absolute difference of the two TF-IDF
    vectors, or for multiple choice the TF-IDF vector of the second text.
    """

    def __init__(self, kind: Kind, data: TaskRows):
        self._second_alone = kind.name == "choice"
        self._pair = self._second_alone or len(data.task.text) > 1
        self.variants = PAIR_VARIANTS if self._pair else (slice(None),)
        """Sets of columns to select from."""
        most = min(MOST_FEATURES, MOST_COEFFICIENTS // (2 * max(1, len(data.labels))))
        options: dict[str, Any] = {"sublinear_tf": True, "max_features": most}
        self._vectorizers = (
            TfidfVectorizer(ngram_range=(1, 2), token_pattern=word_pattern(), **options),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **options),
        )
        self._scaler = StandardScaler()

    def of(self, texts: Sequence[tuple[str, ...]], fit: bool = False) -> Any:
        """Return the features of texts; with ``fit``, vocabulary, weights and scale are those of these texts."""
        rows = len(texts)
        # All first texts, then all second texts.
        counts = [_counts(part, [text for column in zip(*texts) for text in column], fit) for part in self._vectorizers]
        if not self._pair:
            return sparse.hstack(counts, "csr")
        # TF-IDF vectors have length 1, so the cosine is the sum of the products.
        cosines = [np.asarray(each[:rows].multiply(each[rows:]).sum(axis=1)).ravel() for each in counts]
        numbers = np.column_stack([*cosines, [overlap(first, second) for first, second in texts]])
        numbers = self._scaler.fit_transform(numbers) if fit else self._scaler.transform(numbers)
        first, second = counts[0][:rows], counts[0][rows:]
        words = [second] if self._second_alone else [first.multiply(second), abs(first - second)]
        return sparse.hstack([sparse.csr_matrix(numbers), *words], "csr")


def _counts(part: TfidfVectorizer, texts: Sequence[str], fit: bool) -> Any:
    if fit:
        try:
            return part.fit_transform(texts)
        except ValueError:  # the texts have no words
            part.vocabulary_ = {}
    return part.transform(texts) if part.vocabulary_ else sparse.csr_matrix((len(texts), 1))


def overlap(first: str, second: str) -> tuple[float, ...]:
    """Return OVERLAP_NUMBERS measures of the overlap of two texts, in [0, 1].

    Returns:
        Jaccard index of the two sets of words, |common| / |first|, |common| / |second|, shorter / longer length in
        words, and the fraction of the numbers in either text that are in both (1.0 if no text has a number).
    """
    a, b = (re.findall(word_pattern(), text.lower()) for text in (first, second))
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


# ---------------------------------------------------------------- token classification


def _most_frequent_tags(kind: Kind, data: TaskRows, train: LabeledRows) -> dict[str, np.ndarray]:
    """Predict the most frequent tag of each word in the training rows (ties: the lower id), O for unseen words."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for words, tags in zip(train.texts, train.targets, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    outside = data.labels.index(OUTSIDE)
    known = {word: min(found, key=lambda tag: (-found[tag], tag)) for word, found in counts.items()}
    tables = {}
    for part, rows in data.parts.items():
        answers = [np.eye(len(data.labels))[[known.get(word, outside) for word in words]] for words in rows.texts]
        notes = [FirstTokens(np.arange(len(words)), np.arange(len(words))) for words in rows.texts]
        tables[part] = kind.evaluate(EncodedRows({}, rows.targets, [], rows, notes), answers, data.labels)
    return tables
