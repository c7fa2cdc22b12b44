"""Layer-by-layer probes of a frozen encoder: linear models (Alain and Bengio 2016) and similarity of sentence pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.jobs import training_subset
from daybreak.evaluation.probes.frozen import FrozenModel, Show, part_of, pooled_states
from daybreak.evaluation.scoring.metrics import regression_scores
from daybreak.evaluation.tasks.batches import EncodedRows
from daybreak.evaluation.tasks.kinds import kind_of
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows
from daybreak.schemas.probes import LayerProbe, LayerScore, SimilarityProbe, SimilarityScore

CLASSIFICATION_C = 0.01
"""scikit-learn's C, the inverse regularization of the logistic regression, on standardized features."""
REGRESSION_ALPHA = 1000.0
"""Regularization of the ridge regression, on standardized features."""
NEVER = -700.0
"""Log-probability of a label that the training rows lack; its exponential is still above 0."""
COSINE_DIGITS = 9
"""Decimals of a cosine, so that equal sentences are ties whatever the rounding."""


def check_probed(task: Task) -> None:
    """Check that a task has one label or number per text."""
    if not (kind_of(task).numeric or task.kind == "classification"):
        raise UserError(
            f"Task '{task.name}' is of the kind {task.kind}, which linear probes do not support.",
            "Probe tasks of classification or regression, or fine-tune on this one with daybreak evaluate.",
        )


def probed_rows(data: TaskRows, most: int) -> LabeledRows:
    """Return the training rows of the probes: the first ``most`` of the shuffle that fine-tuning uses."""
    rows = training_subset(data.train, most)
    if data.task.kind == "classification" and len(set(rows.targets)) < 2:
        raise UserError(
            f"The {len(rows)} training rows of '{data.task.name}' all have the label '{data.labels[rows.targets[0]]}'.",
            "Take more with --rows.",
        )
    return rows


def probe_layers(frozen: FrozenModel, data: TaskRows, train: LabeledRows, length: int, show: Show) -> LayerProbe:
    """Fit one linear model per layer on ``train``, texts of at most ``length`` tokens, and evaluate it on dev."""
    task, kind = data.task, kind_of(data.task)
    train_features = text_features(frozen, train.texts, length, part_of(show, 0, 2))
    dev_features = text_features(frozen, data.dev.texts, length, part_of(show, 1, 2))
    dev = EncodedRows({}, data.dev.targets, [], data.dev)
    layers = []
    for layer, (features, questions) in enumerate(zip(train_features, dev_features, strict=True)):
        answers = list(_answers(kind.numeric, features, train.targets, questions, len(data.labels)))
        table = kind.evaluate(dev, answers, data.labels)
        layers.append(LayerScore(layer=layer, score=kind.score(table, data.labels)[task.metric]))
    return LayerProbe(
        task=task.name,
        kind=task.kind,
        metric=task.metric,
        constant=kind.score(kind.constant(replace(data, train=train), data.dev), data.labels)[task.metric],
        train_rows=len(train),
        dev_rows=len(data.dev),
        layers=layers,
    )


def text_features(frozen: FrozenModel, texts: Sequence[tuple[str, ...]], length: int, show: Show) -> np.ndarray:
    """Return the features float32[layers + 1, N, F]: the mean-pooled states of each text.

    For two texts u and v, encoded separately, they are [|u - v|, u * v] as in SentEval (Conneau and Kiela 2018,
    arXiv:1803.05449, section 3).
    """
    columns = list(zip(*texts))
    pooled = [
        pooled_states(frozen, column, length, part_of(show, done, len(columns))) for done, column in enumerate(columns)
    ]
    if len(pooled) == 1:
        return pooled[0]
    one, other = pooled
    return np.concatenate([np.abs(one - other), one * other], axis=2)


def _answers(numeric: bool, states: np.ndarray, targets: list[Any], questions: np.ndarray, labels: int) -> np.ndarray:
    """Return log-probabilities float64[rows, labels], or with ``numeric`` numbers float64[rows, 1]."""
    # Standardized, so that one regularization fits layers of any scale.
    states, questions = states.astype(np.float64), questions.astype(np.float64)
    if numeric:
        ridge = make_pipeline(StandardScaler(), Ridge(alpha=REGRESSION_ALPHA)).fit(states, targets)
        numbers: np.ndarray = ridge.predict(questions)[:, None]
        return numbers
    head = LogisticRegression(C=CLASSIFICATION_C, max_iter=1000, random_state=0)
    logistic = make_pipeline(StandardScaler(), head).fit(states, targets)
    log_probabilities = np.full((len(questions), labels), NEVER)
    log_probabilities[:, logistic.classes_] = logistic.predict_log_proba(questions)
    return log_probabilities


def rates_pairs(task: Task) -> bool:
    """Return whether the task has a number for each pair of texts, as STS-B has."""
    return kind_of(task).numeric and len(task.text) == 2


def probe_similarity(frozen: FrozenModel, data: TaskRows, length: int, show: Show) -> SimilarityProbe:
    """Correlate cosine similarities with the numbers of the dev file, layer by layer, without training.

    ``rates_pairs`` is true for the task.
    """
    sentences = list(dict.fromkeys(text for texts in data.dev.texts for text in texts))
    place = {sentence: index for index, sentence in enumerate(sentences)}
    pairs = np.array([[place[text] for text in texts] for texts in data.dev.texts])
    layers = []
    for layer, states in enumerate(pooled_states(frozen, sentences, length, show).astype(np.float64)):
        scores = [
            regression_scores(data.dev.targets, cosines(each[pairs[:, 0]], each[pairs[:, 1]]).tolist())["spearman"]
            for each in (states, states - states.mean(axis=0))
        ]
        layers.append(SimilarityScore(layer=layer, spearman=scores[0], centred=scores[1]))
    return SimilarityProbe(task=data.task.name, pairs=len(pairs), layers=layers)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return float64[N]: the cosine between row i of ``one`` and of ``other``, both [N, D]; 0 for a zero vector."""
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    products = (one * other).sum(axis=1)
    return np.divide(products, sizes, out=np.zeros(len(one)), where=sizes > 0).round(COSINE_DIGITS)
