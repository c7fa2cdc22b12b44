"""Runs that go wrong on purpose: rows of NaN, a rate that explodes. They must go on by themselves, and a replay of what
they wrote down must come to the same weights bit for bit.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_run import (
    ROWS,
    Neighbours,
    Poisoned,
    Recorded,
    Stopped,
    Watch,
    descending,
    equal,
    journaled,
    lines,
    newest,
    replayed,
    training,
    weights,
)

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.run import Decisions
from daybreak.training import checkpoint, loop
from daybreak.training.averaging import Averaging, RunningAverage
from daybreak.training.checkpoint import START, Progress
from daybreak.training.clock import Clock, Tick, read_trace
from daybreak.training.loop import fit
from daybreak.training.monitoring.journal import cut_back
from daybreak.training.objectives.objective import Objective
from daybreak.training.recovery import with_change
from daybreak.training.schedule import Schedule, Trapezoid
from daybreak.training.step import Training, take_step

pytestmark = pytest.mark.usefixtures("checkpoint_each_step")

SICK = Poisoned(inner=Neighbours(), first=96, last=131)
"""Steps 12 to 16 give no finite loss: five are skipped, then the run goes back and continues after them."""


@dataclass(frozen=True, kw_only=True)
class Bowl(Objective):
    """Half the squared weights: gradient descent at a rate above 2 diverges, below it converges."""

    def stage(self, progress: float) -> str:
        return "masked"

    def targets(self, batch: Batch, **_: Any) -> int:
        return len(batch)

    def loss(self, model: Encoder, batch: Batch, **_: Any) -> LossSum:
        squares = torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()
        return LossSum(sum=len(batch) * squares / 2, count=len(batch))


def test_a_return_to_a_checkpoint_from_before_a_resume_keeps_the_count_of_resumes(tmp_path: Path) -> None:
    made = training(tmp_path / "run", objective=SICK)
    with pytest.raises(Stopped):
        journaled(Recorded(made, stop=96).training)
    rest = training(tmp_path / "run", objective=SICK)
    progress = newest(RunFolder(tmp_path / "run").checkpoints, rest)
    done = journaled(rest, replace(progress, resumes=progress.resumes + 1))
    assert read_json(RunFolder(tmp_path / "run").decisions, Decisions).changes[0].step == 11 < progress.step == 12
    assert done.resumes == 1


def test_a_step_that_is_not_finite_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    sick = Poisoned(inner=Neighbours(), first=99, last=99)
    made = training(tmp_path / "run", objective=sick)
    states: list[list[torch.Tensor]] = []
    made.optimizer.register_step_post_hook(lambda *_: states.append(weights(made)))
    done = journaled(made)
    run = RunFolder(tmp_path / "run")
    assert (done.step, done.position, done.health.dropped) == (30, 30 * ROWS, 1)
    assert len(states) == 29 and not torch.equal(states[11][0], states[12][0])
    assert [line["step"] for line in lines(run.trace)] == list(range(30))  # still a step of the trace
    metrics = lines(run.metrics)
    assert [line["step"] for line in metrics] == [step for step in range(1, 31) if step != 13]  # row 99 is in step 12
    assert [line["dropped"] for line in metrics] == [0] * 12 + [1] * 17
    assert read_json(run.decisions, Decisions) == made.decisions and made.decisions.changes == []
    again, other = replayed(training(tmp_path / "again", objective=sick), tmp_path / "run")
    assert equal(made, again) and other.health == done.health


def test_a_step_that_is_left_out_leaves_weights_and_moments_as_they_are(tmp_path: Path) -> None:
    made = training(tmp_path, objective=Poisoned(inner=Neighbours(), first=16, last=16), steps=2)
    progress = fit(made, START)
    before, moments = weights(made), checkpoint.optimizer_tensors(made.optimizer)
    moments = {name: tensor.clone() for name, tensor in moments.items()}
    outcome = take_step(made, progress, 0.5)
    assert not outcome.updated and (outcome.progress.step, outcome.progress.position) == (3, 24)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(made), strict=True))
    after = checkpoint.optimizer_tensors(made.optimizer)
    assert moments and all(torch.equal(tensor, after[name]) for name, tensor in moments.items())
    assert all(parameter.grad is None for parameter in made.model.parameters())


def test_rows_that_are_ill_are_passed_over(tmp_path: Path) -> None:
    """Sequences 96 to 131 give no finite loss: five steps are skipped, then the run continues after them."""
    watched = Recorded(training(tmp_path / "run", objective=SICK))
    made = watched.training
    done = journaled(made)
    run = RunFolder(tmp_path / "run")
    # Steps 12 to 16 read rows 96 to 135. Step 11 went well with the weights of checkpoint 11; those of checkpoint 12
    # were never proved.
    (change,) = read_json(run.decisions, Decisions).changes
    assert (change.step, change.rate, change.skip_to, change.microbatch) == (11, 0.5, 136, ROWS)
    assert "diverged at step 17" in change.why
    assert watched.rows == [(8 * step, 8) for step in (*range(17), *range(17, 36))]
    assert (done.step, done.position, done.health.dropped) == (30, 36 * 8, 5)
    assert [line["step"] for line in lines(run.trace)] == list(range(30))
    lost = lines(run.lost_metrics)
    assert [line["step"] for line in lost] == [12]  # of the steps after 11 only this one was taken
    rates = {line["step"]: line["learning_rate"] for line in lines(run.metrics)}
    assert list(rates) == list(range(1, 31))
    for line in lines(run.trace):
        factor = 1.0 if line["step"] < 11 else 0.5
        assert rates[line["step"] + 1] == pytest.approx(factor * 1e-2 * made.schedule(line["progress"]))
    assert made.time_by_category["lost"] > 0
    again, other = replayed(training(tmp_path / "again", objective=SICK), tmp_path / "run")
    assert equal(made, again) and other.position == done.position


@dataclass(frozen=True, kw_only=True)
class Jump(Schedule):
    """A twentieth of the rate first, all of it later."""

    def __call__(self, progress: float, rows: int = 0) -> float:
        return 0.05 if progress < 0.4 else 1.0


def test_going_back_beyond_a_change_of_processes_keeps_those_that_are_there(tmp_path: Path) -> None:
    made = training(tmp_path, objective=SICK)
    journaled(replace(made, decisions=with_change(made.decisions, 14, "resumed", world_size=3, threads=5)))
    (change,) = read_json(RunFolder(tmp_path).decisions, Decisions).changes
    assert (change.step, change.world_size, change.threads, change.rate) == (11, 3, 5, 0.5)


@pytest.mark.parametrize("field", ["machine", "compiled", "torch"])
def test_going_back_beyond_a_resume_elsewhere_keeps_what_changed(tmp_path: Path, field: str) -> None:
    values: dict[str, Any] = {"machine": "Another processor", "compiled": True, "torch": "9.9"}
    made = training(tmp_path, objective=SICK)
    journaled(replace(made, decisions=with_change(made.decisions, 14, "resumed elsewhere", **values)))
    (change,) = read_json(RunFolder(tmp_path).decisions, Decisions).changes
    assert change.step == 11 and getattr(change, field) == values[field]


def exploding(folder: Path, rate: float) -> Training:
    """Gradient descent whose rate becomes ``rate`` when the run has settled; above 2 it diverges."""
    return descending(training(folder, steps=80, objective=Bowl(), max_grad_norm=1e9, schedule=Jump()), rate)


@pytest.mark.parametrize(("rate", "halvings"), [(3.0, 1), (7.0, 2), (13.0, 3)])
def test_a_rate_that_explodes_is_halved_until_it_does_not(tmp_path: Path, rate: float, halvings: int) -> None:
    made = exploding(tmp_path / "run", rate)
    done = journaled(made)
    run = RunFolder(tmp_path / "run")
    changes = read_json(run.decisions, Decisions).changes
    assert changes[-1].rate == 0.5**halvings and done.step == 80
    assert done.health.dropped == 5 * halvings
    final = lines(run.metrics)[-1]
    assert final["loss"] < 1e-6 and final["dropped"] == 5 * halvings
    assert max(line["learning_rate"] for line in lines(run.metrics) if line["step"] > changes[-1].step) < 2.0
    assert [line["step"] for line in lines(run.trace)] == list(range(80))
    assert lines(run.lost_metrics)
    again, _ = replayed(exploding(tmp_path / "again", rate), tmp_path / "run")
    assert equal(made, again)


def test_a_run_that_always_diverges_is_given_up_with_a_remedy(tmp_path: Path) -> None:
    made = exploding(tmp_path, 40.0)
    with pytest.raises(UserError, match=r"diverges at step \d+, also at 0\.125 times its learning rate") as error:
        journaled(made)
    assert "--optimizer.lr 2.5." in error.value.remedy  # a sixteenth
    rates = [change.rate for change in read_json(RunFolder(tmp_path).decisions, Decisions).changes]
    assert rates[-1] == 0.125
    assert list(RunFolder(tmp_path).checkpoints.iterdir())
    assert all(torch.isfinite(tensor).all() for tensor in weights(made))


def test_without_a_checkpoint_there_is_no_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)
    with pytest.raises(UserError, match="diverges at step 5, with no checkpoint to go back to") as error:
        journaled(training(tmp_path, objective=Poisoned(inner=Neighbours(), first=0, last=10**9)))
    assert "--optimizer.lr 0.005" in error.value.remedy


def test_going_back_takes_records_average_and_later_checkpoints_along(tmp_path: Path) -> None:
    """Everything is as if the steps that were undone had never been, but for the time they took."""
    averaging = Averaging(fraction=1.0, every=1)
    made = training(tmp_path / "run", objective=SICK, schedule=Trapezoid(warmup=0.2, decay=0.55))
    made = replace(made, average=RunningAverage(averaging, made.model))
    done = journaled(made)
    run = RunFolder(tmp_path / "run")
    # The decay began at step 14, among those that were undone, and again on the way that counts: the clock stood at
    # 16 / 30 by then, and never goes back.
    assert [path.name for path in run.branch.iterdir()] == ["step-000000011"]
    kept = read_json(run.branch / "step-000000011" / "progress.json", Progress)
    assert kept.position == 136 and done.branched_at == kept.branched_at == 16 / 30
    again = training(tmp_path / "again", objective=SICK, schedule=made.schedule)
    again = replace(again, average=RunningAverage(averaging, again.model))
    again, _ = replayed(again, tmp_path / "run")
    assert made.average and again.average
    ours, theirs = made.average.tensors(), again.average.tensors()
    assert int(ours["count"]) == 30 and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_kill_right_after_going_back_costs_nothing_and_gives_no_time_back(tmp_path: Path) -> None:
    made = training(tmp_path / "run", objective=SICK)
    run = RunFolder(tmp_path / "run")
    with pytest.raises(Stopped):
        journaled(Recorded(made, stop=136).training)
    rest = training(tmp_path / "run", objective=SICK)
    progress = newest(run.checkpoints, rest)
    assert (progress.step, progress.position) == (11, 88)
    assert cut_back(run, progress.step) == 1
    assert progress.elapsed - read_trace(run.trace)[-1].elapsed > progress.time_by_category["lost"] > 0
    done = journaled(replace(rest, decisions=read_json(run.decisions, Decisions)), progress)
    assert (done.step, done.position, done.health.dropped) == (30, 36 * 8, 5)
    again, _ = replayed(training(tmp_path / "again", objective=SICK), tmp_path / "run")
    assert equal(rest, again)


def test_the_checkpoint_to_go_back_to_is_found_again_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none of those to resume from is early enough, the best one is; it must then be among them."""
    made = training(tmp_path, objective=SICK)
    run = RunFolder(tmp_path)
    progress = fit(replace(made, clock=Stop(made, 5)), START)
    shutil.rmtree(run.checkpoints)
    checkpoint.save(run.best, progress, made.model, made.optimizer)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)
    with pytest.raises(Stopped):
        journaled(Recorded(made, stop=136).training, progress)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000005"]
    assert [change.step for change in read_json(run.decisions, Decisions).changes] == [5]


class Stop(Clock):
    """A clock that ends the run before step ``step`` of it has been tried."""

    def __init__(self, made: Training, step: int):
        self._inner, self._step = made.clock, step

    def tick(self, step: int, tokens: int, *, stopping: bool = False) -> Tick:
        found = self._inner.tick(step, tokens, stopping=stopping)
        return Tick(found.elapsed, 1.0) if step >= self._step else found

    def elapsed(self) -> float:
        return self._inner.elapsed()


def test_a_best_loss_without_its_checkpoint_is_forgotten_on_going_back(tmp_path: Path) -> None:
    """The checkpoint was of a step that is repeated, so the next validation keeps one again."""
    done = journaled(training(tmp_path, objective=SICK), replace(START, best=4.0))
    assert read_json(RunFolder(tmp_path).decisions, Decisions).changes and done.best is None


def test_speed_is_never_negative_after_going_back(tmp_path: Path) -> None:
    watch = Watch()
    journaled(training(tmp_path, objective=SICK, monitors=(watch,)))
    assert min(record.tokens_per_second for record in watch.steps) > 0
    assert [record.dropped for record in watch.steps] == [0] * 12 + [5] * 19


def test_a_loss_that_is_never_finite_again_stops_the_run_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three tries at lower rates, the last one takes an eighth of 0.01."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)
    made = training(tmp_path, objective=Poisoned(inner=Neighbours(), first=96, last=10**9))
    checkpoint.save(RunFolder(tmp_path).checkpoints, checkpoint.START, made.model, made.optimizer)
    with pytest.raises(UserError, match=r"diverges at step 5, also at 0\.125 times its learning rate") as error:
        fit(made, checkpoint.START)
    assert "--optimizer.lr 0.00063" in error.value.remedy
    assert [path.name for path in RunFolder(tmp_path).checkpoints.iterdir()] == ["step-000000000"]
    assert all(torch.isfinite(tensor).all() for tensor in weights(made))
