"""Budgets and deadlines of runs, as they are written on the command line and in recipe.json."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from daybreak.core.errors import UserError

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOMENTS = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
REMEDY = "Write it like --deadline 07:00 or --deadline '2026-11-23 07:00', in this machine's time."


@dataclass(frozen=True)
class Budget:
    """What a run may use: seconds, tokens or optimizer steps."""

    amount: float
    unit: str
    """seconds, tokens or steps."""
    text: str
    """The text that the user wrote."""

    @property
    def seconds(self) -> float | None:
        """None for a budget in tokens or steps."""
        return self.amount if self.unit == "seconds" else None

    @staticmethod
    def parse(text: str) -> Budget:
        """Parse ``90s``, ``30m``, ``24h``, ``1.5d``, ``2e9tok`` or ``10000steps``."""
        # From Python it may be a number, which has no unit.
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*(s|m|h|d|tok|steps)\s*", str(text).lower())
        if not match or not 0 < float(match[1]) < 1e18:
            raise UserError(f"'{text}' is not a budget.", "Write it like 90s, 30m, 24h, 2d, 2e9tok or 10000steps.")
        amount, unit = float(match[1]), match[2]
        if unit in SECONDS:
            return Budget(amount * SECONDS[unit], "seconds", text.strip())
        return Budget(amount, "tokens" if unit == "tok" else "steps", text.strip())


@dataclass(frozen=True)
class Deadline:
    """A point in time by which all work must end."""

    at: datetime
    """In local time."""

    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.at.timestamp() - time.time()

    @staticmethod
    def parse(text: str, now: datetime | None = None) -> Deadline:
        """Parse ``07:00``, the next such time of day, or ``2026-11-23 07:00``."""
        now = now or datetime.now()
        text = text.strip()
        if match := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
            hour, minute = int(match[1]), int(match[2])
            if hour > 23 or minute > 59:
                raise UserError(f"There is no time '{text}'.", REMEDY)
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return Deadline(at if at > now else at + timedelta(days=1))
        for form in MOMENTS:
            try:
                at = datetime.strptime(text, form)
            except ValueError:
                continue
            if at <= now:
                raise UserError(f"'{text}' has passed.", REMEDY)
            return Deadline(at)
        raise UserError(f"'{text}' is not a time.", REMEDY)
