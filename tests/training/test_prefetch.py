"""Prefetched sequences equal those loaded on request, and are used only for a matching request."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_run import equal, journaled, training

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.training.prefetch import Prefetch
from daybreak.training.step import Training


def watched(made: Training, *, until: float = 2.0) -> tuple[Training, list[tuple[str, int, float]]]:
    """The same run with rows that change at progress ``until``, and which thread made which."""
    inner, asked = made.phases[0].take, []

    def take(position: int, rows: int, progress: float) -> Batch:
        asked.append((threading.current_thread().name.partition("_")[0], position, progress))
        batch = inner(position, rows, progress)
        return replace(batch, input_ids=batch.input_ids[:, ::-1].copy()) if progress < until else batch

    phase = replace(made.phases[0], take=take, view=lambda progress: progress < until)
    return replace(made, phases=(phase,)), asked


@pytest.mark.parametrize("until", [0.0, 0.5])
def test_a_run_that_reads_ahead_is_the_same_run(until: float, tmp_path: Path) -> None:
    plain, _ = watched(training(tmp_path / "plain"), until=until)
    journaled(plain)
    ahead, asked = watched(training(tmp_path / "ahead", prefetch=Prefetch()), until=until)
    journaled(ahead)
    assert equal(plain, ahead)
    # The first step, and the one at which the rows change: what was read ahead for it was made for other rows.
    mine = [position for thread, position, _ in asked if thread != "prefetch"]
    assert mine == ([0] if until == 0 else [0, 15 * 8])


def test_rows_whose_dependence_is_unknown_are_not_read_ahead(tmp_path: Path) -> None:
    made, asked = watched(training(tmp_path, prefetch=Prefetch()))
    journaled(replace(made, phases=(replace(made.phases[0], view=None),)))
    assert {thread for thread, *_ in asked} == {"MainThread"}


def test_damaged_rows_fail_when_they_are_asked_for() -> None:
    def damaged() -> Batch:
        raise UserError("The file was changed.", "Prepare it again.")

    prefetch, good = Prefetch(), Batch(input_ids=np.zeros((1, 2), np.int64))
    prefetch.start(1, damaged)
    assert prefetch.take(2, lambda: good) is good  # rows 1 are never asked for
    prefetch.start(3, damaged)
    with pytest.raises(UserError):
        prefetch.take(3, lambda: good)
