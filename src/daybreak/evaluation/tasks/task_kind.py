"""What tells one kind of task from another: a class per kind, and one training loop for all.

The way of a task: ``load`` its files into rows, ``encode`` the rows into samples of token ids, ``collate`` samples into
a batch, ``loss`` to train, ``answers`` to predict, ``evaluate`` the answers row by row, ``score`` the rows. What is
judged is kept (numbers, never text), so that scores can be counted again from any resample of the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.task import LabelledRows, Task, TaskRows


class Kind(ABC):
    """One kind of task. R rows; N samples; C labels."""

    name: ClassVar[str]
    """As task files and results spell it."""
    metrics: ClassVar[tuple[str, ...]]
    """What may be a task's headline; more is better for each."""
    headline: ClassVar[str]
    """The one of them that is taken where a task names none."""
    head: ClassVar[str]
    """The stock classes with such an output, after the family's name: ``ForSequenceClassification``."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of ``evaluate``, where their number does not depend on the task."""
    exact: ClassVar[bool] = False
    """Wants float32 where others compute in bfloat16: 8 bits are too few for a number that is judged by its rank."""

    @abstractmethod
    def load(self, task: Task) -> TaskRows:
        """Read the task's files.

        Raises:
            UserError: a file cannot be used, or there is nothing to learn in it.
        """

    def load_unlabelled(self, task: Task, name: str) -> LabelledRows:
        """The rows of the file ``name`` of ``task.unlabelled``, in file order, none left out; their targets are 0.

        Raises:
            NotImplementedError: no task of this kind has such files.
        """
        raise NotImplementedError(f"{self.name} has no answers for a submission")

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        """Write into a transformers config what the head must know."""
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: index for index, name in enumerate(labels)}

    @abstractmethod
    def encode(self, tokenizer: Any, rows: LabelledRows, length: int, vocabulary: int) -> EncodedRows:
        """Tokenize once for all seeds and epochs, at most ``length`` tokens a sequence, special tokens included.

        Raises:
            UserError: an id lies outside the model's embedding table of ``vocabulary`` rows.
        """

    def collate(self, padding: Padding, rows: EncodedRows, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The model's inputs for these samples, padded to the longest."""
        return {name: padding.pad(name, [values[index] for index in indices]) for name, values in rows.features.items()}

    @abstractmethod
    def targets(self, rows: EncodedRows, indices: Sequence[int], width: int) -> torch.Tensor:
        """What these samples are to become, where the batch's sequences have ``width`` tokens."""

    @abstractmethod
    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch, from the stock model's outputs."""

    def answers(self, outputs: Any) -> list[np.ndarray]:
        """What the stock model says of each sample of a batch, float32; padding may hang on."""
        return list(outputs.logits.float().cpu().numpy())

    @abstractmethod
    def evaluate(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
        """float64[R, k]: for each row what the scores are counted from; ``answers`` has one entry a sample."""

    @abstractmethod
    def constant(self, data: TaskRows, rows: LabelledRows) -> np.ndarray:
        """As ``evaluate``, of the answer that suits the training rows best and ignores the text."""

    @abstractmethod
    def score(self, scored: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        """Every metric, from any selection of scored rows."""

    def predictions(self, answers: Sequence[np.ndarray]) -> list[float]:
        """One class id or number a row, for a submission.

        Raises:
            NotImplementedError: the answer of this kind is no single number.
        """
        raise NotImplementedError(f"{self.name} has no answers for a submission")
