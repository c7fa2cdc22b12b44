"""A run in two phases: short rows first, then long ones, from the weights of the first (BERT, SciBERT)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.schemas.run import PLATEAU_MARGIN

BINS = 100
"""Losses are averaged over hundredths of the run."""
FLAT_BINS = 10
FLAT_GAIN = 0.005
"""The loss has stopped falling when its mean over FLAT_BINS is less than this share below that of the bins before."""


@dataclass(frozen=True, kw_only=True)
class SecondPhase:
    """What changes in the second phase. Rows are cut anew, so the same shards serve both."""

    start: float = 1.0
    """Share of the run at which the phase begins; 1 for a run in one phase."""
    length: int = 512
    """Positions of a row."""
    batch: int = 0
    """Rows of a step; 0 for as many as before."""
    lr: float = 0.0
    """Peak of a fresh schedule with a fresh optimizer; 0 lets the first schedule go on."""
    when_flat: bool = False
    """Begin earlier, as soon as the loss has stopped falling below the unigram baseline."""

    def __post_init__(self) -> None:
        if not 0 < self.start <= 1 or self.batch < 0 or self.lr < 0 or self.length < 8:
            raise UserError(
                "--phase2.start must be in (0, 1], --phase2.length at least 8, --phase2.batch and --phase2.lr not "
                "negative.",
                "Correct the number.",
            )

    @property
    def ever(self) -> bool:
        """Whether there is a second phase at all."""
        return self.start < 1 or self.when_flat


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase, built: where its rows come from and how many make a step."""

    take: Callable[[int, int, float], Batch]
    """(position, rows, progress) -> the run's rows in order, numpy arrays: ``Sampler.take``."""
    length: int
    """Positions of a row."""
    rows_per_epoch: int
    batch: int
    """Rows of a step over all devices, at the end of the ramp."""
    microbatch: int
    """Rows that one device handles at a time."""
    view: Callable[[float], Hashable] | None = None
    """What the rows depend on of progress: ``Sampler.view``; None where nothing is known of it."""
    batch_multiple: int = 0
    """Rows by which a batch grows: those that all devices handled at a time when the run began; 0 for now."""


def with_microbatch(phases: tuple[Phase, ...], rows: int) -> tuple[Phase, ...]:
    """Give the phases this many rows at a time; in a phase of longer rows, as many fewer as these are longer."""
    first = phases[0].length
    return tuple(replace(each, microbatch=max(1, rows * first // each.length)) for each in phases)


def with_batch_multiple(phases: tuple[Phase, ...], devices: int) -> tuple[Phase, ...]:
    """Let batches grow by what ``devices`` handle at a time now."""
    return tuple(replace(each, batch_multiple=each.microbatch * devices) for each in phases)


@dataclass(frozen=True, kw_only=True)
class LossHistory:
    """Mean training losses by BINS of progress, so that a resumed run knows whether the loss still falls."""

    bins: tuple[float, ...] = ()
    sum: float = 0.0
    count: int = 0

    def add(self, progress: float, loss: float) -> LossHistory:
        """The history after a step at ``progress`` with this mean loss."""
        now = replace(self, sum=self.sum + loss, count=self.count + 1)
        if progress * BINS < len(self.bins) + 1:
            return now
        # A slow step may pass over several bins: all of them hold the mean since the last.
        passed = int(progress * BINS) - len(self.bins)
        return LossHistory(bins=self.bins + (now.sum / now.count,) * passed)

    @property
    def flat(self) -> bool:
        """Whether the loss has stopped falling."""
        if len(self.bins) < 2 * FLAT_BINS:
            return False
        before, now = sum(self.bins[-2 * FLAT_BINS : -FLAT_BINS]), sum(self.bins[-FLAT_BINS:])
        return now > before * (1 - FLAT_GAIN)


def begins(later: SecondPhase, losses: LossHistory, progress: float, unigram_loss: float) -> bool:
    """Whether the second phase begins at this point.

    A flat loss starts the phase only below the unigram baseline: on the unigram plateau the loss is flat as well, and
    longer sequences do not help there.

    Args:
        unigram_loss: loss of the unigram baseline, nats.
    """
    if not later.ever:
        return False
    flat = later.when_flat and losses.flat and losses.bins[-1] < unigram_loss - PLATEAU_MARGIN
    return progress >= later.start or flat


def scheduled(later: SecondPhase, second_from: float | None, progress: float) -> float:
    """Where in its schedule the learning rate stands.

    Args:
        second_from: progress at which the second phase began; None before.
    """
    if later.lr <= 0:
        return progress
    if second_from is None:
        return progress / later.start
    return (progress - second_from) / (1 - second_from)
