"""Runs in two phases: short sequences first, then long ones from the weights of the first phase (BERT, SciBERT)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from daybreak.core.batch import Batch
from daybreak.core.errors import check_option
from daybreak.schemas.run import PLATEAU_MARGIN

BINS = 100
"""Number of bins of progress over which losses are averaged."""
FLAT_BINS = 10
FLAT_GAIN = 0.005
"""The loss is flat if its mean over FLAT_BINS bins is less than this fraction below that of the bins before. Only bins
with the same stage, mask rate and kind of sequences are compared: the loss may rise at the change although the model
learns.
"""


@dataclass(frozen=True, kw_only=True)
class SecondPhase:
    """A second phase with sequences of another length, cut from the same data."""

    start: float = 1.0
    """Fraction of the run at which the phase starts; 1 for a run in one phase."""
    length: int = 512
    """Positions of a sequence."""
    batch: int = 0
    """Sequences of a step; 0 for the batch of the first phase."""
    lr: float = 0.0
    """Peak learning rate of a new schedule with a new optimizer state; 0 continues the first schedule."""
    when_flat: bool = False
    """Start earlier, as soon as the loss is below the unigram baseline and no longer falls."""

    def __post_init__(self) -> None:
        check_option("--phase2.start", self.start, 0 < self.start <= 1, "in (0, 1]")
        check_option("--phase2.length", self.length, self.length >= 8, "of at least 8")
        check_option("--phase2.batch", self.batch, self.batch >= 0, "of at least 0")
        check_option("--phase2.lr", self.lr, self.lr >= 0, "of at least 0")

    @property
    def enabled(self) -> bool:
        """Whether the run has a second phase."""
        return self.start < 1 or self.when_flat


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase, built: the source of its sequences and its batch sizes."""

    take: Callable[[int, int, float], Batch]
    """(position, rows, progress) -> the run's sequences in order as numpy arrays: ``Sampler.take``."""
    length: int
    """Positions of a sequence."""
    rows_per_epoch: int
    batch: int
    """Sequences of a step over all devices, at the end of the ramp."""
    microbatch: int
    """Sequences that one device processes at a time."""
    view: Callable[[float], Hashable] | None = None
    """Hashable value that changes whenever progress changes the sequences: ``Sampler.view``; None if unknown."""
    batch_multiple: int = 0
    """Unit of batch growth: sequences of one microbatch on all devices at the start of the run; 0 for the current
    value."""


def with_microbatch(phases: tuple[Phase, ...], rows: int) -> tuple[Phase, ...]:
    """Set the microbatch of all phases; a phase with longer sequences gets proportionally fewer."""
    first = phases[0].length
    return tuple(replace(each, microbatch=max(1, rows * first // each.length)) for each in phases)


def with_batch_multiple(phases: tuple[Phase, ...], devices: int) -> tuple[Phase, ...]:
    """Set the unit of batch growth to the current microbatch on ``devices`` devices."""
    return tuple(replace(each, batch_multiple=each.microbatch * devices) for each in phases)


@dataclass(frozen=True, kw_only=True)
class LossHistory:
    """Mean training losses in BINS bins of progress, from which a resumed run knows whether the loss still falls."""

    bins: tuple[float, ...] = ()
    sum: float = 0.0
    count: int = 0

    def add(self, progress: float, loss: float) -> LossHistory:
        """The history after a step at ``progress`` with this mean loss."""
        updated = replace(self, sum=self.sum + loss, count=self.count + 1)
        if progress * BINS < len(self.bins) + 1:
            return updated
        # A slow step may span several bins: all of them get the mean since the last one.
        passed = int(progress * BINS) - len(self.bins)
        return LossHistory(bins=self.bins + (updated.sum / updated.count,) * passed)

    def flat(self, progress: float, conditions: Callable[[float], Hashable]) -> bool:
        """Whether the loss has stopped falling by ``progress``, over bins in which it measures the same.

        Args:
            conditions: progress -> what the loss depends on besides the weights, see ``Training.conditions``.
        """
        first = len(self.bins) - 2 * FLAT_BINS
        if first < 0 or conditions(first / BINS) != conditions(progress):
            return False
        before, updated = sum(self.bins[-2 * FLAT_BINS : -FLAT_BINS]), sum(self.bins[-FLAT_BINS:])
        return updated > before * (1 - FLAT_GAIN)


def second_phase_starts(
    second: SecondPhase,
    losses: LossHistory,
    progress: float,
    plateau_loss: float,
    conditions: Callable[[float], Hashable],
) -> bool:
    """Whether the second phase starts at this progress.

    A flat loss starts the phase only below the unigram baseline: on the unigram plateau the loss is flat as well, and
    longer sequences do not help there.

    Args:
        plateau_loss: training loss of the unigram baseline, nats.
        conditions: see ``LossHistory.flat``.
    """
    if not second.enabled:
        return False
    if progress >= second.start:
        return True
    return second.when_flat and losses.flat(progress, conditions) and losses.bins[-1] < plateau_loss - PLATEAU_MARGIN


def decays_last(second: SecondPhase, second_from: float | None) -> bool:
    """Whether the current decay of the learning rate is the last one: a second phase may have a schedule of its own.

    Args:
        second_from: progress at which the second phase started; None before.
    """
    return second.lr <= 0 or second.start >= 1 or second_from is not None


def schedule_progress(second: SecondPhase, second_from: float | None, progress: float) -> float:
    """Progress of the learning-rate schedule.

    Args:
        second_from: progress at which the second phase started; None before.
    """
    if second.lr <= 0:
        return progress
    if second_from is None:
        return progress / second.start
    # A run that returned to an earlier step, and is resumed before it gets there again, is before the second phase.
    return max(0.0, (progress - second_from) / (1 - second_from))
