"""One agreed, replayable clock; no other file reads the time for a decision.

Rank 0 reads the clock and every rank uses its number; schedules depend only on ``progress`` in [0, 1]. Ranks with their
own clocks would drift apart. A saved trace of (step, elapsed, progress) can be replayed bit for bit.

Budget and progress differ. A time budget counts from the start of the process, including imports, measurements and
compilation. Progress covers the part of the budget that is left at the first step, so a slow start does not shorten the
warm-up or the causal stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from daybreak.core.budget import Budget
from daybreak.core.files import read_json_lines
from daybreak.core.process import uptime
from daybreak.core.serialization import from_dict
from daybreak.core.world import World
from daybreak.schemas.run import TraceRecord

MARGIN = 1.2
"""Safety factor on the measured time of the work after the last step."""


def reserve_for(*, validation: float, save: float, step: float) -> float:
    """Seconds reserved for the end: the last validation, two writes of the weights and half a step."""
    return MARGIN * (validation + 2 * save) + step / 2


@dataclass(frozen=True)
class Tick:
    """A reading of the clock before a step."""

    elapsed: float
    """Seconds charged to the budget."""
    progress: float
    """Fraction of the budget that has passed; 1 or more ends the run."""
    stopping: bool = False
    """Whether any process of the run received a signal to stop."""


class Clock(ABC):
    """Progress of a run, the same number on every rank; schedules and the end of the run depend only on it."""

    reserve: float = 0.0
    """Seconds of a time budget reserved for the work after the last step."""
    first_step_at: float | None = None
    """Seconds charged when the first step starts, at progress 0; None before the first tick."""

    @abstractmethod
    def tick(self, step: int, tokens: int, *, stopping: bool = False) -> Tick:
        """Read the clock before optimizer step ``step``, after ``tokens`` tokens.

        Args:
            stopping: whether this process received a signal to stop.
        """

    def payload(self, stopping: bool) -> tuple[float, ...]:
        """This rank's numbers for the sum over ranks in a step; ``receive`` takes the sums.

        Args:
            stopping: whether this process received a signal to stop.
        """
        return ()

    def receive(self, sums: Sequence[float]) -> None:
        """Store the sums of all ranks' payloads, so that the next tick needs no message of its own."""
        return

    @abstractmethod
    def elapsed(self) -> float:
        """Seconds charged so far on this rank; for records only."""

    def keep_back(self, seconds: float) -> None:
        """Reserve this many seconds of a time budget for the work after the last step."""
        self.reserve = seconds


class BudgetClock(Clock):
    """Clock that measures a budget.

    Args:
        started: ``uptime()`` from which this process is charged.
        already: seconds charged to earlier processes of the run, up to their last heartbeat.
        reserve: seconds of a time budget reserved for the last validation and the export.
        first_step_at: seconds charged when the first step starts; None to set it at the first tick.
    """

    def __init__(
        self,
        budget: Budget,
        world: World,
        *,
        started: float,
        already: float = 0.0,
        reserve: float = 0.0,
        first_step_at: float | None = None,
        now: Callable[[], float] = uptime,
    ):
        self._budget = budget
        self._world = world
        self._started = started
        self._already = already
        self._now = now
        self.reserve = reserve
        self.first_step_at = first_step_at
        self._progress = 0.0
        self._received: Sequence[float] = ()

    def elapsed(self) -> float:
        return self._already + self._now() - self._started

    def payload(self, stopping: bool) -> tuple[float, ...]:
        if self._world.size == 1:
            return ()
        # The other ranks add zeros, so the sum equals the numbers of rank 0 bit for bit. This includes the reserve,
        # because each rank measures its own validations.
        return (self.elapsed(), self.reserve, stopping) if self._world.is_first else (0.0, 0.0, stopping)

    def receive(self, sums: Sequence[float]) -> None:
        self._received = sums

    def tick(self, step: int, tokens: int, *, stopping: bool = False) -> Tick:
        """Read the clock; after a step the time is that of the step's own message, one weight update earlier."""
        elapsed, reserve, stop = self.elapsed(), self.reserve, float(stopping)
        if self._world.size > 1:
            payload = torch.tensor(self.payload(stopping), dtype=torch.float64)
            elapsed, reserve, stop = self._received or self._world.add(payload).tolist()
        self._received = ()
        if self.first_step_at is None:  # the agreed time, so this number is the same on every rank
            self.first_step_at = elapsed
        if self._budget.unit == "seconds":
            end = self._budget.amount - reserve
            progress = (elapsed - self.first_step_at) / (end - self.first_step_at) if elapsed < end else 1.0
        else:
            progress = (tokens if self._budget.unit == "tokens" else step) / self._budget.amount
        # Progress never decreases, even if the reserve shrinks.
        self._progress = max(self._progress, min(progress, 1.0))
        return Tick(elapsed, self._progress, stop > 0)


class ReplayClock(Clock):
    """Clock that repeats the ticks of a recorded run; ``progress`` is 1 after its last step."""

    def __init__(self, trace: list[TraceRecord]):
        self._trace = trace

    def tick(self, step: int, tokens: int, *, stopping: bool = False) -> Tick:
        if step >= len(self._trace):
            return Tick(self._trace[-1].elapsed if self._trace else 0.0, 1.0, stopping)
        record = self._trace[step]
        assert record.step == step
        return Tick(record.elapsed, record.progress, stopping)

    def elapsed(self) -> float:
        return self._trace[-1].elapsed if self._trace else 0.0


def read_trace(path: Path) -> list[TraceRecord]:
    """Read trace.jsonl; an incomplete last line is ignored."""
    return [from_dict(TraceRecord, line) for line in read_json_lines(path)]
