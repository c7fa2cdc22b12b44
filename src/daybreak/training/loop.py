"""The pretraining loop. Whatever acts on the run is a visible line here; everything else observes."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import replace

from daybreak.base.errors import Interrupted
from daybreak.base.records import StepRecord, TraceRecord, ValidationRecord
from daybreak.base.terminal import say
from daybreak.training import checkpoint
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Tick, reserve_for
from daybreak.training.monitors import Monitor
from daybreak.training.phases import begins
from daybreak.training.signals import Signals
from daybreak.training.step import Training, course, learning_rate, take_step

RECORD_SECONDS = 1.0
"""A metrics line at most this often."""
CHECKPOINT_SECONDS = 15.0
CHECKPOINT_SHARE = 0.005
"""Checkpoints come every CHECKPOINT_SECONDS, or less often where writing them would cost more than this share."""


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
    training.model.train()
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
                if training.objective.stage(course(training, tick.progress)) == "masked":
                    seen = validate(training, progress, tick, rows=training.validation_rows)
                    # The end takes as long as things take now, not as they took at the start.
                    whole = training.validation.whole_seconds(seen.seconds / training.validation_rows)
                    training.clock.keep_back(reserve_for(validation=whole, save=saving, step=stepping))
                mark = next_mark(training, tick.progress)
                continue  # the clock went on meanwhile: read it again
            if training.journal:
                training.journal.trace(TraceRecord(step=progress.step, elapsed=tick.elapsed, progress=tick.progress))
            if progress.second_from is None and begins(training.later, progress.losses, tick.progress):
                progress = enter_second(training, progress, tick)
            if progress.branched_at is None and tick.progress >= training.schedule.decay_starts:
                progress = save_branch(training, progress, tick)
            rate = learning_rate(training, progress, tick.progress, peaks)
            begun = time.monotonic()
            before = progress
            progress, loss, norm = take_step(training, progress, tick.progress)
            stepping = time.monotonic() - begun
            training.spent["train"] += stepping
            meter.add(before, progress, tick, loss, norm, rate)
            if time.monotonic() - last_save > interval and training.world.is_first:
                saving = save(training, progress)
                last_save, interval = time.monotonic(), max(CHECKPOINT_SECONDS, saving / CHECKPOINT_SHARE)


def enter_second(training: Training, progress: Progress, tick: Tick) -> Progress:
    """Begin the second phase; with a schedule of its own it has an optimizer that remembers nothing."""
    if training.later.lr > 0:
        training.optimizer.state.clear()
    say(f"Second phase from {tick.progress:.0%} on: rows of {training.later.length} positions.")
    return replace(progress, second_from=tick.progress)


def save_branch(training: Training, progress: Progress, tick: Tick) -> Progress:
    """Keep a checkpoint from before the decay, for ``--from RUN --extend``; it outlives the run's end."""
    begun = time.monotonic()
    progress = replace(progress, branched_at=tick.progress)
    if training.world.is_first:
        checkpoint.save(training.branch, progress, training.model, training.optimizer)
    training.spent["checkpoint"] += time.monotonic() - begun
    return progress


def next_mark(training: Training, progress: float) -> float:
    """The next interim validation after ``progress``; past 1 when there is none."""
    marks = training.validation_marks + 1
    upcoming = math.floor(progress * marks + 1e-9) + 1
    return upcoming / marks if upcoming < marks else math.inf


def validate(training: Training, progress: Progress, tick: Tick, *, rows: int, final: bool = False) -> ValidationRecord:
    """Judge the model as it stands and tell the monitors."""
    training.model.eval()
    record = training.validation.measure(
        training.model,
        rows=rows,
        step=progress.step,
        tokens=progress.tokens,
        tick=tick,
        final=final,
    )
    training.model.train()
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

    def add(self, before: Progress, progress: Progress, tick: Tick, loss: float, norm: float, rate: float) -> None:
        """Count the step that led from ``before`` to ``progress``."""
        self._losses.append(loss)
        seconds = time.monotonic() - self._since
        if self._tokens is None:
            self._tokens = before.tokens
        if seconds < RECORD_SECONDS:
            return
        record = StepRecord(
            step=progress.step,
            elapsed=tick.elapsed,
            progress=tick.progress,
            tokens=progress.tokens,
            stage=self._training.objective.stage(course(self._training, tick.progress)),
            loss=sum(self._losses) / len(self._losses),
            targets=progress.targets,
            learning_rate=rate,
            gradient_norm=norm,
            tokens_per_second=(progress.tokens - self._tokens) / seconds,
        )
        for monitor in observers(self._training):
            monitor.on_step(record)
        self._reset()
