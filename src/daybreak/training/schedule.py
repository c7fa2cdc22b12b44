"""Schedules of the learning rate and the batch size: functions of progress, the same for all kinds of budgets."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from daybreak.core.errors import UserError
from daybreak.core.serialization import Component


@dataclass(frozen=True, kw_only=True)
class Schedule(Component):
    """Multiplier of the peak learning rate as a function of progress."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a ``__call__`` that the loop cannot call, so that the error names the line in the user's file."""
        super().__init_subclass__(**options)
        try:
            inspect.signature(cls.__call__).bind(None, 0.0, 0)
        except TypeError:
            raise TypeError(f"write {cls.__name__}.__call__ as def __call__(self, progress, rows=0)") from None

    @abstractmethod
    def __call__(self, progress: float, rows: int = 0) -> float:
        """Return the multiplier in [0, 1].

        Args:
            progress: fraction of the run that has passed; above 1 the multiplier is that of the end.
            rows: position of the next sequence, see ``Progress.position``, for a schedule that counts sequences.
        """

    def with_steps(self, steps: float) -> Schedule:
        """The schedule of a run of ``steps`` optimizer steps, with counts of steps turned into fractions."""
        return self

    @property
    def decay_starts(self) -> float:
        """Progress at which the final decay starts, where a longer run can branch off; 1 if there is no decay.

        A run saves a checkpoint there, which ``--from RUN --extend`` continues; with 1 there is none.
        """
        return 1.0


def check_fractions(schedule: Schedule, **fractions: float) -> None:
    """Raise UserError for the first value outside [0, 1]."""
    for name, value in fractions.items():
        if not 0 <= value <= 1:
            raise UserError(
                f"--schedule.{name} is {value:g}, but in {type(schedule).__name__} it is a fraction of the run.",
                "Give a number in [0, 1].",
            )


@dataclass(frozen=True, kw_only=True)
class Trapezoid(Schedule):
    """Linear up, flat, linear down to 0; the long decay follows modded-nanogpt.

    With ``decay`` = 1 - ``warmup`` there is no flat part. This is transformers' linear schedule; with both at 0.5 it is
    the one-cycle triangle.
    """

    warmup: float = 0.02
    """Fraction of the run in which the rate rises from 0."""
    decay: float = 0.5
    """Fraction of the run, at its end, in which the rate falls to 0."""

    def __post_init__(self) -> None:
        check_fractions(self, warmup=self.warmup, decay=self.decay)

    def __call__(self, progress: float, rows: int = 0) -> float:
        rise = progress / self.warmup if self.warmup > 0 else 1.0
        fall = (1.0 - progress) / self.decay if self.decay > 0 else 1.0
        return max(0.0, min(1.0, rise, fall))

    @property
    def decay_starts(self) -> float:
        if self.decay <= 0:
            return 1.0
        # The second value applies if the ramps cross.
        return max(1.0 - self.decay, self.warmup / (self.warmup + self.decay))


@dataclass(frozen=True, kw_only=True)
class BudgetTriangle(Schedule):
    """Linear from ``base`` to 1, then linear to 0: min(b + f (1 - b) / (1 - q), (1 - f) / q).

    Cramming's "budget-triangle2" (arXiv 2212.14034, section 4.3), there over wall-clock time.
    """

    base: float = 0.25
    """Multiplier at the start, b."""
    falloff: float = 0.25
    """Fraction of the run, at its end, in which the rate falls to 0, q."""

    def __post_init__(self) -> None:
        check_fractions(self, base=self.base)
        if not 0 < self.falloff < 1:
            raise UserError(f"--schedule.falloff is {self.falloff:g}.", "Give a number between 0 and 1.")

    def __call__(self, progress: float, rows: int = 0) -> float:
        rise = self.base + progress * (1.0 - self.base) / (1.0 - self.falloff)
        return max(0.0, min(rise, (1.0 - progress) / self.falloff))

    @property
    def decay_starts(self) -> float:
        return 1.0 - self.falloff


@dataclass(frozen=True, kw_only=True)
class WarmupLinear(Schedule):
    """Linear up to 1, then 1 - progress: the schedule of BERT (arXiv 1810.04805, appendix A.2, and its code).

    The decay counts from the start of the run, so the rate drops by ``warmup`` at the end of the warm-up.
    """

    warmup: float = 0.01
    """Fraction of the run in which the rate rises from 0."""
    warmup_steps: int = 0
    """Optimizer steps of the warm-up in place of ``warmup``, for a budget in steps or tokens; 0 to use ``warmup``."""

    def __post_init__(self) -> None:
        check_fractions(self, warmup=self.warmup)
        if self.warmup_steps < 0:
            raise UserError(f"--schedule.warmup-steps is {self.warmup_steps}.", "Give a number of steps, or 0.")

    def with_steps(self, steps: float) -> WarmupLinear:
        if not self.warmup_steps:
            return self
        return replace(self, warmup=min(1.0, self.warmup_steps / steps), warmup_steps=0)

    def __call__(self, progress: float, rows: int = 0) -> float:
        return progress / self.warmup if progress < self.warmup else max(0.0, 1.0 - progress)

    @property
    def decay_starts(self) -> float:
        return self.warmup


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Linear up to 1, then half a cosine down to 0 (SGDR, arXiv 1608.03983, without restarts)."""

    warmup: float = 0.06
    """Fraction of the run in which the rate rises from 0."""

    def __post_init__(self) -> None:
        check_fractions(self, warmup=self.warmup)

    def __call__(self, progress: float, rows: int = 0) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        if progress >= 1.0:
            return 0.0
        return 0.5 * (1.0 + math.cos(math.pi * (progress - self.warmup) / (1.0 - self.warmup)))

    @property
    def decay_starts(self) -> float:
        return self.warmup


@dataclass(frozen=True, kw_only=True)
class Unfinished(Schedule):
    """Linear up and linear down over a number of microbatches that the budget may not reach.

    Cramming's baseline trains for a day with BERT's schedule of 8 million microbatches (arXiv 2212.14034, "BERT normal
    protocol"). A day covers a small part of it, so the rate never decays. The schedule counts sequences, whatever the
    unit of the budget.
    """

    warmup: int = 80_000
    """Microbatches in which the rate rises from 0."""
    whole: int = 8_000_000
    """Microbatches at which the decay ends."""
    microbatch: int = 64
    """Sequences of a microbatch in these counts; the run may use another microbatch."""
    floor: float = 1e-3
    """Multiplier from then on: 1e-7 for a peak of 1e-4."""

    def __post_init__(self) -> None:
        check_fractions(self, floor=self.floor)
        if not 0 <= self.warmup < self.whole or self.microbatch < 1:
            raise UserError(
                f"--schedule.warmup is {self.warmup} of {self.whole} microbatches of {self.microbatch} sequences.",
                "Give a warm-up shorter than --schedule.whole, and at least one sequence.",
            )

    def __call__(self, progress: float, rows: int = 0) -> float:
        done = rows // self.microbatch
        if done < self.warmup:
            return done / self.warmup
        left = max(0.0, (self.whole - done) / (self.whole - self.warmup))
        return self.floor + (1.0 - self.floor) * left


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """A batch that grows at the start of the run, as in Cramming (arXiv 2212.14034, section 4.3).

    Let M be the microbatch times the number of devices. At fraction f of the ramp, a step has (floor(batch * f / M) +
    1) * M sequences, at most the batch rounded down to a multiple of M. The gradient is divided by the true number of
    targets. The original divides by floor(batch / M) microbatches, also if it accumulated one more.
    """

    fraction: float = 0.0
    """Fraction of the run in which the batch grows; 0 for no ramp."""
    microbatches: int = 0
    """Length of the ramp in microbatches of M sequences, instead of ``fraction``; 0 for no ramp."""
    batch_multiple: int = 0
    """M, the unit of growth. Set it to repeat a run with a different microbatch or number of devices; 0 for the current
    product."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1 or self.microbatches < 0 or self.batch_multiple < 0:
            raise UserError(
                "--ramp.fraction is a fraction of the run, --ramp.microbatches and --ramp.batch-multiple are counts.",
                "Give a fraction in [0, 1], and counts that are not negative.",
            )
        if self.fraction and self.microbatches:
            raise UserError(
                "--ramp.fraction and --ramp.microbatches both set the length of the ramp.", "Set one of them to 0."
            )

    @property
    def enabled(self) -> bool:
        return bool(self.fraction or self.microbatches)

    def rows(self, full: int, progress: float, read: int, batch_multiple: int) -> int:
        """Return the number of sequences of the next step.

        Args:
            full: sequences of a step after the ramp; returned unchanged without a ramp.
            progress: fraction of the run that has passed; 1 for the whole batch.
            read: position of the next sequence, see ``Progress.position``; an extended run continues the count of its
                parent.
            batch_multiple: sequences that all devices process at a time.
        """
        if not self.enabled:
            return full
        multiple = min(self.batch_multiple or batch_multiple, full)
        largest = full // multiple * multiple
        if progress >= 1.0:
            return largest
        if self.microbatches:
            grown = full * (read // multiple) // (self.microbatches * multiple)
        else:
            # The margin keeps exact fractions such as 0.15 of 0.6 on the right side of the floor.
            grown = int(full * progress / (self.fraction * multiple) + 1e-9)
        return min((grown + 1) * multiple, largest)
