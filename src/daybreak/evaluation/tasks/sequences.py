"""Classification and regression of a text or a pair of texts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import log_softmax
from torch.nn import functional

from daybreak.evaluation.scoring.metrics import (
    METRICS,
    calibration_error,
    classification_scores,
    most_frequent,
    regression_scores,
)
from daybreak.evaluation.tasks.batches import EncodedRows, check_ids
from daybreak.evaluation.tasks.tables import read_table
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows, load_table
from daybreak.evaluation.tasks.task_kind import Kind


class OneOfSeveral(Kind):
    """Kinds with one logit per class, trained with cross-entropy.

    A target is a class id, or in training rows the C probabilities of the classes.
    """

    def targets(self, rows: EncodedRows, indices: Sequence[int], width: int) -> torch.Tensor:
        return torch.tensor([rows.targets[index] for index in indices])

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.logits.float(), targets)


class _Sequences(Kind):
    head = "ForSequenceClassification"

    def load(self, task: Task) -> TaskRows:
        return load_table(task, numbers=self.numeric)

    def load_unlabeled(self, task: Task, name: str) -> LabeledRows:
        (found,) = (file for file in task.unlabeled if file.name == name)
        cells = read_table(found.path, found.text, format=found.format, header=True, whole=True)
        return LabeledRows(cells.rows, [0] * len(cells.rows))

    def encode(self, tokenizer: Any, rows: LabeledRows, length: int, vocabulary: int) -> EncodedRows:
        """Truncate pairs from the longer text first."""
        columns = [list(column) for column in zip(*rows.texts)]
        features = dict(tokenizer(*columns, truncation="longest_first", max_length=length))
        ids = features["input_ids"]
        check_ids(ids, vocabulary)
        return EncodedRows(features, list(rows.targets), [len(row) for row in ids], rows)


def with_segments(rows: EncodedRows, tokenizer: Any) -> EncodedRows:
    """Add the input ``segments`` to pairs: 1 and 2 on the tokens before and after the first separator, 0 on [CLS] and
    separators.

    A saved classifier finds them in the same way, because it gets nothing but the ids (``modeling_classifier``). So
    both agree on a text that contains a separator, as in "one turn [SEP] another".
    """
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    segments = []
    for ids in rows.features["input_ids"]:
        first = ids.index(sep) if sep in ids else len(ids)
        segments.append([0 if id in (cls, sep) else 1 + (place > first) for place, id in enumerate(ids)])
    return replace(rows, features={**rows.features, "segments": segments})


def confidence_of(logits: np.ndarray, targets: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each row the predicted class, its probability, and the negative log-likelihood of the target in nats.

    ``logits`` are float64[R, C], ``targets`` R class ids.
    """
    logs = log_softmax(logits, axis=1)
    everyone = np.arange(len(logs))
    best = logs.argmax(axis=1)
    return best, np.exp(logs[everyone, best]), -logs[everyone, np.asarray(targets)]


def confidence_scores(
    targets: np.ndarray, answers: np.ndarray, confidence: np.ndarray, nll: np.ndarray
) -> dict[str, float]:
    """Return calibration error and mean negative log-likelihood from float64[R] each; empty without probabilities."""
    if np.isnan(confidence).any():
        return {}
    error = calibration_error(confidence, targets == answers)
    return {"calibration_error": error, "nll": float(nll.mean())}


class Classification(OneOfSeveral, _Sequences):
    """One label per row."""

    name: ClassVar[str] = "classification"
    metrics = METRICS["classification"]
    headline = "accuracy"
    columns = ("target", "answer", "lead of label id 1", "confidence", "nll")
    """The lead is the logit difference to label id 0; the confidence is the probability of the prediction; nll is the
    negative log-likelihood of the target in nats. With three labels or more the log-probability of each follows."""

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        super().configure(config, labels)
        config.problem_type = "single_label_classification"

    def evaluate(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
        # For two labels the lead orders rows like the probability. Probabilities near 1 would lose their order when
        # they are rounded, and the area under the ROC curve needs it.
        return self._table(np.stack(answers).astype(np.float64), rows.targets)

    def _table(self, logits: np.ndarray, targets: Sequence[int]) -> np.ndarray:
        best, confidence, nll = confidence_of(logits, targets)
        columns = [targets, best, logits[:, 1] - logits[:, 0], confidence, nll]
        if logits.shape[1] > 2:
            columns.extend(log_softmax(logits, axis=1).T)
        return np.stack(columns, axis=1).astype(np.float64)

    def mean_prediction(self, first: np.ndarray, second: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """The mean of the probabilities."""
        known = len(self.columns)
        logs = [
            table[:, known:] if len(labels) > 2 else log_softmax(np.stack((0 * table[:, 2], table[:, 2]), 1), axis=1)
            for table in (first, second)
        ]
        return self._table(np.logaddexp(*logs), first[:, 0].astype(int).tolist())

    def constant(self, data: TaskRows, rows: LabeledRows) -> np.ndarray:
        answer = most_frequent(data.train.targets, data.task.metric)
        table = np.full((len(rows), len(self.columns)), np.nan)
        table[:, 0], table[:, 1], table[:, 2] = rows.targets, answer, answer == 1
        return table

    def score(self, scored: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        """Return the metrics; with probabilities also ``calibration_error`` and ``nll``, where less is better."""
        targets, answers = scored[:, 0].astype(int).tolist(), scored[:, 1].astype(int).tolist()
        leads = scored[:, 2].tolist() if len(labels) == 2 else None
        return classification_scores(len(labels), targets, answers, leads) | confidence_scores(
            *scored[:, [0, 1, 3, 4]].T
        )

    def predictions(self, answers: Sequence[np.ndarray]) -> list[float]:
        return np.stack(answers).argmax(axis=1).astype(float).tolist()


class Regression(_Sequences):
    """One number per row, trained with the mean squared error."""

    name: ClassVar[str] = "regression"
    metrics = METRICS["regression"]
    headline = "spearman"
    columns = ("target", "answer")
    numeric = True
    exact = True

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        config.num_labels = 1
        config.problem_type = "regression"

    def targets(self, rows: EncodedRows, indices: Sequence[int], width: int) -> torch.Tensor:
        return torch.tensor([rows.targets[index] for index in indices], dtype=torch.float32)

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        # squeeze(-1), because squeeze() would also remove the batch dimension of a single row.
        return functional.mse_loss(outputs.logits.float().squeeze(-1), targets)

    def evaluate(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
        return np.stack([rows.targets, np.stack(answers)[:, 0]], axis=1, dtype=np.float64)

    def mean_prediction(self, first: np.ndarray, second: np.ndarray, labels: Sequence[str]) -> np.ndarray | None:
        return (first + second) / 2

    def constant(self, data: TaskRows, rows: LabeledRows) -> np.ndarray:
        answer = statistics.fmean(data.train.targets)
        return np.stack([rows.targets, np.full(len(rows), answer)], axis=1, dtype=np.float64)

    def score(self, scored: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        return regression_scores(scored[:, 0].tolist(), scored[:, 1].tolist())

    def predictions(self, answers: Sequence[np.ndarray]) -> list[float]:
        return np.stack(answers)[:, 0].astype(float).tolist()
