"""Batches lose no row, pad little, and differ from epoch to epoch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daybreak.evaluation.finetuning.finetune import epoch_batches
from daybreak.evaluation.tasks.batches import prediction_batches, training_batches


@given(st.lists(st.integers(2, 128), min_size=1, max_size=300), st.integers(1, 20), st.integers(0, 99))
def test_batches_hold_every_row_once(lengths: list[int], batch: int, seed: int) -> None:
    epoch = training_batches(lengths, batch, torch.Generator().manual_seed(seed))
    assert sorted(i for indices in epoch for i in indices) == list(range(len(lengths)))
    assert max(map(len, epoch)) <= batch
    assert epoch == training_batches(lengths, batch, torch.Generator().manual_seed(seed))
    assert sorted(i for indices in prediction_batches(lengths) for i in indices) == list(range(len(lengths)))


def test_little_is_padded_and_epochs_differ() -> None:
    chance = random.Random(0)
    lengths = [min(128, 8 + int(chance.expovariate(1 / 30))) for _ in range(2000)]
    generator = torch.Generator().manual_seed(0)
    first, second = (training_batches(lengths, 16, generator) for _ in range(2))
    places = sum(len(indices) * max(lengths[i] for i in indices) for indices in first)
    assert sum(lengths) / places > 0.93
    assert {tuple(sorted(indices)) for indices in first}.isdisjoint(tuple(sorted(indices)) for indices in second)


@given(st.lists(st.integers(2, 128), min_size=1, max_size=300), st.integers(1, 20), st.integers(0, 99))
def test_without_the_last_rows_every_batch_is_full(lengths: list[int], batch: int, seed: int) -> None:
    epoch = epoch_batches(lengths, batch, True, torch.Generator().manual_seed(seed))
    rows = [row for indices in epoch for row in indices]
    if len(lengths) < batch:
        assert sorted(rows) == list(range(len(lengths))), "fewer rows than a batch are one batch"
    else:
        assert {len(indices) for indices in epoch} == {batch}
        assert len(rows) == len(set(rows)) == len(lengths) // batch * batch
    plain = epoch_batches(lengths, batch, False, torch.Generator().manual_seed(seed))
    assert plain == training_batches(lengths, batch, torch.Generator().manual_seed(seed))


def test_the_rows_left_out_are_other_ones_each_time_and_not_the_longest() -> None:
    lengths, generator = list(range(2, 97)), torch.Generator().manual_seed(0)
    left: list[int] = []
    for _ in range(200):
        kept = {row for indices in epoch_batches(lengths, 16, True, generator) for row in indices}
        left += sorted(set(range(len(lengths))) - kept)
    assert len(left) == 200 * (95 % 16)
    assert set(left) == set(range(95))
    assert np.mean([lengths[row] for row in left]) == pytest.approx(np.mean(lengths), abs=3)
