"""Guard against divergence: which steps are skipped, and when a run has to roll back.

All decisions are functions of losses and gradient norms, so a replay skips the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SETTLING_STEPS = 20
"""Steps of a stage before its usual loss and norm are known; until then only non-finite values are bad."""
AVERAGING_WEIGHT = 0.05
"""Weight of the newest step in the running means."""
HIGH_LOSS = 2.0
LOSS_MARGIN = 3.0
"""A loss is bad above HIGH_LOSS times the lowest usual loss plus LOSS_MARGIN nats."""
HIGH_NORM = 100.0
CLIP_FACTOR = 10.0
"""A gradient norm is bad above HIGH_NORM times its usual value, if it is also above CLIP_FACTOR times the clipping
norm."""
WINDOW = 20
MAX_BAD_STEPS = 5
"""Number of bad steps among the last WINDOW at which the run rolls back."""

GROWTH_INTERVAL = 1000
"""Good steps after which the loss scale doubles (2,000 in torch's GradScaler)."""
FIRST_SCALE = 2.0**13
"""Lower than GradScaler's, because the scaled loss is a sum over targets and not their mean."""
LARGEST_SCALE = 2.0**24


@dataclass(frozen=True, kw_only=True)
class Health:
    """State of a run's last steps; part of its progress."""

    dropped: int = 0
    """Skipped updates since the start."""
    recent: int = 0
    """The last WINDOW steps as bits, newest lowest: 1 for a bad step."""
    stage: str = ""
    """Stage of the last step; the usual loss of one stage does not apply to another."""
    seen: int = 0
    """Good steps of this stage that were not undone."""
    loss: float = 0.0
    """Usual loss, nats: a running mean over good steps."""
    lowest: float = 0.0
    """Lowest ``loss`` since the stage settled; 0 before."""
    log_norm: float = 0.0
    """Logarithm of the usual gradient norm: a running mean over good steps."""

    def in_stage(self, stage: str) -> Health:
        """The health before a step of ``stage``; a new stage starts without usual values.

        For repetitive text the next-token loss falls below 2 nats, while the masked loss starts above 7.
        """
        if stage == self.stage:
            return self
        return replace(self, stage=stage, seen=0, loss=0.0, lowest=0.0, log_norm=0.0)

    def is_bad(self, loss: float, norm: float, clip: float) -> bool:
        """Whether a step with this mean loss and gradient norm must be skipped."""
        if not math.isfinite(loss) or not math.isfinite(norm):
            return True
        if self.seen < SETTLING_STEPS:
            return False
        return loss > HIGH_LOSS * self.lowest + LOSS_MARGIN or norm > max(
            HIGH_NORM * math.exp(self.log_norm), CLIP_FACTOR * clip
        )

    def after_good(self, loss: float, norm: float) -> Health:
        """The health after a step that updated the weights."""
        weight = max(AVERAGING_WEIGHT, 1 / (self.seen + 1))
        usual = self.loss + weight * (loss - self.loss)
        settled = self.seen + 1 >= SETTLING_STEPS
        return replace(
            self,
            recent=self._recent_with(0),
            seen=self.seen + 1,
            loss=usual,
            lowest=min(self.lowest or usual, usual) if settled else 0.0,
            log_norm=self.log_norm + weight * (math.log(max(norm, 1e-30)) - self.log_norm),
        )

    def after_bad(self) -> Health:
        """The health after a skipped step that may be a sign of divergence."""
        return replace(self, dropped=self.dropped + 1, recent=self._recent_with(1))

    def after_overflow(self) -> Health:
        """The health after a float16 step skipped because the loss scale was too large; not a sign of divergence."""
        return replace(self, dropped=self.dropped + 1, recent=self._recent_with(0))

    def _recent_with(self, bit: int) -> int:
        return (self.recent << 1 | bit) & ((1 << WINDOW) - 1)

    @property
    def has_diverged(self) -> bool:
        """Whether so many recent steps were bad that the run must roll back."""
        return self.recent.bit_count() >= MAX_BAD_STEPS


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """Factor of the loss before the float16 backward pass, which keeps small gradients from underflow.

    Works like torch's GradScaler, but as part of the progress and a function of it.
    """

    factor: float = 1.0
    good: int = 0
    """Steps without overflow since the factor last changed."""

    def after_good(self) -> LossScale:
        if self.factor == 1.0:
            return self  # the precision needs no scale
        if self.good + 1 < GROWTH_INTERVAL or self.factor >= LARGEST_SCALE:
            return replace(self, good=self.good + 1)
        return LossScale(factor=self.factor * 2)

    def after_overflow(self) -> LossScale:
        return LossScale(factor=self.factor / 2)

    @staticmethod
    def first(precision: str) -> LossScale:
        """The initial scale for this precision."""
        return LossScale(factor=FIRST_SCALE) if precision == "float16" else LossScale()

    @property
    def can_shrink(self) -> bool:
        """Whether the scale can be lowered. At 2 it cannot, so an overflow then has another cause."""
        return self.factor > 2.0
