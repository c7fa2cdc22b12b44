"""Batch ramp: the batch grows over the first part of a run."""

from __future__ import annotations

from dataclasses import dataclass

from daybreak.core.errors import UserError


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

    def rows(self, full: int, progress: float, read: int, batch_multiple: int) -> int:
        """Return the number of sequences of the next step.

        Args:
            full: sequences of a step after the ramp; returned unchanged without a ramp.
            progress: fraction of the run that has passed; 1 for the whole batch.
            read: position of the next sequence, see ``Progress.position``; an extended run continues the count of its
                parent.
            batch_multiple: sequences that all devices process at a time.
        """
        if not self.fraction and not self.microbatches:
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
