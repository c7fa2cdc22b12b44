"""The pretraining loop. Everything that acts on the run is a visible line here; monitors only observe."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from daybreak.core.errors import Interrupted, PeerLost, UserError
from daybreak.core.terminal import say
from daybreak.schemas.run import StepRecord, TraceRecord, ValidationRecord
from daybreak.training import checkpoint
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Tick, reserve_for
from daybreak.training.monitoring.disk import low_room
from daybreak.training.monitoring.monitors import Monitor
from daybreak.training.phases import decays_last, schedule_progress, second_phase_starts, with_microbatch
from daybreak.training.recovery import current_change, disable_compilation, halve_microbatch, repeat_step, roll_back
from daybreak.training.signals import Signals
from daybreak.training.step import (
    CONTRASTIVE_SUFFIX,
    CompilationFailed,
    MicrobatchTooLarge,
    StepResult,
    Training,
    learning_rate,
    stage,
    take_step,
)

CHECKPOINT_SECONDS = 15.0
CHECKPOINT_FRACTION = 0.005
"""Interval between checkpoints in seconds; longer if writing them would cost more than this fraction of the time."""
LATE = 0.9
"""Progress at which a checkpoint is kept for ``daybreak verify``."""


def fit(training: Training, progress: Progress) -> Progress:
    """Train from ``progress`` until the clock reads 1.

    Raises:
        Interrupted: one of ``signals.HANDLED`` arrived; a checkpoint is saved.
        UserError: the run diverges repeatedly, a single sequence does not fit into memory, or another process of the
            run was lost; a checkpoint exists.
    """
    peaks = [group["lr"] for group in training.optimizer.param_groups]
    recorder, timer = StepRecorder(training), CheckpointTimer(training.validation.row_seconds)
    mark = None
    plateau_loss = training.plateau_loss if training.phase2.when_flat else 0.0
    full_at = -1  # the newest step that did not fit into memory
    training.model.train()
    with Signals() as signals, restore_peak_rates(training, peaks):
        while True:
            try:
                training, progress = apply_decisions(training, progress)
                tick = read_clock(training, progress, stopping=signals.stop_requested())
                if tick.progress >= 1.0:
                    return progress
                if tick.stopping:
                    save(training, progress)
                    raise Interrupted(signals.received or signal.SIGTERM)
                mark = next_mark(training, tick.progress) if mark is None else mark
                if tick.progress >= mark:
                    progress = interim_validation(training, progress, tick, timer)
                    mark = next_mark(training, tick.progress)
                    continue  # validation took time: read the clock again
                if training.journal:
                    at = TraceRecord(step=progress.step, elapsed=tick.elapsed, progress=tick.progress)
                    training.journal.trace(at)
                # Phase changes take effect only after the step succeeds; a retry repeats them.
                before, second_starts = begin_step(training, progress, tick, plateau_loss)
                rate = learning_rate(training, before, tick.progress, peaks)
                started = time.monotonic()
                result = take_step(
                    training, before, tick.progress, second_starts=second_starts, stop_requested=signals.stop_requested
                )
                progress = result.progress
                seconds = time.monotonic() - started
                training.time_by_category["train"] += seconds
                if second_starts:  # its steps take longer
                    timer.step_seconds = RecentMedian()
                timer.step_seconds.add(seconds)
                if second_starts:
                    keep_back(training, timer)
                if training.average:
                    training.average.update(progress.step, tick.progress)
                observe(training, recorder, before, result, tick, rate)
                if progress.health.has_diverged:
                    training, progress = roll_back(training, progress)
                    recorder = StepRecorder(training)
                timer.save_if_due(training, progress)
            except MicrobatchTooLarge:
                training = (halve_microbatch if full_at == progress.step else repeat_step)(training, progress)
                full_at = progress.step
            except CompilationFailed as failed:
                training = disable_compilation(training, progress, failed)
            except PeerLost as lost:
                save(training, progress)
                saves = training.run and training.world.is_first
                saved = f" The checkpoint of step {progress.step:,} is saved." if saves else ""
                raise UserError(
                    f"{lost}{saved}",
                    "Run the same command again on every remaining host, also with fewer processes; "
                    "torchrun --max-restarts 3 does so automatically.",
                ) from None


@contextmanager
def restore_peak_rates(training: Training, peaks: Sequence[float]) -> Iterator[None]:
    """Restore the peak rates of the optimizer at the end, so that the next ``fit`` finds them."""
    try:
        yield
    finally:
        for group, peak in zip(training.optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak


def apply_decisions(training: Training, progress: Progress) -> tuple[Training, Progress]:
    """Apply the decisions for this step: microbatch, rate, compilation, and sequences to skip."""
    current = current_change(training.decisions, progress.step)
    if training.phases[0].microbatch != current.microbatch or training.rate != current.rate:
        phases = with_microbatch(training.phases, current.microbatch)
        training = replace(training, phases=phases, rate=current.rate)
    if not current.compiled:
        training.model.compiled = None
    if current.step == progress.step and current.skip_to is not None:
        # Shift `first` too, so that skipped sequences do not count as read.
        first = progress.first + current.skip_to - progress.position
        progress = replace(progress, position=current.skip_to, first=first)
    return training, progress


def read_clock(training: Training, progress: Progress, *, stopping: bool) -> Tick:
    """Read the agreed time before a step, and whether any process received a signal to stop."""
    started = time.monotonic()
    tick = training.clock.tick(progress.step, progress.tokens, stopping=stopping)
    training.time_by_category["clock"] += time.monotonic() - started
    if training.watchdog:
        training.watchdog.beat(progress.step)
    return tick


def begin_step(training: Training, progress: Progress, tick: Tick, plateau_loss: float) -> tuple[Progress, bool]:
    """Return the progress before a step, with its milestones kept, and whether the second phase starts with it.

    Args:
        plateau_loss: see ``second_phase_starts``; 0 if the second phase starts at a fixed progress.
    """
    progress = keep_milestones(training, progress, tick)  # saved before a new phase clears the optimizer state
    if progress.second_from is not None or training.finishing(tick.progress):  # a finish would train none of it
        return progress, False
    starts = second_phase_starts(training.phase2, progress.losses, tick.progress, plateau_loss, training.conditions)
    return (replace(progress, second_from=tick.progress) if starts else progress), starts


def keep_milestones(training: Training, progress: Progress, tick: Tick) -> Progress:
    """Keep a checkpoint from before the decay, for ``--from RUN --extend``, and one from near the end."""
    second = training.phase2, progress.second_from
    decays = schedule_progress(*second, tick.progress) >= training.schedule.decay_starts
    if progress.branched_at is None and decays and decays_last(*second):
        progress = replace(progress, branched_at=tick.progress)
        if training.run:
            write(training, progress, training.run.branch, keep=1)
    if progress.late_at is None and tick.progress >= LATE:
        progress = replace(progress, late_at=tick.progress)
        if training.run:
            write(training, progress, training.run.late, keep=1)
    return progress


def next_mark(training: Training, progress: float) -> float:
    """Progress of the next interim validation after ``progress``; infinity if there is none."""
    marks = training.decisions.validation_marks + 1
    upcoming = math.floor(progress * marks + 1e-9) + 1
    return upcoming / marks if upcoming < marks else math.inf


def interim_validation(training: Training, progress: Progress, tick: Tick, timer: CheckpointTimer) -> Progress:
    """Evaluate the model on a part of the held-out sequences, and keep a checkpoint if it is the best so far."""
    if stage(training, tick.progress) == "causal":
        return progress
    rows = training.decisions.validation_rows
    record = validate(training, progress, tick, rows=rows)
    timer.row_seconds.add(training.validation.row_seconds)
    keep_back(training, timer)
    better = record.loss < (math.inf if progress.best is None else progress.best)
    if not better or not training.run or not timer.may_keep_best(tick.elapsed):
        return progress
    timer.best_kept_at, progress = tick.elapsed, replace(progress, best=record.loss)
    write(training, progress, training.run.best, keep=1)
    return progress


def keep_back(training: Training, timer: CheckpointTimer) -> None:
    """Reserve time for the end of the run by the current timings, not those of the start."""
    if timer.save_seconds.values and timer.row_seconds.values:
        whole = training.validation.whole_seconds(timer.row_seconds.value)
        reserve = reserve_for(validation=whole, save=timer.save_seconds.value, step=timer.step_seconds.value)
        training.clock.keep_back(reserve)


def validate(training: Training, progress: Progress, tick: Tick, *, rows: int, final: bool = False) -> ValidationRecord:
    """Evaluate the current model and pass the record to the monitors."""
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
    """Write a checkpoint to resume from on the first rank; return its seconds."""
    return write(training, progress, training.run.checkpoints, keep=checkpoint.KEEP) if training.run else 0.0


def write(training: Training, progress: Progress, folder: Path, *, keep: int) -> float:
    """Write a checkpoint into ``folder`` on the first rank; return the seconds on this rank."""
    started = time.monotonic()
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
    seconds = time.monotonic() - started
    training.time_by_category["checkpoint"] += seconds
    return seconds


class RecentMedian:
    """Median of the last three values; 0 without any.

    A disk that hangs once, or a process that is stopped for a while, says nothing about the end of the run.
    """

    def __init__(self) -> None:
        self.values = deque[float](maxlen=3)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def value(self) -> float:
        return statistics.median_low(self.values) if self.values else 0.0


class CheckpointTimer:
    """Decides when the next checkpoint is due, and knows the usual seconds of a checkpoint, a step and a validation.

    Args:
        row_seconds: seconds of a validated sequence before the first step; 0 if unknown.
    """

    def __init__(self, row_seconds: float = 0.0) -> None:
        self.save_seconds, self.step_seconds, self.row_seconds = RecentMedian(), RecentMedian(), RecentMedian()
        if row_seconds:
            self.row_seconds.add(row_seconds)
        self.best_kept_at = 0.0
        """Charged seconds at which this process last kept the best checkpoint."""
        self._last = time.monotonic()
        self._warned = False

    def may_keep_best(self, elapsed: float) -> bool:
        """Whether the best checkpoint may be written at ``elapsed``.

        Those of a run take at most CHECKPOINT_FRACTION of its time: a short run on a GPU has a new best every half
        minute and takes a second to write it.
        """
        return self.save_seconds.value < CHECKPOINT_FRACTION * (elapsed - self.best_kept_at)

    def save_if_due(self, training: Training, progress: Progress) -> None:
        interval = max(CHECKPOINT_SECONDS, self.save_seconds.value / CHECKPOINT_FRACTION)
        if time.monotonic() - self._last <= interval or not training.world.is_first or not training.run:
            return
        size = checkpoint.bytes_of(training.model, training.average)
        if not self._warned and (warning := low_room(training.run.path, size)):
            self._warned = True
            say(warning)
        self.save_seconds.add(save(training, progress))
        self._last = time.monotonic()


def observers(training: Training) -> list[Monitor]:
    return [*training.monitors, *([training.journal] if training.journal else [])]


def observe(
    training: Training, recorder: StepRecorder, before: Progress, result: StepResult, tick: Tick, rate: float
) -> None:
    """Pass the step to monitors and messages; nothing here acts on the run."""
    started = time.monotonic()
    health = result.progress.health
    if not result.updated and health.recent & 1:
        say(f"Step {before.step:,} is skipped: loss {result.loss:.3g}, gradient norm {result.norm:.3g}.")
    if result.progress.second_from == tick.progress:
        say(f"Second phase from {tick.progress:.0%} on: sequences of {training.phase2.length} positions.")
    if health.stage.endswith(CONTRASTIVE_SUFFIX) and before.health.stage != health.stage:
        say(f"Finish from {tick.progress:.0%} on: a contrastive loss on pairs of spans is added to the masked loss.")
    recorder.add(before, result, tick, rate)
    observe_machine(training, result.progress, tick.elapsed)
    training.time_by_category["monitor"] += time.monotonic() - started


def observe_machine(training: Training, progress: Progress, elapsed: float) -> None:
    """Pass the newest telemetry record to the monitors, if there is one."""
    machine = training.telemetry.take(step=progress.step, elapsed=elapsed) if training.telemetry else None
    if machine:
        for monitor in observers(training):
            monitor.on_machine(machine)


class StepRecorder:
    """Combines steps into one StepRecord per second, or per ``record_seconds``."""

    def __init__(self, training: Training):
        self._training = training
        self._reset()

    def _reset(self) -> None:
        self._since = time.monotonic()
        self._losses: list[float] = []
        self._contrastive: list[float] = []
        self._tokens: int | None = None

    def add(self, before: Progress, result: StepResult, tick: Tick, rate: float) -> None:
        """Add a step, with the progress ``before`` it and its ``result``; the loss of a skipped step is ignored."""
        progress = result.progress
        if result.updated:
            self._losses.append(result.loss)
            if result.contrastive is not None:
                self._contrastive.append(result.contrastive)
        seconds = time.monotonic() - self._since
        if self._tokens is None:
            self._tokens = before.tokens
        if seconds < self._training.record_seconds or not result.updated:
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
            gradient_norm=result.norm,
            tokens_per_second=(progress.tokens - self._tokens) / max(seconds, 1e-9),
            dropped=progress.health.dropped,
            contrastive=sum(self._contrastive) / len(self._contrastive) if self._contrastive else None,
        )
        for monitor in observers(self._training):
            monitor.on_step(record)
        self._reset()
