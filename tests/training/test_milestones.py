"""Checkpoints that stay: the best, from before the decay, from near the end, and when another process is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_run import Around, Neighbours, equal, journaled, newest, replayed, training, weights

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import PeerLost, UserError
from daybreak.core.run_folder import RunFolder
from daybreak.training import loop
from daybreak.training.clock import reserve_for
from daybreak.training.loop import fit
from daybreak.training.phases import SecondPhase
from daybreak.training.schedule import Trapezoid
from daybreak.training.step import Training

pytestmark = pytest.mark.usefixtures("checkpoint_each_step")


def test_the_checkpoint_of_the_lowest_interim_loss_is_kept(tmp_path: Path) -> None:
    losses = iter([5.0, 4.0, 4.5, 3.0, 3.0, float("nan"), 3.5, 6.0, 7.0])
    made = training(tmp_path, steps=40, marks=9)
    measure = made.validation.measure
    made.validation.measure = lambda *a, **k: replace(measure(*a, **k), loss=next(losses))
    at: dict[int, list[torch.Tensor]] = {}
    made.optimizer.register_step_post_hook(lambda *_: at.setdefault(len(at) + 1, weights(made)))
    done = journaled(made)
    assert done.best == 3.0
    assert [path.name for path in RunFolder(tmp_path).best.iterdir()] == ["step-000000016"]
    other = training(tmp_path)
    progress = newest(RunFolder(tmp_path).best, other)
    assert (progress.step, progress.best) == (16, 3.0)
    assert all(torch.equal(a, b) for a, b in zip(at[16], weights(other), strict=True))


def test_checkpoints_are_kept_before_the_decay_and_near_the_end(tmp_path: Path) -> None:
    made = training(tmp_path, schedule=Trapezoid(warmup=0.1, decay=0.4))
    done = journaled(made)
    run = RunFolder(tmp_path)
    assert [path.name for path in run.branch.iterdir()] == ["step-000000018"] and done.branched_at == 18 / 30
    assert [path.name for path in run.late.iterdir()] == ["step-000000027"] and done.late_at == 27 / 30
    for folder in (run.branch, run.late):
        rest = training(tmp_path)
        progress = newest(folder, rest)
        # From there the run comes out as it did.
        rest = replace(rest, run=None, schedule=made.schedule)
        assert fit(rest, progress).step == 30 and equal(made, rest)


def test_the_checkpoint_before_the_decay_is_from_before_that_of_the_second_phase(tmp_path: Path) -> None:
    """With a schedule of its own, which begins at step 15; the rate of the first phase falls to 0 before."""
    second = SecondPhase(start=0.5, length=12, lr=5e-3)
    made = training(tmp_path, schedule=Trapezoid(warmup=0.1, decay=0.75), phase2=second)
    done = journaled(replace(made, phases=made.phases * 2))
    assert [path.name for path in RunFolder(tmp_path).branch.iterdir()] == ["step-000000019"]
    assert (done.second_from, done.branched_at) == (15 / 30, 19 / 30)


def test_a_replay_writes_nothing(tmp_path: Path) -> None:
    journaled(training(tmp_path / "run"))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    states = [path.read_bytes() for path in before]
    (tmp_path / "again").mkdir()
    replayed(training(tmp_path / "again"), tmp_path / "run")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    assert [path.read_bytes() for path in before] == states


@dataclass(frozen=True, kw_only=True)
class Lonely(Around):
    """Another process ends while row ``row`` is worked on."""

    row: int

    def loss(self, model: Encoder, batch: Batch, *, position: int, **more: Any) -> LossSum:
        if position == self.row:
            raise PeerLost("Another process of this run ended.")
        return self.inner.loss(model, batch, position=position, **more)


@pytest.mark.parametrize("step", [7, 15])
def test_a_lost_process_leaves_a_checkpoint_of_the_last_whole_step(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 15 would have been the first of a second phase, with an optimizer and a schedule of its own."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)

    def two(folder: str, **changes: Any) -> Training:
        made = training(tmp_path / folder, phase2=SecondPhase(start=0.5, length=12, lr=5e-3), **changes)
        return replace(made, phases=made.phases * 2)

    whole = two("whole")
    journaled(whole)
    made = two("run", objective=Lonely(inner=Neighbours(), row=8 * step))
    with pytest.raises(UserError, match=rf"ended\. The checkpoint of step {step} is saved\.") as error:
        journaled(made)
    assert "fewer processes" in error.value.remedy
    rest = two("run")
    progress = newest(RunFolder(tmp_path / "run").checkpoints, rest)
    assert (progress.step, progress.second_from) == (step, None)
    fit(rest, progress)
    assert equal(whole, rest)


def test_one_stall_in_a_validation_does_not_move_the_end_of_the_run(tmp_path: Path) -> None:
    """A few sequences are validated in between, so a stall of one second looks like minutes for all of them."""
    made = training(tmp_path)
    made.validation.row_seconds = 0.01
    timer = loop.CheckpointTimer(made.validation.row_seconds)
    timer.save_seconds.add(0.1)
    reserves = []
    for seconds in (1.0, 0.02, 0.02):
        timer.row_seconds.add(seconds)
        loop.keep_back(made, timer)
        reserves.append(made.clock.reserve)
    usual = [reserve_for(validation=row * made.validation.rows, save=0.1, step=0.0) for row in (0.01, 0.02, 0.02)]
    assert reserves == pytest.approx(usual)


def test_the_reserve_follows_the_steps_of_the_second_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take several times as long as those of before, and the last one must not overrun the budget."""
    seen: list[list[float]] = []
    monkeypatch.setattr(loop, "keep_back", lambda _, timer: seen.append(list(timer.step_seconds.values)))
    made = training(tmp_path, phase2=SecondPhase(start=0.5, length=12))
    journaled(replace(made, phases=made.phases * 2))
    assert [len(steps) for steps in seen] == [1]


def test_the_best_checkpoints_of_a_run_take_little_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of six minutes on a GPU has a new best every 25 seconds, and needs 1.2 to write it."""
    monkeypatch.setattr(loop, "CHECKPOINT_FRACTION", 0.005)
    timer, kept = loop.CheckpointTimer(), []
    timer.save_seconds.add(1.2)
    for mark in range(1, 60):
        if timer.may_keep_best(25.0 * mark):
            timer.best_kept_at = 25.0 * mark
            kept.append(25 * mark)
    assert kept == [250, 500, 750, 1000, 1250] and 1.2 * len(kept) <= loop.CHECKPOINT_FRACTION * 1475
    timer.save_seconds.add(0.01)
    assert timer.may_keep_best(1253.0) and not timer.may_keep_best(1251.0)
