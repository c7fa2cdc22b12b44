"""The loop by itself: accumulation, ranks, clipping, marks, records, and what stops it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_run import LENGTH, ROWS, Neighbours, Watch, assert_near, descending, equal, newest, take, training, weights

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.training import checkpoint, loop
from daybreak.training.averaging import Averaging, RunningAverage
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import reserve_for
from daybreak.training.guard import Health
from daybreak.training.loop import fit, next_mark
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.muon import newton_schulz_dtype
from daybreak.training.schedule import Ramp
from daybreak.training.step import Training, take_step


def step(made: Training, progress: Progress, at: float) -> tuple[Progress, float, float]:
    """A step that is taken: (progress after it, loss, norm)."""
    found = take_step(made, progress, at)
    assert found.updated
    return found.progress, found.loss, found.norm


@pytest.mark.parametrize("microbatch", [1, 2, 3, 5])
def test_microbatches_make_the_same_step(tmp_path: Path, microbatch: int) -> None:
    """Plain SGD, whose step is the gradient itself: AdamW would hide a wrong divisor."""
    found = []
    for size in (ROWS, microbatch):
        made = descending(training(tmp_path, microbatch=size, max_grad_norm=1e9))
        start = replace(checkpoint.START, position=3)
        done, loss, norm = step(made, start, 0.5)
        found.append((weights(made), loss, norm, done))
    (first, loss, norm, done), (second, other_loss, other_norm, other_done) = found
    assert_near(first, second, 1e-6)
    assert (loss, norm) == (pytest.approx(other_loss, rel=1e-6), pytest.approx(other_norm, rel=1e-5))
    assert replace(done, health=Health()) == replace(other_done, health=Health())
    health, other = to_dict(done.health), to_dict(other_done.health)
    assert health.pop("stage") == other.pop("stage") == "masked"
    assert health == pytest.approx(other, rel=1e-5)
    assert done.targets == sum(1 + p % 5 for p in range(3, 3 + ROWS))
    assert (done.step, done.position, done.tokens) == (1, 3 + ROWS, ROWS * LENGTH)


def test_the_step_is_the_gradient_of_the_mean_over_targets(tmp_path: Path) -> None:
    made = descending(training(tmp_path, max_grad_norm=1e9, microbatch=3))
    before = weights(made)
    found = Neighbours().loss(made.model, take(0, ROWS).to("cpu"), position=0)
    expected = torch.autograd.grad(found.sum / found.count, list(made.model.parameters()))
    _, loss, norm = step(made, checkpoint.START, 0.0)
    assert loss == pytest.approx((found.sum / found.count).item(), rel=1e-5)
    assert norm == pytest.approx(torch.cat([g.reshape(-1) for g in expected]).norm().item(), rel=1e-5)
    assert_near([b - a for b, a in zip(before, weights(made))], list(expected), 1e-6)


@dataclass(frozen=True, kw_only=True)
class WithRows(Neighbours):
    """The same, and a mean over sequences, as next-sentence prediction has it: the squared state of [CLS]."""

    @property
    def averages_rows(self) -> bool:
        return True

    def loss(self, model: Encoder, batch: Batch, *, position: int, per_row: float = 1.0, **_: Any) -> LossSum:
        found = super().loss(model, batch, position=position)
        squares = model.features(batch.input_ids)[:, 0].square().sum()
        return LossSum(sum=found.sum + per_row * squares, count=found.count, masked=found.sum.detach())


@pytest.mark.parametrize("microbatch", [ROWS, 3])
def test_a_loss_by_sequence_is_a_mean_over_the_sequences_of_the_step(tmp_path: Path, microbatch: int) -> None:
    made = descending(training(tmp_path, max_grad_norm=1e9, microbatch=microbatch, objective=WithRows()))
    before, batch = weights(made), take(0, ROWS).to("cpu")
    found = Neighbours().loss(made.model, batch, position=0)
    masked, by_row = found.sum / found.count, made.model.features(batch.input_ids)[:, 0].square().sum() / ROWS
    expected = torch.autograd.grad(masked + by_row, list(made.model.parameters()))
    _, loss, _ = step(made, checkpoint.START, 0.0)
    assert loss == pytest.approx(masked.item(), rel=1e-5)  # the recorded loss is that of the targets alone
    assert_near([b - a for b, a in zip(before, weights(made))], list(expected), 1e-5)


@dataclass(frozen=True, kw_only=True)
class Noting(Neighbours):
    """Notes the progress, the position and the seed of torch at each microbatch."""

    progress: list[float]
    seeds: list[tuple[int, int]]

    def loss(self, model: Encoder, batch: Batch, *, position: int, progress: float, **more: Any) -> LossSum:
        self.progress.append(progress)
        self.seeds.append((position, torch.initial_seed()))
        return super().loss(model, batch, position=position, **more)


def test_dropout_is_drawn_by_seed_and_position(tmp_path: Path) -> None:
    noting = Noting(progress=[], seeds=[])
    fit(training(tmp_path, microbatch=4, objective=noting, seed=3), checkpoint.START)
    assert noting.seeds == [(place, 3 * 1_000_003 + place) for place in range(0, 30 * ROWS, 4)]


def test_a_branch_reads_and_learns_from_its_place_in_the_whole_run(tmp_path: Path) -> None:
    noting, read = Noting(progress=[], seeds=[]), []
    made = training(tmp_path, objective=noting, objective_start=0.4)

    def taking(position: int, rows: int, progress: float = 0.0) -> Batch:
        read.append(progress)
        return take(position, rows)

    fit(replace(made, phases=(replace(made.phases[0], take=taking),)), checkpoint.START)
    assert noting.progress == read == pytest.approx([0.4 + 0.6 * number / 30 for number in range(30)])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_optimizer_multiplies_in_the_precision_of_the_run(tmp_path: Path, precision: str) -> None:
    found: list[torch.dtype] = []
    made = training(tmp_path, precision=precision)
    made.optimizer.register_step_pre_hook(lambda *_: found.append(newton_schulz_dtype("cpu")))
    step(made, checkpoint.START, 0.1)
    assert found == [getattr(torch, precision)]


def test_the_finish_has_its_whole_batch_while_that_of_the_run_still_grows() -> None:
    made = training(None, ramp=Ramp(fraction=1.0, batch_multiple=2), finish=Finish(start=0.5))
    made = replace(made, phases=(*made.phases, replace(made.phases[0], batch=12)))
    assert [made.rows_of_step(checkpoint.START, at) for at in (0.0, 0.4999, 0.5)] == [2, 4, 12]


def test_the_average_counts_the_weights_after_each_of_its_steps(tmp_path: Path) -> None:
    made = training(tmp_path)
    average = RunningAverage(Averaging(fraction=1.0, every=7), made.model)
    made = replace(made, average=average)
    after: list[list[torch.Tensor]] = []
    made.optimizer.register_step_post_hook(lambda *_: after.append(weights(made)))
    fit(made, checkpoint.START)
    means = [torch.stack(each).mean(dim=0) for each in zip(*(after[number - 1] for number in (7, 14, 21, 28)))]
    average.put_in(made.model)
    assert_near(weights(made), means, 1e-6)


@pytest.mark.parametrize(("clip", "factor"), [(1e-3, True), (1e3, False)])
def test_large_gradients_are_clipped_and_small_ones_are_not(tmp_path: Path, clip: float, factor: bool) -> None:
    made = descending(training(tmp_path, max_grad_norm=clip))
    before = weights(made)
    _, _, norm = step(made, checkpoint.START, 0.0)
    moved = torch.cat([(b - a).reshape(-1) for b, a in zip(before, weights(made))]).norm().item()
    assert moved == pytest.approx(clip if factor else norm, rel=2e-3)
    assert norm > 1e-2


def test_the_learning_rate_follows_the_schedule(tmp_path: Path) -> None:
    watch = Watch()
    made = training(tmp_path, monitors=(watch,))
    fit(made, checkpoint.START)
    assert [record.step for record in watch.steps] == list(range(1, 31))
    for record in watch.steps:
        assert record.progress == (record.step - 1) / 30
        assert record.learning_rate == pytest.approx(1e-2 * made.schedule(record.progress))
        assert record.tokens == record.step * ROWS * LENGTH
        assert record.targets == sum(1 + p % 5 for p in range(record.step * ROWS))


def test_a_record_is_the_mean_since_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 0.25 s of fake time, so that a record comes every fourth step."""
    now = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    losses: list[float] = []
    inner = take_step

    def slow(*arguments: Any, **more: Any) -> Any:
        now[0] += 0.25
        found = inner(*arguments, **more)
        losses.append(found.loss)
        return found

    monkeypatch.setattr(loop, "take_step", slow)
    watch = Watch()
    made = training(tmp_path, monitors=(watch,), record_seconds=1.0)
    fit(made, checkpoint.START)
    assert [record.step for record in watch.steps] == [4, 8, 12, 16, 20, 24, 28]
    for place, record in enumerate(watch.steps):
        assert record.loss == pytest.approx(np.mean(losses[4 * place : 4 * place + 4]))
        assert record.tokens_per_second == pytest.approx(4 * ROWS * LENGTH / 1.0)
    assert made.time_by_category["train"] == pytest.approx(30 * 0.25)


def test_marks_part_the_run_evenly(tmp_path: Path) -> None:
    made = training(tmp_path, marks=4)
    assert [next_mark(made, p) for p in (0.0, 0.1, 0.2, 0.79)] == [0.2, 0.2, 0.4, 0.8]
    assert next_mark(made, 0.8) == next_mark(made, 0.99) == float("inf")
    assert next_mark(training(tmp_path), 0.0) == float("inf")


def test_validations_come_at_the_marks_outside_of_a_causal_stage(tmp_path: Path) -> None:
    watch = Watch()
    objective = CausalThenMasked(causal_fraction=0.5)
    made = training(tmp_path, steps=40, marks=9, objective=objective, monitors=(watch,))
    fit(made, checkpoint.START)
    assert [record.step for record in watch.validations] == [20, 24, 28, 32, 36]
    assert {record.positions for record in watch.validations} == {4 * 2}
    assert made.time_by_category["validate"] > 0


class Plain(Neighbours):
    """An objective of the user with the arguments that the page names."""

    def loss(  # type: ignore[override]
        self, model: Encoder, batch: Batch, seed: int, position: int, progress: float
    ) -> LossSum:
        return super().loss(model, batch, position=position)


def test_the_loss_of_an_objective_without_a_mean_over_sequences_needs_no_factor(tmp_path: Path) -> None:
    plain, usual = training(tmp_path, objective=Plain()), training(tmp_path)
    assert step(plain, checkpoint.START, 0.5)[1:] == step(usual, checkpoint.START, 0.5)[1:]
    assert equal(plain, usual)


class Spans(Neighbours):
    """An objective of the user with a name of its own for its stage."""

    def stage(self, progress: float) -> str:
        return "spans"


def test_a_stage_of_any_name_but_causal_is_validated(tmp_path: Path) -> None:
    watch = Watch()
    fit(training(tmp_path, marks=4, objective=Spans(), monitors=(watch,)), checkpoint.START)
    assert [record.step for record in watch.validations] == [6, 12, 18, 24]


def test_validating_changes_nothing(tmp_path: Path) -> None:
    found = []
    for marks in (0, 9):
        made = training(tmp_path, marks=marks)
        fit(made, checkpoint.START)
        found.append(made)
    assert equal(*found)


@pytest.mark.usefixtures("checkpoint_each_step")
def test_checkpoints_come_at_their_interval_and_hold_the_sums(tmp_path: Path) -> None:
    made = training(tmp_path)
    fit(made, checkpoint.START)
    folder = RunFolder(tmp_path).checkpoints
    assert sorted(path.name for path in folder.iterdir()) == ["step-000000029", "step-000000030"]
    progress = newest(folder, training(tmp_path))
    assert progress.position == 30 * ROWS
    assert 0 < progress.time_by_category["train"] <= made.time_by_category["train"]


def test_a_write_that_hangs_once_and_a_step_that_is_stopped_change_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second write takes ten minutes and the step before the mark an hour, of usually 0.05 s and 10 s."""
    now, writes, inner = [0.0], dict.fromkeys(range(31), 0.05) | {4: 600.0}, take_step
    saved: list[int] = []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])

    def slow(made: Training, before: Progress, *arguments: Any, **more: Any) -> Any:
        now[0] += 3600.0 if before.step == 14 else 10.0
        return inner(made, before, *arguments, **more)

    def write(made: Training, progress: Progress) -> float:
        now[0] += writes[progress.step]
        saved.append(progress.step)
        return writes[progress.step]

    monkeypatch.setattr(loop, "take_step", slow)
    monkeypatch.setattr(loop, "save", write)
    made = training(tmp_path, marks=1)
    fit(made, checkpoint.START)
    assert saved[:5] == [2, 4, 6, 8, 10] and saved[-1] == 29
    assert made.clock.reserve == pytest.approx(reserve_for(validation=0.0, save=0.05, step=10.0))


def test_the_reserve_of_the_start_holds_until_a_checkpoint_is_written(tmp_path: Path) -> None:
    """As after a resume shortly before the last mark: without a write, its seconds are unknown."""
    made = training(tmp_path, marks=4)
    made.clock.keep_back(7.0)
    fit(made, checkpoint.START)
    assert made.clock.reserve == 7.0


def test_checkpoints_take_at_most_a_two_hundredth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write takes a second, so one is due every 200 seconds: after 21 steps of ten."""
    now, saved, inner = [0.0], [], take_step
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])

    def slow(*arguments: Any, **more: Any) -> Any:
        now[0] += 10.0
        return inner(*arguments, **more)

    def write(made: Training, progress: Progress) -> float:
        now[0] += 1.0
        saved.append(progress.step)
        return 1.0

    monkeypatch.setattr(loop, "take_step", slow)
    monkeypatch.setattr(loop, "save", write)
    fit(training(tmp_path, steps=70), checkpoint.START)
    assert saved == [2, 23, 44, 65]


def test_a_checkpoint_knows_how_much_time_is_kept_for_the_end(tmp_path: Path) -> None:
    made = training(tmp_path)
    made.clock.keep_back(7.0)
    loop.save(made, checkpoint.START)
    assert newest(RunFolder(tmp_path).checkpoints, training(tmp_path)).reserve == 7.0
