"""The pretraining loop. Whatever acts on the run is a visible line here; everything else observes.

B rows a step over all ranks, L positions.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from daybreak.base.encoder import Encoder
from daybreak.base.errors import Interrupted, UserError
from daybreak.base.records import StepRecord, TraceRecord, ValidationRecord
from daybreak.base.world import World
from daybreak.training import checkpoint
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Clock, Tick, reserve_for
from daybreak.training.journal import Journal
from daybreak.training.monitors import Monitor
from daybreak.training.objectives import Objective
from daybreak.training.schedule import Schedule
from daybreak.training.validation import Validation

RECORD_SECONDS = 1.0
"""A metrics line at most this often."""
CHECKPOINT_SECONDS = 15.0
CHECKPOINT_SHARE = 0.005
"""Checkpoints come every CHECKPOINT_SECONDS, or less often where writing them would cost more than this share."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that one run is made of, built."""

    model: Encoder
    optimizer: torch.optim.Optimizer
    objective: Objective
    schedule: Schedule
    take: Callable[[int, int], np.ndarray]
    """(position, rows) -> int64 [rows, L]: the run's rows in order."""
    clock: Clock
    world: World
    batch: int
    microbatch: int
    clip: float
    seed: int
    device: torch.device
    precision: torch.dtype
    validation: Validation
    validation_rows: int
    validation_marks: int
    checkpoints: Path
    journal: Journal | None
    """None on all ranks but the first."""
    monitors: Sequence[Monitor]
    spent: dict[str, float]
    """Seconds by use, over all processes of the run; the loop adds to train, validate and checkpoint."""

    def rows(self, position: int, count: int) -> torch.Tensor:
        """int64 [count, L] on the device."""
        return torch.from_numpy(self.take(position, count)).to(self.device)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


def fit(training: Training, progress: Progress) -> Progress:
    """Train from ``progress`` until the clock says 1.

    Raises:
        Interrupted: SIGINT or SIGTERM came; a checkpoint was saved.
        UserError: the loss stopped being finite.
    """
    peaks = [group["lr"] for group in training.optimizer.param_groups]
    meter = Meter(training)
    last_save, interval = time.monotonic(), CHECKPOINT_SECONDS
    saving, stepping = 0.0, 0.0
    mark = None
    with Signals() as signals:
        while True:
            tick = training.clock.tick(progress.step, progress.tokens)
            if tick.progress >= 1.0:
                return progress
            if training.world.any(signals.received is not None):
                save(training, progress)
                raise Interrupted(signals.received or signal.SIGTERM)
            if mark is None:
                mark = next_mark(training, tick.progress)
            if tick.progress >= mark:
                if training.objective.stage(tick.progress) == "masked":
                    seen = validate(training, progress, tick, rows=training.validation_rows)
                    # The end takes as long as things take now, not as they took at the start.
                    whole = seen.seconds / training.validation_rows * training.validation.rows
                    training.clock.keep_back(reserve_for(validation=whole, save=saving, step=stepping))
                mark = next_mark(training, tick.progress)
                continue  # the clock went on meanwhile: read it again
            if training.journal:
                training.journal.trace(TraceRecord(step=progress.step, elapsed=tick.elapsed, progress=tick.progress))
            rate = training.schedule(tick.progress)
            for group, peak in zip(training.optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate
            begun = time.monotonic()
            progress, loss, norm = take_step(training, progress, tick.progress)
            stepping = time.monotonic() - begun
            training.spent["train"] += stepping
            meter.add(progress, tick, loss, norm, peaks[0] * rate)
            if time.monotonic() - last_save > interval and training.world.is_first:
                saving = save(training, progress)
                last_save, interval = time.monotonic(), max(CHECKPOINT_SECONDS, saving / CHECKPOINT_SHARE)


def take_step(training: Training, progress: Progress, at: float) -> tuple[Progress, float, float]:
    """One optimizer step on ``batch`` rows, shared out over ranks and microbatches.

    The gradient is that of the sum of losses over all targets of all ranks, divided once by their true number, so it
    does not depend on how the batch was split.

    Returns:
        The new progress, the mean loss, and the gradient's norm before clipping.
    """
    parameters = list(training.model.parameters())
    total, tokens = accumulate(training, progress, at)
    total = training.world.sum_gradients(parameters, total)
    loss_sum, count = total.tolist()
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients)) / count
    if not math.isfinite(loss_sum) or not math.isfinite(norm):
        raise UserError(
            f"The loss is not finite at step {progress.step}; the last checkpoint is kept.",
            f"Start in another folder with half the rate: --optimizer.lr {training.optimizer.defaults['lr'] / 2:g}.",
        )
    torch._foreach_mul_(gradients, min(1.0, training.clip / (norm + 1e-6)) / count)
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    done = replace(
        progress,
        step=progress.step + 1,
        position=progress.position + training.batch,
        tokens=progress.tokens + tokens * training.world.size,
        targets=progress.targets + int(count),
    )
    return done, loss_sum / count, norm


def accumulate(training: Training, progress: Progress, at: float) -> tuple[torch.Tensor, int]:
    """Add this rank's share of a step to the gradients, one microbatch after the other.

    Returns:
        float32 [2], the sum of losses and the number of targets; and the tokens read.
    """
    total = torch.zeros(2, dtype=torch.float32, device=training.device)
    share = training.batch // training.world.size
    first = progress.position + training.world.rank * share
    tokens = 0
    for start in range(0, share, training.microbatch):
        rows = min(training.microbatch, share - start)
        ids = training.rows(first + start, rows)
        tokens += ids.numel()
        with training.autocast():
            loss = training.objective.loss(training.model, ids, seed=training.seed, position=first + start, progress=at)
        loss.sum.backward()
        total += torch.stack((loss.sum.detach(), torch.tensor(float(loss.count), device=training.device)))
    return total, tokens


def next_mark(training: Training, progress: float) -> float:
    """The next interim validation after ``progress``; past 1 when there is none."""
    marks = training.validation_marks + 1
    upcoming = math.floor(progress * marks + 1e-9) + 1
    return upcoming / marks if upcoming < marks else math.inf


def validate(training: Training, progress: Progress, tick: Tick, *, rows: int, final: bool = False) -> ValidationRecord:
    """Judge the model as it stands and tell the monitors."""
    record = training.validation.measure(
        training.model,
        rows=rows,
        step=progress.step,
        tokens=progress.tokens,
        tick=tick,
        final=final,
    )
    training.spent["validate"] += record.seconds
    for monitor in observers(training):
        monitor.on_validation(record)
    return record


def save(training: Training, progress: Progress) -> float:
    """Write a checkpoint on the first rank; return the seconds it took."""
    begun = time.monotonic()
    if training.world.is_first:
        now = replace(progress, elapsed=training.clock.elapsed(), spent=dict(training.spent))
        checkpoint.save(training.checkpoints, now, training.model, training.optimizer)
    seconds = time.monotonic() - begun
    training.spent["checkpoint"] += seconds
    return seconds


def observers(training: Training) -> list[Monitor]:
    return [*training.monitors, *([training.journal] if training.journal else [])]


class Meter:
    """Gathers steps into one StepRecord a second."""

    def __init__(self, training: Training):
        self._training = training
        self._reset()

    def _reset(self) -> None:
        self._since = time.monotonic()
        self._losses: list[float] = []
        self._tokens: int | None = None

    def add(self, progress: Progress, tick: Tick, loss: float, norm: float, rate: float) -> None:
        stage = self._training.objective.stage(tick.progress)
        self._losses.append(loss)
        seconds = time.monotonic() - self._since
        if self._tokens is None:
            self._tokens = progress.tokens - self._training.batch * self._row_length(progress)
        if seconds < RECORD_SECONDS:
            return
        record = StepRecord(
            step=progress.step,
            elapsed=tick.elapsed,
            progress=tick.progress,
            tokens=progress.tokens,
            stage=stage,
            loss=sum(self._losses) / len(self._losses),
            targets=progress.targets,
            learning_rate=rate,
            gradient_norm=norm,
            tokens_per_second=(progress.tokens - self._tokens) / seconds,
        )
        for monitor in observers(self._training):
            monitor.on_step(record)
        self._reset()

    def _row_length(self, progress: Progress) -> int:
        return progress.tokens // progress.position


class Signals:
    """Turns SIGINT and SIGTERM into a flag while it is entered; a second signal falls through to the default."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._old: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets only the main thread listen
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
