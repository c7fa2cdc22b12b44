"""What a run says of itself while it goes on."""

from __future__ import annotations

import pytest

from daybreak.base.records import StepRecord
from daybreak.training.monitors import Plateau

PLATEAU = 7.0


def said(capsys: pytest.CaptureFixture[str], *seen: tuple[float, str, float]) -> list[str]:
    """What is said at records of (progress, stage, loss), one after the other."""
    monitor = Plateau(PLATEAU)
    lines = []
    for number, (progress, stage, loss) in enumerate(seen):
        monitor.on_step(
            StepRecord(
                step=number, elapsed=progress, progress=progress, tokens=0, stage=stage, loss=loss, targets=1,
                learning_rate=0.1, gradient_norm=1.0, tokens_per_second=1.0,
            )
        )  # fmt: skip
        lines.append(capsys.readouterr().out)
    return lines


def test_a_run_on_the_plateau_is_told_once_and_after_a_fifth(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, (0.01, "masked", 8.0), (0.19, "masked", 7.0), (0.2, "masked", 6.9), (0.3, "masked", 6.9))
    assert [bool(line) for line in lines] == [False, False, True, False]
    assert "at 20% of the budget the loss is 6.90" in lines[2]


def test_a_run_off_the_plateau_is_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any(said(capsys, (0.01, "causal", 7.2), (0.2, "causal", 6.5), (0.4, "masked", 7.3)))


def test_a_run_that_goes_on_in_its_masked_stage_has_time_to_settle(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any(said(capsys, (0.46, "causal", 7.3), (0.49, "masked", 7.3), (0.6, "masked", 6.8)))
    lines = said(capsys, (0.46, "causal", 7.3), (0.49, "masked", 7.3), (0.6, "masked", 7.0))
    assert [bool(line) for line in lines] == [False, False, True]
