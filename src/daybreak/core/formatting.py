"""Formatting of numbers and names for the report, the model card and ``daybreak status``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from daybreak.core.errors import UserError

NLL = "nll"
MOST_SEEDS = 10_000
"""Key of the mean negative log-likelihood in nats among the metrics, the only one that is not multiplied by 100."""
_SCALES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand"))


def scale_of(largest: float) -> tuple[float, str]:
    """Return the unit in which ``largest`` reads best: ``(1e6, 'million')``; below 10,000 it is ``(1.0, '')``."""
    for size, name in _SCALES:
        if largest >= size and largest >= 1e4:
            return size, name
    return 1.0, ""


def count(number: float) -> str:
    """``1234567`` -> ``1.23 million``; ``8192`` -> ``8,192``; ``52300`` -> ``52.3 thousand``."""
    size, name = scale_of(number)
    return f"{number:,.0f}" if not name else f"{significant(number / size)} {name}"


def compact(number: float) -> str:
    """Format for table columns: ``1234567`` -> ``1.23M``; ``52300`` -> ``52.3k``; ``812`` -> ``812``."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{significant(number / size)}{letter}"
    return f"{number:,.0f}"


def significant(number: float, digits: int = 3) -> str:
    """``number`` with at least ``digits`` significant digits and no exponent: ``0.00123``, ``1.20``, ``1,234``."""
    if not math.isfinite(number):
        return "not a number"
    if number == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(number)))
    return f"{number:,.{min(max(places, 0), 12)}f}"


def percent(fraction: float) -> str:
    """Format a fraction in [0, 1] as a percentage with one decimal: ``19.3 %``."""
    return f"{100 * fraction:.1f} %"


def score(value: float) -> str:
    """Format a task score, a fraction or a correlation, times 100 with one decimal, as in GLUE tables."""
    return f"{100 * value:.1f}"


def signed(value: float, places: int = 2) -> str:
    """Format with a sign, also for gains: ``+1.20``, ``-0.35``."""
    return f"{value:+.{places}f}"


def metric_name(metric: str) -> str:
    """The key of a metric in words: ``mismatched_accuracy`` -> ``mismatched accuracy``."""
    return metric.replace(NLL, "negative log-likelihood").replace("_", " ")


def listed(names: Sequence[str], most: int | None = None) -> str:
    """``a``, ``a and b``, ``a, b and c``; of more than ``most`` names the first ones and the number of others."""
    if most is not None and len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def check_price(price: float | None) -> None:
    """Raise UserError unless ``price``, of an hour of a machine in any currency, is a valid price, or None."""
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"{price} is not a price.", "Give the price of an hour of this machine with --price.")


def check_seeds(seeds: int | None) -> None:
    """Raise UserError unless ``seeds``, a number of fine-tunings, is from 1 to MOST_SEEDS, or None."""
    check_whole("seeds", seeds)
    if seeds is not None and seeds < 1:
        raise UserError(f"{seeds} seeds are too few.", "Use at least 1; a claim needs 3.")
    if seeds is not None and seeds > MOST_SEEDS:
        raise UserError(f"{seeds} seeds are too many.", f"Use at most {MOST_SEEDS}.")


def check_whole(name: str, value: object) -> None:
    """Raise UserError unless ``value``, the argument ``name`` of a Python function, is a whole number, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UserError(f"{name} is {value!r}, which is no whole number.", f"Give {name} as an int.")
