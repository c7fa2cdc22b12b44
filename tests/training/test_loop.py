"""The loop by itself: accumulation, ranks, clipping, marks, records, and what stops it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from daybreak.core import world as worlds
from daybreak.core.batch import Batch
from daybreak.core.budget import Budget
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.core.world import World
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.changes import MachineRecord
from daybreak.schemas.run import Decisions, StepRecord, ValidationRecord
from daybreak.training import checkpoint, loop
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import BudgetClock
from daybreak.training.guard import Health
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.loop import fit, next_mark
from daybreak.training.objectives.objective import CausalThenMasked, Objective, decoded
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.phases import Phase, SecondPhase
from daybreak.training.ramp import Ramp
from daybreak.training.schedule import Trapezoid
from daybreak.training.step import Training, take_step
from daybreak.training.validation import Validation

VOCABULARY, LENGTH, BATCH = 40, 12, 8
USES = ("start", "data", "train", "communicate", "clock", "monitor", "validate", "checkpoint", "lost")


def take(position: int, rows: int, progress: float = 0.0) -> Batch:
    """Row p of the run is a function of p, with a pattern that can be learned."""
    places = np.arange(position, position + rows)[:, None] * 7 + np.arange(LENGTH)[None] * 3
    ids = 5 + (places + places // 11) % (VOCABULARY - 5)
    ids[:, 0] = 2
    return Batch(ids=ids)


@dataclass(frozen=True, kw_only=True)
class Uneven(Objective):
    """Row p of the run has 1 + p % 5 targets, so that a divisor of rows or of equal shares would show."""

    def stage(self, progress: float) -> str:
        return "masked"

    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        return sum(1 + (position + row) % 5 for row in range(len(batch)))

    def loss(self, model: Encoder, batch: Batch, *, position: int, **_: Any) -> LossSum:
        ids = batch.ids
        features = model.features(ids)
        parts = [
            decoded(model, features[row, 1 : 2 + (position + row) % 5], ids[row, 1 : 2 + (position + row) % 5])
            for row in range(len(ids))
        ]
        return LossSum(sum=torch.stack([part.sum for part in parts]).sum(), count=sum(part.count for part in parts))


class Watch:
    """A monitor that keeps what it sees."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.validations: list[ValidationRecord] = []
        self.machines: list[MachineRecord] = []
        self.on_step, self.on_validation = self.steps.append, self.validations.append
        self.on_machine = self.machines.append


def phase(**changes: Any) -> Phase:
    parts = {"take": take, "length": LENGTH, "rows_per_epoch": 1000, "batch": BATCH, "microbatch": BATCH}
    return Phase(**{**parts, **changes})


def training(folder: Path, *, steps: int = 30, world: World | None = None, **changes: Any) -> Training:
    torch.manual_seed(0)
    world = world or World()
    model = ModernEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=12, init_std=0.2).build(VOCABULARY)
    counts = np.ones(VOCABULARY, np.uint64)
    clock = BudgetClock(Budget.parse(f"{steps}steps"), world, started=0.0)
    parts: dict[str, Any] = {
        "model": model, "optimizer": AdamW(lr=1e-2).build(model), "objective": Uneven(),
        "schedule": Trapezoid(warmup=0.2, decay=0.5), "clock": clock, "world": world,
        "phases": (phase(),), "phase2": SecondPhase(), "ramp": Ramp(), "max_grad_norm": 1.0, "seed": 0, "average": None,
        "device": torch.device("cpu"), "validation": Validation(take(10_000, 12), counts, torch.device("cpu")),
        "run": RunFolder(folder), "journal": None, "monitors": (), "time_by_category": dict.fromkeys(USES, 0.0),
    }  # fmt: skip
    parts |= changes
    microbatch = parts["phases"][0].microbatch
    parts.setdefault("decisions", decisions(microbatch=microbatch, world_size=world.size))
    return Training(**{"data_parallel": DataParallel(parts["model"], world), **parts})


def decisions(**changes: Any) -> Decisions:
    """What the loop asks of a run's decisions; no interim validation."""
    made = Decisions(
        device="cpu", threads=torch.get_num_threads(), precision="float32", microbatch=BATCH, world_size=1,
        reserve_seconds=0.0, validation_rows=4, validation_marks=0, matmul_gflops={},
    )  # fmt: skip
    return replace(made, **changes)


def step(made: Training, progress: Progress, at: float) -> tuple[Progress, float, float]:
    """A step that is taken: (progress after it, loss, norm)."""
    found = take_step(made, progress, at)
    assert found.updated
    return found.progress, found.loss, found.norm


def folder_of(made: Training) -> Path:
    assert made.run
    return made.run.checkpoints


def weights(made: Training) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in made.model.parameters()]


def assert_near(left: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    assert max((a - b).abs().max().item() for a, b in zip(left, right, strict=True)) <= tolerance


@pytest.mark.parametrize("microbatch", [1, 2, 3, 5])
def test_microbatches_make_the_same_step(tmp_path: Path, microbatch: int) -> None:
    """Plain SGD, whose step is the gradient itself: AdamW would hide a wrong divisor."""
    found = []
    for size in (BATCH, microbatch):
        made = training(tmp_path, phases=(phase(microbatch=size),), max_grad_norm=1e9)
        made = replace(made, optimizer=torch.optim.SGD(made.model.parameters(), lr=1.0))
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
    assert done.targets == sum(1 + p % 5 for p in range(3, 3 + BATCH))
    assert (done.step, done.position, done.tokens) == (1, 3 + BATCH, BATCH * LENGTH)


def test_the_step_is_the_gradient_of_the_mean_over_targets(tmp_path: Path) -> None:
    made = training(tmp_path, max_grad_norm=1e9, phases=(phase(microbatch=3),))
    made = replace(made, optimizer=torch.optim.SGD(made.model.parameters(), lr=1.0))
    before = weights(made)
    found = Uneven().loss(made.model, take(0, BATCH).on("cpu"), position=0)
    expected = torch.autograd.grad(found.sum / found.count, list(made.model.parameters()))
    _, loss, norm = step(made, checkpoint.START, 0.0)
    assert loss == pytest.approx((found.sum / found.count).item(), rel=1e-5)
    assert norm == pytest.approx(torch.cat([g.reshape(-1) for g in expected]).norm().item(), rel=1e-5)
    assert_near([b - a for b, a in zip(before, weights(made))], list(expected), 1e-6)


@pytest.mark.parametrize(("clip", "factor"), [(1e-3, True), (1e3, False)])
def test_large_gradients_are_clipped_and_small_ones_are_not(tmp_path: Path, clip: float, factor: bool) -> None:
    made = training(tmp_path, max_grad_norm=clip)
    made = replace(made, optimizer=torch.optim.SGD(made.model.parameters(), lr=1.0))
    before = weights(made)
    _, _, norm = step(made, checkpoint.START, 0.0)
    moved = torch.cat([(b - a).reshape(-1) for b, a in zip(before, weights(made))]).norm().item()
    assert moved == pytest.approx(clip if factor else norm, rel=2e-3)
    assert norm > 1e-2


def one_rank(folder: Path) -> None:
    """What each of two processes does; torchrun's variables say which it is."""
    world = worlds.start()
    try:
        made = training(folder, world=world, phases=(phase(microbatch=3),))
        done = fit(made, checkpoint.START)
        torch.save((done.targets, weights(made)), folder / f"rank-{world.rank}.pt")
    finally:
        worlds.stop(world)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    from rendezvous import run_two_ranks  # this file is also run by itself, where it could not be found

    run_two_ranks(__file__, str(tmp_path))
    made = training(tmp_path)
    done = fit(made, checkpoint.START)
    ranks = [torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1)]
    assert ranks[0][0] == ranks[1][0] == done.targets
    assert all(torch.equal(a, b) for a, b in zip(ranks[0][1], ranks[1][1]))
    assert_near(ranks[0][1], weights(made), 1e-5)


def test_the_learning_rate_follows_the_schedule(tmp_path: Path) -> None:
    watch = Watch()
    made = training(tmp_path, monitors=(watch,), record_seconds=0.0)
    fit(made, checkpoint.START)
    assert [record.step for record in watch.steps] == list(range(1, 31))
    for record in watch.steps:
        assert record.progress == (record.step - 1) / 30
        assert record.learning_rate == pytest.approx(1e-2 * made.schedule(record.progress))
        assert record.tokens == record.step * BATCH * LENGTH
        assert record.targets == sum(1 + p % 5 for p in range(record.step * BATCH))


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
    made = training(tmp_path, monitors=(watch,))
    fit(made, checkpoint.START)
    assert [record.step for record in watch.steps] == [4, 8, 12, 16, 20, 24, 28]
    for place, record in enumerate(watch.steps):
        assert record.loss == pytest.approx(np.mean(losses[4 * place : 4 * place + 4]))
        assert record.tokens_per_second == pytest.approx(4 * BATCH * LENGTH / 1.0)
    assert made.time_by_category["train"] == pytest.approx(30 * 0.25)


def test_marks_part_the_run_evenly(tmp_path: Path) -> None:
    made = training(tmp_path, decisions=decisions(validation_marks=4))
    assert [next_mark(made, p) for p in (0.0, 0.1, 0.2, 0.79)] == [0.2, 0.2, 0.4, 0.8]
    assert next_mark(made, 0.8) == next_mark(made, 0.99) == float("inf")
    assert next_mark(training(tmp_path), 0.0) == float("inf")


def test_validations_come_at_the_marks_of_the_masked_stage_only(tmp_path: Path) -> None:
    watch = Watch()
    objective = CausalThenMasked(causal_fraction=0.5)
    nine = decisions(validation_marks=9)
    made = training(tmp_path, steps=40, decisions=nine, objective=objective, monitors=(watch,))
    fit(made, checkpoint.START)
    assert [record.step for record in watch.validations] == [20, 24, 28, 32, 36]
    assert {record.positions for record in watch.validations} == {4 * 2}
    assert made.time_by_category["validate"] > 0


def test_validating_changes_nothing(tmp_path: Path) -> None:
    found = []
    for marks in (0, 9):
        made = training(tmp_path, decisions=decisions(validation_marks=marks))
        fit(made, checkpoint.START)
        found.append(weights(made))
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_checkpoints_come_at_their_interval_and_hold_the_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "CHECKPOINT_FRACTION", 1e9)
    made = training(tmp_path)
    fit(made, checkpoint.START)
    assert sorted(path.name for path in folder_of(made).iterdir()) == ["step-000000029", "step-000000030"]
    again = training(tmp_path)
    progress, _ = checkpoint.load_newest(folder_of(made), again.model, again.optimizer)
    assert progress is not None and progress.position == 30 * BATCH
    assert 0 < progress.time_by_category["train"] <= made.time_by_category["train"]


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]))
