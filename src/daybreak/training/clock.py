"""One agreed, replayable clock: the only file that reads time for a decision.

Rank 0 reads the clock and every rank uses its number; schedules see nothing but ``progress`` in [0, 1]. Ranks that
read their own clocks drift apart; a saved trace of (step, elapsed, progress) can be run again bit for bit.

Budget and progress are two things. A time budget counts from the start of the process, so imports, measuring and
compiling are charged to it. Progress runs over what the budget leaves when the first step begins, so a slow start
takes nothing away from the warm-up or the causal stage.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from daybreak.core.errors import UserError
from daybreak.core.files import read_json_lines
from daybreak.core.serialization import from_dict
from daybreak.core.world import World
from daybreak.schemas.run import TraceRecord

MARGIN = 1.2
"""What comes after the last step may take this much longer than measured before it eats into the tolerance."""
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Budget:
    """How much a run may spend: seconds, tokens or optimizer steps."""

    amount: float
    unit: str
    """seconds, tokens or steps."""
    text: str
    """As the user wrote it."""

    @property
    def seconds(self) -> float | None:
        """None for a budget in tokens or steps."""
        return self.amount if self.unit == "seconds" else None

    @staticmethod
    def parse(text: str) -> Budget:
        """Read ``90s``, ``30m``, ``24h``, ``1.5d``, ``2e9tok`` or ``10000steps``.

        Raises:
            UserError: the text is none of these, not positive, or beyond all measure.
        """
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*(s|m|h|d|tok|steps)\s*", text.lower())
        if not match or not 0 < float(match[1]) < 1e18:
            raise UserError(f"'{text}' is no budget.", "Write it like 90s, 30m, 24h, 2d, 2e9tok or 10000steps.")
        amount, unit = float(match[1]), match[2]
        if unit in SECONDS:
            return Budget(amount * SECONDS[unit], "seconds", text.strip())
        return Budget(amount, "tokens" if unit == "tok" else "steps", text.strip())


def reserve_for(*, validation: float, save: float, step: float) -> float:
    """Seconds to keep back at the end for the last validation, two writes of the weights and half a step."""
    return MARGIN * (validation + 2 * save) + step / 2


@dataclass(frozen=True)
class Tick:
    """The clock at the border before a step. ``progress`` of 1 or more ends the run."""

    elapsed: float
    progress: float
    leaving: bool = False
    """Whether any process of the run was asked to leave."""


class Clock(ABC):
    """How far a run is, the same number on every rank: all that schedules and the end of a run go by."""

    reserve: float = 0.0
    """Seconds of a time budget that are kept for what comes after the last step."""
    first_step_at: float | None = None
    """Seconds charged when the first step began, at progress 0; None before the first tick."""

    @abstractmethod
    def tick(self, step: int, tokens: int, *, leaving: bool = False) -> Tick:
        """Read the clock before optimizer step ``step``, when ``tokens`` tokens have been read.

        Args:
            leaving: whether this process was asked to leave.
        """

    def voice(self, leaving: bool) -> tuple[float, ...]:
        """What this rank adds to the numbers that the ranks sum up in a step, so that ``hear`` knows the sums.

        Args:
            leaving: whether this process was asked to leave.
        """
        return ()

    def hear(self, sums: Sequence[float]) -> None:
        """Take the sums of all voices: the next tick needs no message of its own."""
        return

    @abstractmethod
    def elapsed(self) -> float:
        """Seconds charged so far, on this rank, for records only."""

    @abstractmethod
    def keep_back(self, seconds: float) -> None:
        """Reserve this much of a time budget for what comes after the last step, as measured lately."""


class BudgetClock(Clock):
    """Measures against a budget.

    Args:
        started: ``time.monotonic()`` at which this process began to be charged.
        already: seconds charged to earlier processes of the run, up to their last heartbeat.
        reserve: seconds of a time budget kept for the last validation and the export.
        first_step_at: seconds charged when the first step began; None where the first tick is to tell.
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
        now: Callable[[], float] = time.monotonic,
    ):
        self._budget = budget
        self._world = world
        self._started = started
        self._already = already
        self._now = now
        self.reserve = reserve
        self.first_step_at = first_step_at
        self._progress = 0.0
        self._heard: Sequence[float] = ()

    def elapsed(self) -> float:
        return self._already + self._now() - self._started

    def keep_back(self, seconds: float) -> None:
        self.reserve = seconds

    def voice(self, leaving: bool) -> tuple[float, ...]:
        if self._world.size == 1:
            return ()
        # Nothing but zeros is added to what rank 0 holds: the sum is its numbers, bit for bit. The reserve too, for
        # each rank measured its own validations.
        return (self.elapsed(), self.reserve, leaving) if self._world.is_first else (0.0, 0.0, leaving)

    def hear(self, sums: Sequence[float]) -> None:
        self._heard = sums

    def tick(self, step: int, tokens: int, *, leaving: bool = False) -> Tick:
        """Right after a step its time is that of the step's own message, an update of the weights ago."""
        elapsed, reserve, asked = self.elapsed(), self.reserve, float(leaving)
        if self._world.size > 1:
            said = torch.tensor(self.voice(leaving), dtype=torch.float64)
            elapsed, reserve, asked = self._heard or self._world.add(said).tolist()
        self._heard = ()
        if self.first_step_at is None:  # from the agreed time, so this too is the same number on every rank
            self.first_step_at = elapsed
        if self._budget.unit == "seconds":
            end = self._budget.amount - reserve
            progress = (elapsed - self.first_step_at) / (end - self.first_step_at) if elapsed < end else 1.0
        else:
            progress = (tokens if self._budget.unit == "tokens" else step) / self._budget.amount
        # Never back, also when less is reserved than before.
        self._progress = max(self._progress, min(progress, 1.0))
        return Tick(elapsed, self._progress, asked > 0)


class ReplayClock(Clock):
    """Repeats the ticks of a recorded run; ``progress`` 1 after its last step."""

    def __init__(self, trace: list[TraceRecord]):
        self._trace = trace

    def tick(self, step: int, tokens: int, *, leaving: bool = False) -> Tick:
        if step >= len(self._trace):
            return Tick(self._trace[-1].elapsed if self._trace else 0.0, 1.0, leaving)
        record = self._trace[step]
        assert record.step == step
        return Tick(record.elapsed, record.progress, leaving)

    def elapsed(self) -> float:
        return self._trace[-1].elapsed if self._trace else 0.0

    def keep_back(self, seconds: float) -> None:
        """Nothing: a recorded run has ended already."""


def read_trace(path: Path) -> list[TraceRecord]:
    """Read trace.jsonl; a torn last line is left out."""
    return [from_dict(TraceRecord, line) for line in read_json_lines(path)]
