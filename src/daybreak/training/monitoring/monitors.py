"""Monitors: they receive finished records and cannot change the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from daybreak.core.terminal import Work, duration, say
from daybreak.schemas.run import PLATEAU_MARGIN, MachineRecord, StepRecord, ValidationRecord


class Monitor(Protocol):
    """Ignores what a subclass does not override."""

    def on_step(self, record: StepRecord) -> None:
        """Receive the means over the steps since the last record."""
        return

    def on_validation(self, record: ValidationRecord) -> None:
        """Receive a validation."""
        return

    def on_machine(self, record: MachineRecord) -> None:
        """Receive the telemetry of the first process' machine."""
        return


class Live(Monitor):
    """The progress line: stage, losses, speed, and the rest of the budget."""

    def __init__(self, work: Work, seconds: float | None, plateau_loss: float, remark: Callable[[], str] = lambda: ""):
        self._work = work
        self._seconds = seconds
        self._plateau_loss = plateau_loss
        self._remark = remark
        self._validation = ""

    def on_step(self, record: StepRecord) -> None:
        left = f"{duration(self._seconds - record.elapsed)} left" if self._seconds else f"step {record.step}"
        speed = f"{record.tokens_per_second / 1000:.1f}k tok/s"
        gap = record.loss - self._plateau_loss
        side = "above" if gap > 0 else "below"
        loss = f"{record.stage} loss {record.loss:.3f}{self._validation}"
        gap_words = f"{abs(gap):.2f} {side} the unigram baseline"
        self._work.show(record.progress, f"{left}  {loss}  {speed}  {gap_words}{self._remark()}")

    def on_validation(self, record: ValidationRecord) -> None:
        self._validation = f"  held-out {record.loss:.3f}"


def plateau_advice(smaller: str = "") -> str:
    """Advice for a run above the unigram baseline.

    Args:
        smaller: option for a smaller model; empty if there is none.
    """
    ways = ["more time", *([f"a smaller model ({smaller})"] if smaller else [])]
    return f"What helps most: {', '.join(ways)}, a higher learning rate or a smaller batch."


class Plateau(Monitor):
    """Prints once that a run still predicts no better than the unigram baseline after a fifth of its budget."""

    START = 0.2
    SETTLING = 0.1
    """Fraction of the run after the start of a stage or of this process whose high losses are ignored."""

    def __init__(self, plateau_loss: float, smaller: str = ""):
        self._plateau_loss = plateau_loss
        self._advice = plateau_advice(smaller)
        self._reported = False
        self._stage, self._stage_started = "", 0.0

    def on_step(self, record: StepRecord) -> None:
        gap = record.loss - self._plateau_loss
        if record.stage != self._stage:
            self._stage, self._stage_started = record.stage, record.progress
        if self._reported or record.progress < max(self.START, self._stage_started + self.SETTLING):
            return
        self._reported = True
        if gap > -PLATEAU_MARGIN:
            say(
                f"The model is not clearly better than the unigram baseline yet: at {record.progress:.0%} of the "
                f"budget the loss is {record.loss:.2f}, and the baseline is {self._plateau_loss:.2f}. {self._advice}"
            )
