"""Batches of samples of similar length, so that little is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.task import LabeledRows

CHUNK_BATCHES = 50
"""Samples are sorted by length within chunks of this many batches, which keeps some randomness in every epoch."""
PREDICTION_BATCH = 64


@dataclass(frozen=True)
class EncodedRows:
    """Rows as samples of token ids. A row is one sample, or several windows of a long text."""

    features: dict[str, list[Any]]
    """One entry per sample for each input of the tokenizer: integers, or lists of them for several sequences."""
    targets: list[Any]
    """One entry per sample."""
    lengths: list[int]
    """Tokens of each sample's longest sequence."""
    rows: LabeledRows
    """The rows before encoding."""
    notes: list[Any] = field(default_factory=list)
    """One entry per sample with what its kind needs, such as the row of a window or the first tokens of the words."""

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    def take(self, indices: Sequence[int]) -> EncodedRows:
        """Return the samples at ``indices``; ``rows`` stay whole."""
        return EncodedRows(
            {name: [values[i] for i in indices] for name, values in self.features.items()},
            [self.targets[i] for i in indices],
            [self.lengths[i] for i in indices],
            self.rows,
            [self.notes[i] for i in indices] if self.notes else [],
        )


@dataclass(frozen=True)
class Padding:
    """The padding of a tokenizer; faster than the tokenizer's own method."""

    values: dict[str, int]
    """Padding value of each input."""
    left: bool
    multiple: int = 1
    """Lengths are rounded up to a multiple of this, but not above ``most``."""
    most: int = 0

    @classmethod
    def of(cls, tokenizer: Any) -> Padding:
        values = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        return cls({**values, "attention_mask": 0}, tokenizer.padding_side == "left")

    def pad(self, name: str, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """int64[len(sequences), longest]."""
        longest = max(map(len, sequences))
        width = min(-(-longest // self.multiple) * self.multiple, self.most)
        return padded(sequences, self.values.get(name, 0), self.left, width)


def padded(sequences: Sequence[Sequence[int]], value: int, left: bool = False, width: int = 0) -> torch.Tensor:
    """Return the padded sequences, int64[len(sequences), L]; L is the longest length, or ``width`` if larger."""
    longest = max(width, max(map(len, sequences)))
    rectangle = np.full((len(sequences), longest), value, dtype=np.int64)
    for row, sequence in zip(rectangle, sequences):
        if left:
            row[longest - len(sequence) :] = sequence
        else:
            row[: len(sequence)] = sequence
    return torch.from_numpy(rectangle)


def check_ids(sequences: Sequence[Sequence[int]], vocabulary: int) -> None:
    """Check that all ids are below ``vocabulary``, the size of the model's embedding table."""
    largest = max((max(ids) for ids in sequences if ids), default=0)
    if largest >= vocabulary:
        raise UserError(
            f"The tokenizer makes id {largest}, but the model knows only {vocabulary} tokens.",
            "Put the tokenizer that the model was trained with into its folder.",
        )


def training_batches(lengths: Sequence[int], batch: int, generator: torch.Generator) -> list[list[int]]:
    """Return the batches of one epoch: every index once, similar lengths within a batch, in random order."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    chunk = CHUNK_BATCHES * batch
    batches = []
    for start in range(0, len(order), chunk):
        near = sorted(order[start : start + chunk], key=lambda index: lengths[index])
        batches += [near[i : i + batch] for i in range(0, len(near), batch)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def prediction_batches(lengths: Sequence[int]) -> list[list[int]]:
    """Return batches with every index once, sorted by length."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    return [order[i : i + PREDICTION_BATCH] for i in range(0, len(order), PREDICTION_BATCH)]
