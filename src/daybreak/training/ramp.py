"""A batch that grows over the first part of a run."""

from __future__ import annotations

from dataclasses import dataclass

from daybreak.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """Rows of an optimizer step on the way to the full batch, as in Cramming (arXiv 2212.14034, section 4.3).

    All in quanta of M rows, the microbatch times the devices: (floor(full * f / M) + 1) * M rows at the share f of the
    ramp, at most ``full`` rounded down to a multiple of M. The original divides by floor(full / M) microbatches but
    steps after one more where M does not divide the batch; here the gradient is divided by the true number of rows.
    """

    fraction: float = 0.0
    """Share of the run in which the batch grows; 0 for none."""
    microbatches: int = 0
    """Or the microbatches of M rows in which it grows; 0 for none."""
    batch_multiple: int = 0
    """M, to repeat a run with another microbatch; 0 for the one at hand."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1 or self.microbatches < 0 or self.batch_multiple < 0:
            raise UserError(
                "--ramp.fraction is a share of the run, --ramp.microbatches and --ramp.batch-multiple are counts.",
                "Give a share in [0, 1], and counts that are not negative.",
            )
        if self.fraction and self.microbatches:
            raise UserError(
                "--ramp.fraction and --ramp.microbatches both say how long the batch grows.", "Set one of them to 0."
            )

    def rows(self, full: int, progress: float, read: int, batch_multiple: int) -> int:
        """Return how many rows the next step takes.

        Args:
            full: rows of a step after the ramp; returned as it is when there is no ramp.
            progress: share of the run that has passed.
            read: the next row, see ``Progress.position``: a run that goes on from another counts from where that stood.
            batch multiple: rows that all devices handle at a time.
        """
        if not self.fraction and not self.microbatches:
            return full
        unit = min(self.batch_multiple or batch_multiple, full)
        whole = full // unit * unit
        if self.microbatches:
            grown = full * (read // unit) // (self.microbatches * unit)
        else:
            # The margin keeps exact shares such as 0.15 of 0.6 on the right side of the floor.
            grown = int(full * progress / (self.fraction * unit) + 1e-9)
        return min((grown + 1) * unit, whole)
