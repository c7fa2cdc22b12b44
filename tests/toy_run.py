"""A run small enough to go wrong on purpose: a model of a few thousand numbers, rows that are a function of place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from daybreak.core.batch import Batch
from daybreak.core.budget import Budget
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.files import read_json, read_json_lines
from daybreak.core.run_folder import RunFolder
from daybreak.core.world import World
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import Decisions, MachineRecord, StepRecord, ValidationRecord
from daybreak.training import checkpoint
from daybreak.training.checkpoint import START, Progress
from daybreak.training.clock import BudgetClock, ReplayClock, read_trace
from daybreak.training.guard import LossScale
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.loop import fit
from daybreak.training.monitoring.journal import Journal
from daybreak.training.objectives.objective import Objective, decoder_loss
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.phases import Phase, SecondPhase
from daybreak.training.schedule import Ramp, Trapezoid
from daybreak.training.step import Training
from daybreak.training.validation import Validation

VOCABULARY, LENGTH, ROWS = 40, 12, 8
USES = ("data", "train", "communicate", "clock", "monitor", "validate", "checkpoint", "lost")


def rows_of(position: int, rows: int, length: int) -> Batch:
    """Row p of the run is a function of p, with a pattern that can be learned."""
    places = np.arange(position, position + rows)[:, None] * 7 + np.arange(length)[None] * 3
    ids = 5 + (places + places // 11) % (VOCABULARY - 5)
    ids[:, 0] = 2
    return Batch(input_ids=ids)


def take(position: int, rows: int, progress: float = 0.0) -> Batch:
    return rows_of(position, rows, LENGTH)


@dataclass(frozen=True, kw_only=True)
class Neighbours(Objective):
    """Each position names the token on its right; row p of the run has 1 + p % 5 such positions."""

    def stage(self, progress: float) -> str:
        return "masked"

    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        return sum(1 + (position + row) % 5 for row in range(len(batch)))

    def loss(self, model: Encoder, batch: Batch, *, position: int, **_: Any) -> LossSum:
        features = model.features(batch.input_ids)
        counts = [1 + (position + row) % 5 for row in range(len(batch))]
        found = [
            decoder_loss(model, features[row, 1 : 1 + count], batch.input_ids[row, 2 : 2 + count])
            for row, count in enumerate(counts)
        ]
        return LossSum(sum=torch.stack([each.sum for each in found]).sum(), count=sum(counts))


@dataclass(frozen=True, kw_only=True)
class Around(Objective):
    """Another objective, with something that goes wrong."""

    inner: Objective

    def stage(self, progress: float) -> str:
        return self.inner.stage(progress)

    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        return self.inner.targets(batch, seed=seed, position=position, progress=progress)


@dataclass(frozen=True, kw_only=True)
class Poisoned(Around):
    """NaN wherever a row from ``first`` to ``last`` is read."""

    first: int
    last: int

    def loss(self, model: Encoder, batch: Batch, *, position: int, **more: Any) -> LossSum:
        found = self.inner.loss(model, batch, position=position, **more)
        ill = position <= self.last and position + len(batch) > self.first
        return replace(found, sum=found.sum * torch.nan) if ill else found


@dataclass(frozen=True, kw_only=True)
class Tight(Around):
    """A device that holds ``room`` rows at a time from row ``since`` of the run on, or only ``times`` times."""

    room: int
    since: int = 0
    error: Exception | None = None
    times: int | None = None
    raised: list[int] = field(default_factory=list)

    def loss(self, model: Encoder, batch: Batch, *, position: int, **more: Any) -> LossSum:
        found = self.inner.loss(model, batch, position=position, **more)
        left = self.times is None or len(self.raised) < self.times
        if len(batch) > self.room and position + len(batch) > self.since and left:
            self.raised.append(position)
            raise self.error or torch.OutOfMemoryError("no room")
        return found


class Recorded:
    """Which rows a run took, step by step, of which phase; at row ``stop`` it raises Stopped."""

    def __init__(self, made: Training, stop: int | None = None):
        self.rows: list[tuple[int, int]] = []
        self.phases: list[int] = []
        self._stop = stop
        phases = tuple(replace(phase, take=self._taking(place, phase)) for place, phase in enumerate(made.phases))
        self.training = replace(made, phases=phases)

    def _taking(self, place: int, phase: Phase) -> Any:
        def taking(position: int, rows: int, progress: float = 0.0) -> Batch:
            if position == self._stop:
                raise Stopped
            self.rows.append((position, rows))
            self.phases.append(place)
            return phase.take(position, rows, progress)

        return taking


class Stopped(Exception):
    """The process ends at this very place."""


class Watch:
    """A monitor that keeps what it sees."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.validations: list[ValidationRecord] = []
        self.machines: list[MachineRecord] = []
        self.on_step, self.on_validation = self.steps.append, self.validations.append
        self.on_machine = self.machines.append


def lines(path: Path, kind: str = "step") -> list[dict[str, Any]]:
    return [line for line in read_json_lines(path) if line.get("type", "step") == kind]


def decisions(**changes: Any) -> Decisions:
    """What the loop asks of a run's decisions; no interim validation."""
    made = Decisions(
        device="cpu", threads=torch.get_num_threads(), precision="float32", microbatch=ROWS, world_size=1,
        reserve_seconds=0.0, validation_rows=4, validation_marks=0, matmul_gflops={},
    )  # fmt: skip
    return replace(made, **changes)


def training(
    folder: Path | None, *, steps: int = 30, microbatch: int = ROWS, world: World | None = None,
    precision: str = "float32", marks: int = 0, **changes: Any,
) -> Training:  # fmt: skip
    """A run of ``steps`` steps of 8 rows into ``folder``; ``changes`` are parts of it."""
    torch.manual_seed(0)
    if folder:
        folder.mkdir(exist_ok=True)
    world = world or World()
    model = changes.pop("model", None) or ModernEncoder(
        layers=1, hidden_size=16, heads=2, intermediate_size=12, init_std=0.2
    ).build(VOCABULARY)
    phase = Phase(take=take, length=LENGTH, rows_per_epoch=1000, batch=ROWS, microbatch=microbatch)
    parts: dict[str, Any] = {
        "model": model, "data_parallel": DataParallel(model, world), "optimizer": AdamW(lr=1e-2).build(model),
        "average": None, "objective": Neighbours(), "schedule": Trapezoid(warmup=0.2, decay=0.5),
        "phases": (phase,), "phase2": SecondPhase(), "ramp": Ramp(), "world": world, "max_grad_norm": 1.0, "seed": 0,
        "clock": BudgetClock(Budget.parse(f"{steps}steps"), world, started=0.0), "device": torch.device("cpu"),
        "decisions": decisions(
            precision=precision, microbatch=microbatch, world_size=world.size, validation_marks=marks
        ),
        "run": RunFolder(folder) if folder else None, "journal": None, "monitors": (), "record_seconds": 0.0,
        "validation": Validation(take(10_000, 12), np.ones(VOCABULARY, np.uint64), torch.device("cpu")),
        "time_by_category": dict.fromkeys(USES, 0.0),
    }  # fmt: skip
    return Training(**{**parts, **changes})


def descending(made: Training, rate: float = 1.0) -> Training:
    """The same run by plain gradient descent, whose step is the gradient itself."""
    return replace(made, optimizer=torch.optim.SGD(made.model.parameters(), lr=rate))


def journaled(made: Training, progress: Progress = START) -> Progress:
    """Run to the end with records in the run's folder; decisions.json is there even where nothing changed."""
    assert made.run
    journal = Journal(made.run)
    journal.write_decisions(made.decisions)
    try:
        return fit(replace(made, journal=journal), progress)
    finally:
        journal.close()


def replayed(made: Training, records: Path) -> tuple[Training, Progress]:
    """The steps of the records once more, with ``made``'s parts and without a folder to go back to."""
    run = RunFolder(records)
    decisions = read_json(run.decisions, Decisions)
    made = replace(made, run=None, clock=ReplayClock(read_trace(run.trace)), decisions=decisions)
    return made, fit(made, replace(START, scale=LossScale.first(decisions.precision)))


def weights(made: Training) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in made.model.parameters()]


def equal(left: Training, right: Training) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(weights(left), weights(right), strict=True))


def assert_near(left: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    assert max((a - b).abs().max().item() for a, b in zip(left, right, strict=True)) <= tolerance


def newest(folder: Path, made: Training) -> Progress:
    """Load the newest checkpoint into ``made``; none is torn."""
    progress, torn = checkpoint.load_newest(folder, made.model, made.optimizer)
    assert progress is not None and torn == []
    return progress


class TableEncoder(Encoder):
    """States are rows of a table, so that a loss is known in closed form."""

    def __init__(self, vocabulary: int = 50, width: int = 8):
        super().__init__()
        torch.manual_seed(0)
        self.vocabulary, self.hidden_size = vocabulary, width
        self.table = nn.Embedding(vocabulary, width)
        self.map = nn.Linear(width, vocabulary)
        self.asked: list[tuple[bool, Tensor | None, Tensor | None]] = []
        """Arguments of each forward pass: causal, attend, types."""

    @property
    def decoder(self) -> nn.Linear:
        return self.map

    def all_states(self, ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> Tensor:
        return self.table(ids)

    def states(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        self.asked.append((causal, attention_mask, token_type_ids))
        found = self.all_states(ids, attention_mask, token_type_ids)
        return found if positions is None else found.gather(1, positions[:, :, None].expand(-1, -1, self.hidden_size))

    def transform(self, states: Tensor) -> Tensor:
        return states
