"""Two phases: when the second begins, what changes with it, and that a resumed run knows where it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_run import Recorded, Stopped, equal, journaled, newest, rows_of, training

from daybreak.core.errors import UserError
from daybreak.core.serialization import from_dict, to_dict
from daybreak.training import checkpoint
from daybreak.training.loop import fit
from daybreak.training.objectives.masked import Masked
from daybreak.training.phases import LossHistory, SecondPhase, schedule_progress, second_phase_starts
from daybreak.training.ramp import Ramp
from daybreak.training.schedule import Trapezoid


def two(folder: Path, second: SecondPhase, **changes: Any) -> Recorded:
    """A run of 30 steps: 8 rows of 12 positions a step, then 4 rows of 24."""
    made = training(
        folder, microbatch=4, phase2=second, objective=Masked(), schedule=Trapezoid(warmup=0.0, decay=0.5), **changes
    )
    (first,) = made.phases
    later = replace(first, take=lambda position, rows, _: rows_of(position, rows, 24), length=24, batch=4)
    return Recorded(replace(made, phases=(first, later)))


def test_the_second_phase_has_its_own_rows_batch_and_schedule(tmp_path: Path) -> None:
    seen = two(tmp_path, SecondPhase(start=0.6, length=24, batch=4, lr=1e-3))
    done = fit(seen.training, checkpoint.START)
    assert seen.phases == [0] * 18 + [1] * 12 and [rows for _, rows in seen.rows] == [8] * 18 + [4] * 12
    assert done.position == 18 * 8 + 12 * 4 and done.tokens == 18 * 8 * 12 + 12 * 4 * 24
    assert done.second_from == pytest.approx(0.6)


def test_a_fresh_schedule_has_a_fresh_optimizer_and_the_old_one_goes_on_without(tmp_path: Path) -> None:
    """Adam's own step count says what it remembers."""
    counts = {}
    for lr in (0.0, 1e-3):
        made = two(tmp_path / str(lr), SecondPhase(start=0.6, length=24, lr=lr)).training
        fit(made, checkpoint.START)
        counts[lr] = {float(state["step"]) for state in made.optimizer.state.values()}
    assert counts == {0.0: {30.0}, 1e-3: {12.0}}


@pytest.mark.usefixtures("checkpoint_each_step")
def test_a_run_stopped_in_the_second_phase_goes_on_there(tmp_path: Path) -> None:
    second = SecondPhase(start=0.5, length=24, lr=1e-3)
    whole = two(tmp_path / "whole", second).training
    fit(whole, checkpoint.START)
    part = two(tmp_path / "part", second).training
    with pytest.raises(Stopped):
        fit(Recorded(part, stop=15 * 8 + 5 * 4).training, checkpoint.START)
    rest = two(tmp_path / "part", second).training
    progress = newest(tmp_path / "part" / "checkpoints", rest)
    assert progress.step == 20 and progress.second_from == pytest.approx(0.5)
    fit(rest, progress)
    assert equal(whole, rest)


def test_the_batch_grows_along_its_ramp(tmp_path: Path) -> None:
    made = training(tmp_path, microbatch=4, ramp=Ramp(fraction=0.6))
    seen = Recorded(replace(made, phases=(replace(made.phases[0], batch=16),)))
    done = fit(seen.training, checkpoint.START)
    taken = [rows for _, rows in seen.rows]
    assert taken == [min((int(16 * (step / 30) / (0.6 * 4) + 1e-9) + 1) * 4, 16) for step in range(30)]
    assert done.position == sum(taken)


def test_the_second_phase_begins_at_its_fraction_or_when_the_loss_is_flat() -> None:
    falling, flat = LossHistory(), LossHistory()
    for step in range(400):
        at = step / 1000
        falling = falling.add(at, 8.0 - step / 100)
        flat = flat.add(at, 6.0 if at > 0.1 else 8.0 - 20 * at)
    assert not falling.flat and flat.flat
    assert not second_phase_starts(SecondPhase(start=0.5), flat, 0.39, 7.0)
    assert second_phase_starts(SecondPhase(start=0.5), falling, 0.5, 7.0)
    assert second_phase_starts(SecondPhase(start=0.9, when_flat=True), flat, 0.39, 7.0)
    assert not second_phase_starts(SecondPhase(start=0.9, when_flat=True), falling, 0.39, 7.0)
    assert not second_phase_starts(SecondPhase(), flat, 0.99, 7.0)


def test_a_flat_loss_on_the_unigram_plateau_does_not_start_the_second_phase() -> None:
    losses = LossHistory()
    for step in range(400):
        losses = losses.add(step / 1000, 6.3 if step < 100 else 6.2)
    second = SecondPhase(start=0.9, when_flat=True)
    assert losses.flat and not second_phase_starts(second, losses, 0.39, 6.25)
    assert second_phase_starts(second, losses, 0.39, 6.5)
    assert second_phase_starts(second, losses, 0.9, 6.25)  # the plateau does not delay the start that the recipe names


def test_the_history_survives_json_and_holds_hundredths() -> None:
    history = LossHistory()
    for step in range(250):
        history = history.add(step / 1000, float(step))
    assert len(history.bins) == 24 and history.bins[0] == pytest.approx(np.mean(range(11)))
    assert from_dict(LossHistory, to_dict(history)) == history
    # A step that takes a twentieth of the run fills five bins at once.
    assert len(LossHistory().add(0.05, 3.0).bins) == 5


def test_each_phase_sees_its_own_schedule_from_0_to_1() -> None:
    fresh, same = SecondPhase(start=0.8, lr=1e-3), SecondPhase(start=0.8)
    assert schedule_progress(fresh, None, 0.4) == pytest.approx(0.5)
    assert schedule_progress(fresh, 0.8, 0.8) == 0.0 and schedule_progress(fresh, 0.8, 1.0) == 1.0
    assert schedule_progress(same, None, 0.4) == 0.4 and schedule_progress(same, 0.8, 0.9) == 0.9


@pytest.mark.parametrize("wrong", [{"start": 0.0}, {"start": 1.1}, {"batch": -1}, {"lr": -1e-3}, {"length": 4}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--phase2"):
        SecondPhase(**wrong)


def test_the_journal_holds_every_step_once_over_both_phases(tmp_path: Path) -> None:
    journaled(two(tmp_path, SecondPhase(start=0.6, length=24)).training)
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert len(lines) == 30 and lines[6].startswith('{"step": 6, ') and lines[6].endswith('"progress": 0.2}')
