"""Two phases: when the second begins, what changes with it, and that a resumed run knows where it was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_run import Neighbours, Recorded, Stopped, Watch, equal, journaled, lines, newest, rows_of, training

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError
from daybreak.core.serialization import from_dict, to_dict
from daybreak.data.sequences.views import ViewRows
from daybreak.recipe import load_recipe
from daybreak.training import checkpoint
from daybreak.training.loop import fit
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.phases import LossHistory, SecondPhase, schedule_progress, second_phase_starts
from daybreak.training.schedule import Ramp, Trapezoid


def same(progress: float) -> None:
    """The conditions of a run that trains the same from start to end."""


@dataclass(frozen=True, kw_only=True)
class Lazy(Neighbours):
    """Half of the targets stay visible, and the loss says so."""

    @property
    def given(self) -> float:
        return 0.5

    def loss(self, model: Encoder, batch: Batch, **more: Any) -> LossSum:
        found = super().loss(model, batch, **more)
        return replace(found, sum=0.5 * found.sum)


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


def test_each_phase_has_its_own_peak_rate(tmp_path: Path) -> None:
    watch = Watch()
    made = two(tmp_path, SecondPhase(start=0.6, length=24, batch=4, lr=3e-3), monitors=(watch,)).training
    fit(made, checkpoint.START)
    for record in watch.steps:
        first = record.progress < 0.6
        peak, inside = (1e-2, record.progress / 0.6) if first else (3e-3, (record.progress - 0.6) / 0.4)
        assert record.learning_rate == pytest.approx(peak * made.schedule(inside), abs=1e-12)


def test_epochs_add_up_over_phases_from_the_runs_own_first_step(tmp_path: Path) -> None:
    """An epoch of the second phase has half as many sequences of twice the length."""
    made = two(tmp_path, SecondPhase(start=0.6, length=24, batch=4)).training
    made = replace(made, phases=(made.phases[0], replace(made.phases[1], rows_per_epoch=500)))
    extending = replace(checkpoint.START, position=5000, first=5000)
    done = fit(made, extending)
    assert made.epochs(done) == pytest.approx(18 * 8 / 1000 + 12 * 4 / 500)
    # A checkpoint of an earlier version does not count them.
    assert made.epochs(replace(done, epochs=None)) == pytest.approx((18 * 8 + 12 * 4) / 1000)


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
    assert not falling.flat(0.4, same) and flat.flat(0.4, same)
    assert not second_phase_starts(SecondPhase(start=0.5), flat, 0.4, 7.0, same)
    assert second_phase_starts(SecondPhase(start=0.5), falling, 0.5, 7.0, same)
    assert second_phase_starts(SecondPhase(start=0.9, when_flat=True), flat, 0.4, 7.0, same)
    assert not second_phase_starts(SecondPhase(start=0.9, when_flat=True), falling, 0.4, 7.0, same)
    assert not second_phase_starts(SecondPhase(), flat, 0.99, 7.0, same)


def test_a_flat_loss_on_the_unigram_plateau_does_not_start_the_second_phase() -> None:
    losses = LossHistory()
    for step in range(400):
        losses = losses.add(step / 1000, 6.3 if step < 100 else 6.2)
    second = SecondPhase(start=0.9, when_flat=True)
    assert losses.flat(0.4, same) and not second_phase_starts(second, losses, 0.4, 6.25, same)
    assert second_phase_starts(second, losses, 0.4, 6.5, same)
    # The plateau does not delay the start that the recipe names.
    assert second_phase_starts(second, losses, 0.9, 6.25, same)


def test_the_plateau_is_that_of_the_training_loss_in_which_some_targets_stay_visible() -> None:
    """A unigram model copies them, so its training loss is a tenth lower with BERT's split."""
    plain, bert = training(None), training(None, objective=Masked(split=(0.8, 0.1, 0.1)))
    assert plain.plateau_loss == plain.validation.unigram_loss
    assert bert.plateau_loss == pytest.approx(0.9 * plain.plateau_loss)


def test_a_run_on_the_plateau_of_its_training_loss_stays_in_the_first_phase(tmp_path: Path) -> None:
    """With a learning rate of nearly 0 and half of the targets visible, the loss is flat from the start, and the
    unigram baseline without visible targets is far above it."""
    seen = two(tmp_path, SecondPhase(length=24, when_flat=True))
    lazy = replace(seen.training, objective=Lazy(), optimizer=torch.optim.SGD(seen.training.model.parameters(), 1e-9))
    assert fit(lazy, checkpoint.START).second_from is None


def test_no_second_phase_starts_within_the_finish(tmp_path: Path) -> None:
    """It would be announced and train no sequence."""
    made = two(tmp_path, SecondPhase(start=0.8, length=24), finish=Finish(start=0.5)).training

    def pairs(position: int, rows: int, progress: float) -> Batch:
        return replace(rows_of(position, rows, 12), passage_ids=np.arange(position, position + rows) // 2)

    made = replace(made, phases=(*made.phases, replace(made.phases[0], take=pairs)))
    assert fit(made, checkpoint.START).second_from is None


@pytest.mark.parametrize("change", [0.15, 0.25, 0.3625])
def test_losses_before_and_after_a_change_of_what_is_trained_do_not_compare(change: float) -> None:
    """The loss rises by a third at the change and then falls steadily."""
    losses, fired = LossHistory(), []
    flagship = replace(training(None), objective=CausalThenMasked(causal_fraction=0.15))
    flagship = replace(flagship, phases=(replace(flagship.phases[0], view=lambda now: now < 0.25),))
    for step in range(1000):
        at = step / 1000
        if losses.flat(at, flagship.conditions):
            fired.append(at)
        losses = losses.add(at, (3.0 if at < change else 4.0) * (1 - 0.3 * at))
    assert fired == []


@pytest.mark.parametrize("name", ["2026-11-25-tiny-30m", "2026-11-24-mini-2h"])
def test_no_recorded_run_of_the_flagship_counts_as_flat(name: str) -> None:
    """Their losses rise at 0.15 (masked tokens), 0.25 (fewer views) and 0.9 (finish), and fall all the time between."""
    record = Path(__file__).parents[2] / "records" / name
    recipe = load_recipe(record)
    made, losses = training(None, objective=recipe.objective, finish=recipe.finish), LossHistory()
    assert isinstance(recipe.rows, ViewRows)
    made = replace(made, phases=(replace(made.phases[0], view=lambda now: now < recipe.rows.until),))
    always, fired = 0, []
    for step in lines(record / "metrics.jsonl"):
        always += losses.flat(step["progress"], same)
        fired += [step["progress"]] if losses.flat(step["progress"], made.conditions) else []
        losses = losses.add(step["progress"], step["loss"])
    assert always > 0 and fired == []


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
    assert schedule_progress(fresh, 0.8, 0.7) == 0.0, "after a return to an earlier step, in a new process"
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
