"""How fast a run goes along its course: stages that predict fewer tokens take less time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daybreak.schemas.run import Decisions

COURSE = (0.0, 0.5, 1.0)
"""Shares of a run at which a step is timed; in between its speed is taken to change evenly."""


@dataclass(frozen=True)
class Pace:
    """Speed along the course of a run, as it was before the first step."""

    speeds: tuple[float, ...]
    """Steps a second at COURSE."""

    def covered(self, progress: float) -> float:
        """Steps up to ``progress`` (0 to 1), of a run that lasts a second."""
        places = sorted({*(place for place in COURSE if place < progress), 0.0, progress})
        return float(np.trapezoid(np.interp(places, COURSE, self.speeds), places))


def pace_of(decisions: Decisions) -> Pace:
    """As it was measured; even where only the end of the run was, by an earlier version."""
    seconds = decisions.course_seconds or [decisions.step_seconds[decisions.precision]] * len(COURSE)
    return Pace(tuple(1.0 / one for one in seconds))
