"""The interface of a kind of task; one training loop serves all kinds.

``load`` reads the files into rows, ``encode`` turns rows into samples of token ids, ``collate`` makes a batch, ``loss``
trains, ``answers`` predicts, ``evaluate`` compares the predictions with the targets row by row, and ``score`` computes
the metrics. The values of ``evaluate`` are kept (numbers, never text), so scores can be computed on resampled rows.

A new kind is a class here and an entry of ``kinds.KINDS``. ``scoring.resampling.recount`` computes its metrics on
resampled rows, which comparisons of models need. The bag of words, the heads of the protocols and the linear probes
serve every kind that is ``numeric`` or ``OneOfSeveral``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows


class Kind(ABC):
    """One kind of task. R rows; N samples; C labels."""

    name: ClassVar[str]
    """Name in task files and results."""
    metrics: ClassVar[tuple[str, ...]]
    """Possible headline metrics; higher is better."""
    headline: ClassVar[str]
    """Default headline metric."""
    head: ClassVar[str]
    """Suffix of the transformers class with such a head: ``ForSequenceClassification``."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of ``evaluate``, if their number does not depend on the task."""
    numeric: ClassVar[bool] = False
    """The target is a number, and the model's only output predicts it."""
    exact: ClassVar[bool] = False
    """Always train in float32: the precision of bfloat16 is too low for a rank correlation."""

    @abstractmethod
    def load(self, task: Task) -> TaskRows:
        """Read the task's files."""

    def load_unlabeled(self, task: Task, name: str) -> LabeledRows:
        """Return all rows of the unlabeled file ``name`` in file order, with 0 as targets.

        Raises:
            NotImplementedError: this kind has no such files.
        """
        raise NotImplementedError(f"{self.name} has no answers for a submission")

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        """Set the fields of a transformers config that the head needs."""
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: index for index, name in enumerate(labels)}

    @abstractmethod
    def encode(self, tokenizer: Any, rows: LabeledRows, length: int, vocabulary: int) -> EncodedRows:
        """Tokenize the rows to at most ``length`` tokens per sequence, special tokens included."""

    def collate(self, padding: Padding, rows: EncodedRows, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the model inputs of these samples, padded to the longest."""
        return {name: padding.pad(name, [values[index] for index in indices]) for name, values in rows.features.items()}

    @abstractmethod
    def targets(self, rows: EncodedRows, indices: Sequence[int], width: int) -> torch.Tensor:
        """Return the targets of these samples, in a batch whose sequences have ``width`` tokens."""

    @abstractmethod
    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch from the model's outputs."""

    def answers(self, outputs: Any) -> list[np.ndarray]:
        """Return the model's output for each sample of a batch, float32, possibly with padding."""
        return list(outputs.logits.float().cpu().numpy())

    @abstractmethod
    def evaluate(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
        """Return float64[R, k], the values of each row that scores are computed from; ``answers`` is per sample."""

    def mean_prediction(self, first: np.ndarray, second: np.ndarray, labels: Sequence[str]) -> np.ndarray | None:
        """Return what ``evaluate`` returns for the mean of two models' predictions, from what it returned for each.

        None if these values do not determine it.
        """
        return None

    @abstractmethod
    def constant(self, data: TaskRows, rows: LabeledRows) -> np.ndarray:
        """Return what ``evaluate`` returns for the best constant prediction."""

    @abstractmethod
    def score(self, scored: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        """Return every metric of any selection of the rows of ``evaluate``."""

    def predictions(self, answers: Sequence[np.ndarray]) -> list[float]:
        """Return one class id or number per row for a submission.

        Raises:
            NotImplementedError: a prediction of this kind is not a single number.
        """
        raise NotImplementedError(f"{self.name} has no answers for a submission")
