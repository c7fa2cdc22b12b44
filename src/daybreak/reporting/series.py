"""Numbers on their way into a plot: units, thinning, and JSON that a browser accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from daybreak.core.formatting import scale_of

POINTS_PER_TRACE = 2000
POINTS_PER_PAGE = 50_000
"""Keeps the page under 6 MB whatever the number of runs."""


def thinned(values: Sequence[Any], most: int = POINTS_PER_TRACE) -> list[Any]:
    """Return at most ``most`` of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    stride = (len(values) - 1) / (most - 1)
    return [values[round(i * stride)] for i in range(most)]


def time_unit(longest: float) -> tuple[float, str]:
    """Return (seconds in the unit, its name) so that an axis up to ``longest`` seconds reads well."""
    if longest < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest < 3 * 3600 else (3600.0, "hours")


def token_unit(most: float) -> tuple[float, str]:
    """Return (tokens in the unit, its name): ``(1e6, 'million tokens')``."""
    size, name = scale_of(most)
    return size, f"{name} tokens".strip()


def rounded(value: Any) -> Any:
    """Five significant digits are more than a pixel; infinities and NaN become gaps (null)."""
    if isinstance(value, float):
        short = float(f"{value:.5g}")
        return short if math.isfinite(short) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def to_script(value: Any) -> str:
    """JSON that may stand inside a <script> element: no ``<``, so no text in it can close the element."""
    text = json.dumps(rounded(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
