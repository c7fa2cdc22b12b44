"""The pretraining loop. Whatever acts on the run is a visible line here; everything else observes."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from daybreak.core.errors import Interrupted, PeerLost, UserError
from daybreak.core.terminal import say
from daybreak.schemas.run import StepRecord, TraceRecord, ValidationRecord
from daybreak.training import checkpoint
from daybreak.training.changes import in_force
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Tick, reserve_for
from daybreak.training.monitoring.disk import low_room
from daybreak.training.monitoring.monitors import Monitor
from daybreak.training.phases import begins, with_microbatch
from daybreak.training.recovery import go_back, halve_microbatch, uncompile
from daybreak.training.signals import Signals
from daybreak.training.step import (
    FINISHING,
    NotCompiled,
    Outcome,
    TooManyRows,
    Training,
    learning_rate,
    stage,
    take_step,
)

CHECKPOINT_SECONDS = 15.0
CHECKPOINT_SHARE = 0.005
"""Checkpoints come every CHECKPOINT_SECONDS, or less often where writing them would cost more than this share."""
LATE = 0.9
"""Progress at which a checkpoint is kept for ``daybreak verify``."""


def fit(training: Training, progress: Progress) -> Progress:
    """Train from ``progress`` until the clock says 1.

    Raises:
        Interrupted: a signal of ``signals.OBEYED`` came; a checkpoint was saved.
        UserError: the run diverges again and again, a single row does not fit into memory, or another process of the
            run was lost; a checkpoint is there.
    """
    peaks = [group["lr"] for group in training.optimizer.param_groups]
    meter, saver = Meter(training), Saver()
    mark = None
    unigram_loss = training.validation.unigram_loss if training.phase2.when_flat else 0.0
    training.model.train()
    with Signals() as signals, peaks_kept(training, peaks):
        while True:
            try:
                training, progress = steer(training, progress)
                tick = read_clock(training, progress, leaving=signals.asked())
                if tick.progress >= 1.0:
                    return progress
                if tick.leaving:
                    save(training, progress)
                    raise Interrupted(signals.received or signal.SIGTERM)
                mark = next_mark(training, tick.progress) if mark is None else mark
                if tick.progress >= mark:
                    progress = interim_validation(training, progress, tick, saver)
                    mark = next_mark(training, tick.progress)
                    continue  # the clock went on meanwhile: read it again
                if training.journal:
                    at = TraceRecord(step=progress.step, elapsed=tick.elapsed, progress=tick.progress)
                    training.journal.trace(at)
                # What a step begins holds once it is done: one that is tried again begins it again.
                before = keep_milestones(training, progress, tick)  # with the moments that a new phase may clear
                at_start = begins(training.phase2, before.losses, tick.progress, unigram_loss)
                second = before.second_from is None and at_start
                if second:
                    before = replace(before, second_from=tick.progress)
                rate = learning_rate(training, before, tick.progress, peaks)
                begun = time.monotonic()
                outcome = take_step(training, before, tick.progress, second=second, asked=signals.asked)
                progress = outcome.progress
                saver.stepping = time.monotonic() - begun
                training.time_by_category["train"] += saver.stepping
                if training.average:
                    training.average.update(progress.step, tick.progress)
                observe(training, meter, before, outcome, tick, rate)
                if progress.health.is_ill:
                    training, progress = go_back(training, progress)
                    meter = Meter(training)
                saver.save_if_due(training, progress)
            except TooManyRows:
                training = halve_microbatch(training, progress)
            except NotCompiled:
                training = uncompile(training, progress)
            except PeerLost as lost:
                save(training, progress)
                kept = f" The checkpoint of step {progress.step:,} is saved." if training.saves else ""
                raise UserError(
                    f"{lost}{kept}",
                    "Give the same command again on every host that is there, also with fewer processes; "
                    "torchrun --max-restarts 3 does so by itself.",
                ) from None


@contextmanager
def peaks_kept(training: Training, peaks: Sequence[float]) -> Iterator[None]:
    """Leave the optimizer with its peak rates, as it came, so that the next ``fit`` finds them."""
    try:
        yield
    finally:
        for group, peak in zip(training.optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak


def steer(training: Training, progress: Progress) -> tuple[Training, Progress]:
    """Take the course that was decided for this step: rows at a time, rate, rows that are passed over."""
    held = in_force(training.decisions, progress.step)
    if training.phases[0].microbatch != held.microbatch or training.rate != held.rate:
        phases = with_microbatch(training.phases, held.microbatch)
        training = replace(training, phases=phases, rate=held.rate)
    if not held.compiled:
        training.model.compiled = None
    if held.step == progress.step and held.skip_to is not None:
        # Rows that are passed over are not read, so the run's first row moves along.
        first = progress.first + held.skip_to - progress.position
        progress = replace(progress, position=held.skip_to, first=first)
    return training, progress


def read_clock(training: Training, progress: Progress, *, leaving: bool) -> Tick:
    """The agreed time before a step, and whether any process was asked to leave."""
    begun = time.monotonic()
    tick = training.clock.tick(progress.step, progress.tokens, leaving=leaving)
    training.time_by_category["clock"] += time.monotonic() - begun
    if training.watchdog:
        training.watchdog.beat(progress.step)
    return tick


def keep_milestones(training: Training, progress: Progress, tick: Tick) -> Progress:
    """Keep a checkpoint from before the decay, for ``--from RUN --extend``, and one from near the end."""
    if progress.branched_at is None and tick.progress >= training.schedule.decay_starts:
        progress = replace(progress, branched_at=tick.progress)
        if training.run:
            write(training, progress, training.run.branch, keep=1)
    if progress.late_at is None and tick.progress >= LATE:
        progress = replace(progress, late_at=tick.progress)
        if training.run:
            write(training, progress, training.run.late, keep=1)
    return progress


def next_mark(training: Training, progress: float) -> float:
    """The next interim validation after ``progress``; past 1 when there is none."""
    marks = training.decisions.validation_marks + 1
    upcoming = math.floor(progress * marks + 1e-9) + 1
    return upcoming / marks if upcoming < marks else math.inf


def interim_validation(training: Training, progress: Progress, tick: Tick, saver: Saver) -> Progress:
    """Judge the model on a part of the held-out rows, and keep it if it is the best so far."""
    if stage(training, tick.progress) != "masked":
        return progress
    rows = training.decisions.validation_rows
    seen = validate(training, progress, tick, rows=rows)
    # The end takes as long as things take now, not as they took at the start.
    whole = training.validation.whole_seconds(training.validation.row_seconds)
    training.clock.keep_back(reserve_for(validation=whole, save=saver.saving, step=saver.stepping))
    better = seen.loss < (math.inf if progress.best is None else progress.best)
    if not better or not training.run or saver.saving >= CHECKPOINT_SHARE * tick.elapsed:
        return progress
    progress = replace(progress, best=seen.loss)
    write(training, progress, training.run.best, keep=1)
    return progress


def validate(training: Training, progress: Progress, tick: Tick, *, rows: int, final: bool = False) -> ValidationRecord:
    """Judge the model as it stands and tell the monitors."""
    training.model.eval()
    with training.pause():
        record = training.validation.measure(
            training.model,
            rows=rows,
            step=progress.step,
            tokens=progress.tokens,
            tick=tick,
            final=final,
            interim_rows=training.decisions.validation_rows if final and training.decisions.validation_marks else 0,
        )
    training.model.train()
    training.time_by_category["validate"] += record.seconds
    for monitor in observers(training):
        monitor.on_validation(record)
    return record


def save(training: Training, progress: Progress) -> float:
    """Write a checkpoint to resume from on the first rank; return the seconds it took."""
    return write(training, progress, training.run.checkpoints, keep=checkpoint.KEEP) if training.run else 0.0


def write(training: Training, progress: Progress, folder: Path, *, keep: int) -> float:
    """Write a checkpoint into ``folder`` on the first rank; return the seconds that it took on this one."""
    begun = time.monotonic()
    if training.world.is_first:
        clock = training.clock
        now = replace(
            progress,
            elapsed=clock.elapsed(),
            reserve=clock.reserve,
            first_step_at=clock.first_step_at,
            time_by_category=dict(training.time_by_category),
        )
        if training.journal:
            training.journal.sync()
        with training.pause():
            checkpoint.save(folder, now, training.model, training.optimizer, training.average, keep=keep)
    seconds = time.monotonic() - begun
    training.time_by_category["checkpoint"] += seconds
    return seconds


class Saver:
    """When the next checkpoint is due, and how long the last things took, in seconds."""

    def __init__(self) -> None:
        self.saving, self.stepping = 0.0, 0.0
        self._last, self._interval = time.monotonic(), CHECKPOINT_SECONDS
        self._warned = False

    def save_if_due(self, training: Training, progress: Progress) -> None:
        if time.monotonic() - self._last <= self._interval or not training.world.is_first or not training.run:
            return
        size = checkpoint.bytes_of(training.model, training.average)
        if not self._warned and (warning := low_room(training.run.path, size)):
            self._warned = True
            say(warning)
        self.saving = save(training, progress)
        self._last, self._interval = time.monotonic(), max(CHECKPOINT_SECONDS, self.saving / CHECKPOINT_SHARE)


def observers(training: Training) -> list[Monitor]:
    return [*training.monitors, *([training.journal] if training.journal else [])]


def observe(training: Training, meter: Meter, before: Progress, outcome: Outcome, tick: Tick, rate: float) -> None:
    """Let those who watch see the step; nothing of it acts on the run."""
    begun = time.monotonic()
    health = outcome.progress.health
    if not outcome.taken and health.recent & 1:
        say(f"Step {before.step:,} is left out: loss {outcome.loss:.3g}, gradient norm {outcome.norm:.3g}.")
    if outcome.progress.second_from == tick.progress:
        say(f"Second phase from {tick.progress:.0%} on: rows of {training.phase2.length} positions.")
    if health.stage.endswith(FINISHING) and before.health.stage != health.stage:
        say(f"Finish from {tick.progress:.0%} on: a contrastive loss on pairs of spans is added to the masked loss.")
    meter.add(before, outcome, tick, rate)
    observe_machine(training, outcome.progress, tick.elapsed)
    training.time_by_category["monitor"] += time.monotonic() - begun


def observe_machine(training: Training, progress: Progress, elapsed: float) -> None:
    """Hand on what the telemetry has read since the last time, if anything."""
    machine = training.telemetry.take(step=progress.step, elapsed=elapsed) if training.telemetry else None
    if machine:
        for monitor in observers(training):
            monitor.on_machine(machine)


class Meter:
    """Gathers steps into one StepRecord a second, or as often as is asked for."""

    def __init__(self, training: Training):
        self._training = training
        self._reset()

    def _reset(self) -> None:
        self._since = time.monotonic()
        self._losses: list[float] = []
        self._contrastive: list[float] = []
        self._tokens: int | None = None

    def add(self, before: Progress, outcome: Outcome, tick: Tick, rate: float) -> None:
        """Count the step that led from ``before`` to ``outcome``; the loss of one that was left out says nothing."""
        progress = outcome.progress
        if outcome.taken:
            self._losses.append(outcome.loss)
            if outcome.contrastive is not None:
                self._contrastive.append(outcome.contrastive)
        seconds = time.monotonic() - self._since
        if self._tokens is None:
            self._tokens = before.tokens
        if seconds < self._training.record_seconds or not outcome.taken:
            return
        record = StepRecord(
            step=progress.step,
            elapsed=tick.elapsed,
            progress=tick.progress,
            tokens=progress.tokens,
            stage=stage(self._training, tick.progress),
            loss=sum(self._losses) / len(self._losses),
            targets=progress.targets,
            learning_rate=rate,
            gradient_norm=outcome.norm,
            tokens_per_second=(progress.tokens - self._tokens) / max(seconds, 1e-9),
            dropped=progress.health.dropped,
            contrastive=sum(self._contrastive) / len(self._contrastive) if self._contrastive else None,
        )
        for monitor in observers(self._training):
            monitor.on_step(record)
        self._reset()
