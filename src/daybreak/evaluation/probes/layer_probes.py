"""A linear model on each layer's frozen states: what the encoder knows, and where (Alain and Bengio 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.cells import training_subset
from daybreak.evaluation.probes.frozen import FrozenModel, Show, part_of, pooled_states
from daybreak.evaluation.tasks.batches import EncodedRows
from daybreak.evaluation.tasks.kinds import kind_of
from daybreak.evaluation.tasks.task import LabelledRows, Task, TaskRows
from daybreak.schemas.probes import LayerProbe, LayerScore

KINDS_PROBED = ("classification", "regression")
CLASSIFICATION_C = 0.01
"""Inverse strength of the logistic regression's penalty, scikit-learn's C, on standardised features."""
REGRESSION_ALPHA = 1000.0
"""Strength of the ridge regression's penalty, likewise."""
NEVER = -700.0
"""Logarithm of the chance of a label that the training rows do not have; its exponential is still above 0."""


def check_probed(task: Task) -> None:
    """Refuse a task whose answer is not one label or number for a text.

    Raises:
        UserError: it is such a task.
    """
    if task.kind not in KINDS_PROBED:
        raise UserError(
            f"Task '{task.name}' is of the kind {task.kind}, which no linear probe on pooled states can answer.",
            f"Probe tasks of {' or '.join(KINDS_PROBED)}, or fine-tune on this one with daybreak evaluate.",
        )


def probed_rows(data: TaskRows, most: int) -> LabelledRows:
    """The training rows that the probes learn from: the first ``most`` of the shuffle that fine-tuning takes too.

    Raises:
        UserError: they all have one label.
    """
    rows = training_subset(data.train, most)
    if data.task.kind == "classification" and len(set(rows.targets)) < 2:
        raise UserError(
            f"The {len(rows)} training rows of '{data.task.name}' to probe with all have the label "
            f"'{data.labels[rows.targets[0]]}'.",
            "Take more with --rows.",
        )
    return rows


def probe_layers(frozen: FrozenModel, data: TaskRows, train: LabelledRows, length: int, show: Show) -> LayerProbe:
    """Fit one linear model a layer on ``train`` and evaluate each on the whole dev file.

    Args:
        length: tokens of a text at most.
    """
    task, kind = data.task, kind_of(data.task)
    known = text_features(frozen, train.texts, length, part_of(show, 0, 2))
    asked = text_features(frozen, data.dev.texts, length, part_of(show, 1, 2))
    judged = EncodedRows({}, data.dev.targets, [], data.dev)
    layers = []
    for layer, (features, questions) in enumerate(zip(known, asked, strict=True)):
        answers = list(_answers(task.kind, features, train.targets, questions, len(data.labels)))
        table = kind.evaluate(judged, answers, data.labels)
        layers.append(LayerScore(layer=layer, score=kind.score(table, data.labels)[task.metric]))
    return LayerProbe(
        task=task.name,
        kind=task.kind,
        metric=task.metric,
        constant=kind.score(kind.constant(data, data.dev), data.labels)[task.metric],
        train_rows=len(train),
        dev_rows=len(data.dev),
        layers=layers,
    )


def text_features(frozen: FrozenModel, texts: Sequence[tuple[str, ...]], length: int, show: Show) -> np.ndarray:
    """What the linear models see, float32[layers + 1, N, F]: the mean-pooled states of each text.

    Of two texts u and v, each read alone, it is [|u - v|, u * v], as in SentEval (Conneau and Kiela 2018,
    arXiv:1803.05449, section 3): a linear model cannot compare what was pooled together.
    """
    columns = list(zip(*texts))
    pooled = [
        pooled_states(frozen, column, length, part_of(show, done, len(columns))) for done, column in enumerate(columns)
    ]
    if len(pooled) == 1:
        return pooled[0]
    one, other = pooled
    return np.concatenate([np.abs(one - other), one * other], axis=2)


def _answers(kind: str, states: np.ndarray, targets: list[Any], questions: np.ndarray, labels: int) -> np.ndarray:
    """float64[rows, labels] of log chances, or float64[rows, 1] of numbers."""
    # In float64, for the solver's sake; standardised, so that one penalty suits layers of any scale.
    states, questions = states.astype(np.float64), questions.astype(np.float64)
    if kind == "regression":
        ridge = make_pipeline(StandardScaler(), Ridge(alpha=REGRESSION_ALPHA)).fit(states, targets)
        numbers: np.ndarray = ridge.predict(questions)[:, None]
        return numbers
    head = LogisticRegression(C=CLASSIFICATION_C, max_iter=1000, random_state=0)
    logistic = make_pipeline(StandardScaler(), head).fit(states, targets)
    chances = np.full((len(questions), labels), NEVER)
    chances[:, logistic.classes_] = logistic.predict_log_proba(questions)
    return chances
