"""Deadlines: a point in time by which all work must end."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from daybreak.core.errors import UserError

FORMATS = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
REMEDY = "Write it like --deadline 07:00 or --deadline '2026-11-23 07:00', in this machine's time."


@dataclass(frozen=True)
class Deadline:
    at: datetime
    """In local time."""

    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.at.timestamp() - time.time()

    @staticmethod
    def parse(text: str, now: datetime | None = None) -> Deadline:
        """Parse ``07:00``, the next such time of day, or ``2026-11-23 07:00``.

        Raises:
            UserError: the text has another form, or the time has passed.
        """
        now = now or datetime.now()
        text = text.strip()
        if match := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
            hour, minute = int(match[1]), int(match[2])
            if hour > 23 or minute > 59:
                raise UserError(f"There is no time '{text}'.", REMEDY)
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return Deadline(at if at > now else at + timedelta(days=1))
        for form in FORMATS:
            try:
                at = datetime.strptime(text, form)
            except ValueError:
                continue
            if at <= now:
                raise UserError(f"'{text}' has passed.", REMEDY)
            return Deadline(at)
        raise UserError(f"'{text}' is not a time.", REMEDY)
