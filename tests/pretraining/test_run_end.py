"""Which model is advised at the end of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daybreak.core.run_folder import RunFolder
from daybreak.pretraining.run_end import _keep_best
from daybreak.schemas.run import ValidationRecord
from daybreak.training.checkpoint import START

FINAL = ValidationRecord(
    step=9, elapsed=9, progress=1, tokens=9, loss=5.286, accuracy=0.2, positions=9, distinct=3, unigram_loss=7.0,
    most_frequent_fraction=0.05, final=True, seconds=1,
)  # fmt: skip


@pytest.mark.parametrize(("interim", "advised"), [(5.09, False), (5.2, True), (None, True)])
def test_the_best_is_compared_with_the_end_on_the_same_rows(
    interim: float | None, advised: bool, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best interim loss of 5.085 is of easier rows than the final 5.286, which is no rise."""
    run = RunFolder(tmp_path)
    run.best.mkdir()
    _keep_best(run, replace(START, best=5.085), replace(FINAL, interim_loss=interim))
    assert ("--best" in capsys.readouterr().out) == advised == run.best.exists()
