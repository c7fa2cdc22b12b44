"""Schedules: pure functions of progress in [0, 1], the same object for hours, tokens and steps."""

from __future__ import annotations

from dataclasses import dataclass

from daybreak.base.plain import Component


@dataclass(frozen=True, kw_only=True)
class Schedule(Component):
    """What the learning rate is multiplied by as the run goes on."""

    def __call__(self, progress: float) -> float:
        """Return the multiplier in [0, 1] for ``progress`` in [0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Trapezoid(Schedule):
    """Linear up, flat, linear down to 0; the long decay follows modded-nanogpt and ModernBERT (arXiv 2412.13663)."""

    warmup: float = 0.02
    """Share of the run in which the rate rises from 0."""
    decay: float = 0.5
    """Share of the run, at its end, in which the rate falls to 0."""

    def __call__(self, progress: float) -> float:
        rise = progress / self.warmup if self.warmup > 0 else 1.0
        fall = (1.0 - progress) / self.decay if self.decay > 0 else 1.0
        return max(0.0, min(1.0, rise, fall))
