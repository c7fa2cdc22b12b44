"""The budget of a run, as it is written on the command line and in recipe.json."""

from __future__ import annotations

import re
from dataclasses import dataclass

from daybreak.core.errors import UserError

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


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
        """Parse ``90s``, ``30m``, ``24h``, ``1.5d``, ``2e9tok`` or ``10000steps``.

        Raises:
            UserError: the text has another form, or the number is not positive or too large.
        """
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*(s|m|h|d|tok|steps)\s*", text.lower())
        if not match or not 0 < float(match[1]) < 1e18:
            raise UserError(f"'{text}' is not a budget.", "Write it like 90s, 30m, 24h, 2d, 2e9tok or 10000steps.")
        amount, unit = float(match[1]), match[2]
        if unit in SECONDS:
            return Budget(amount * SECONDS[unit], "seconds", text.strip())
        return Budget(amount, "tokens" if unit == "tok" else "steps", text.strip())
