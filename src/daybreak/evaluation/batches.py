"""Rows of similar length side by side, so that little is padded; the caller's order is never lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from daybreak.base.errors import UserError
from daybreak.evaluation.tasks import LabelledRows

CHUNK_BATCHES = 50
"""Rows are sorted by length within chunks of this many batches: little padding, and still a fresh order each epoch."""
PREDICTION_BATCH = 64


@dataclass(frozen=True)
class EncodedRows:
    """Rows as token ids; ``features`` has one list of integers a row for each input that the tokenizer makes."""

    features: dict[str, list[list[int]]]
    targets: list[int] | list[float]
    lengths: list[int]

    def __len__(self) -> int:
        return len(self.lengths)


def encode(tokenizer: Any, rows: LabelledRows, length: int, vocabulary: int) -> EncodedRows:
    """Tokenize once for all seeds and epochs; pairs that are too long lose tokens from the longer text first.

    Raises:
        UserError: an id lies outside the model's embedding table of ``vocabulary`` rows.
    """
    columns = [list(column) for column in zip(*rows.texts)]
    features = dict(tokenizer(*columns, truncation="longest_first", max_length=length))
    ids = features["input_ids"]
    largest = max(map(max, ids))
    if largest >= vocabulary:
        raise UserError(
            f"The tokenizer makes id {largest}, but the model knows only {vocabulary} tokens.",
            "Put the tokenizer that the model was trained with into its folder.",
        )
    return EncodedRows(features, rows.targets, [len(row) for row in ids])


def training_batches(lengths: Sequence[int], batch: int, generator: torch.Generator) -> list[list[int]]:
    """One epoch: every index once, batches of similar length, in random order."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    chunk = CHUNK_BATCHES * batch
    batches = []
    for start in range(0, len(order), chunk):
        near = sorted(order[start : start + chunk], key=lambda index: lengths[index])
        batches += [near[i : i + batch] for i in range(0, len(near), batch)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def prediction_batches(lengths: Sequence[int]) -> list[list[int]]:
    """Every index once, sorted by length."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    return [order[i : i + PREDICTION_BATCH] for i in range(0, len(order), PREDICTION_BATCH)]


def collate(tokenizer: Any, rows: EncodedRows, indices: Sequence[int]) -> dict[str, torch.Tensor]:
    """The inputs of these rows, each padded to the longest: int64[len(indices), longest]."""
    features = {name: [values[index] for index in indices] for name, values in rows.features.items()}
    return dict(tokenizer.pad(features, return_tensors="pt"))
