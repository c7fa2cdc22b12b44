"""The guard against divergence: which steps are left out, and when a run has to go back.

Everything is a function of losses and gradient norms, so a replay leaves out the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SETTLED = 20
"""Steps of a stage after which a run knows what is usual; before, only what is not finite counts as bad."""
MEMORY = 0.05
"""Weight of the newest step in what is usual."""
HIGH_LOSS = 2.0
ABOVE = 3.0
"""A loss explodes above HIGH_LOSS times the lowest usual loss plus ABOVE nats."""
HIGH_NORM = 100.0
OVER_CLIP = 10.0
"""A gradient explodes above HIGH_NORM times its usual norm, when that is also OVER_CLIP times what clipping lets by."""
WINDOW = 20
TOO_MANY = 5
"""Bad steps among the last WINDOW after which leaving them out is no help: the weights are ill."""

GROWS_AFTER = 1000
"""Good steps after which a loss scale is tried twice as large (torch's GradScaler takes 2,000)."""
FIRST_SCALE = 2.0**13
"""Lower than GradScaler's, for the loss that is scaled is a sum over targets and not their mean."""
LARGEST_SCALE = 2.0**24


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a run's last steps went; part of its progress."""

    dropped: int = 0
    """Steps whose update was left out since the start."""
    recent: int = 0
    """Of the last WINDOW steps, newest in the lowest bit: 1 for a bad one."""
    stage: str = ""
    """What was learned at the last step: a loss says nothing of what is usual in another stage."""
    seen: int = 0
    """Good steps of this stage, of those that were not undone."""
    loss: float = 0.0
    """Usual loss, nats: a running mean over good steps."""
    lowest: float = 0.0
    """Lowest that ``loss`` has been since it settled in this stage; 0 before."""
    log_norm: float = 0.0
    """Logarithm of the usual gradient norm, likewise."""

    def in_stage(self, stage: str) -> Health:
        """The health before a step of ``stage``: a new one begins without knowing what is usual in it.

        Text that repeats itself is forecast word by word to within 2 nats, but its masked words begin above 7.
        """
        if stage == self.stage:
            return self
        return replace(self, stage=stage, seen=0, loss=0.0, lowest=0.0, log_norm=0.0)

    def is_bad(self, loss: float, norm: float, clip: float) -> bool:
        """Whether a step with this mean loss and this gradient norm must not reach the weights."""
        if not math.isfinite(loss) or not math.isfinite(norm):
            return True
        if self.seen < SETTLED:
            return False
        return loss > HIGH_LOSS * self.lowest + ABOVE or norm > max(
            HIGH_NORM * math.exp(self.log_norm), OVER_CLIP * clip
        )

    def after_good(self, loss: float, norm: float) -> Health:
        """The health after a step that was taken."""
        weight = max(MEMORY, 1 / (self.seen + 1))
        usual = self.loss + weight * (loss - self.loss)
        settled = self.seen + 1 >= SETTLED
        return replace(
            self,
            recent=self._shifted(0),
            seen=self.seen + 1,
            loss=usual,
            lowest=min(self.lowest or usual, usual) if settled else 0.0,
            log_norm=self.log_norm + weight * (math.log(max(norm, 1e-30)) - self.log_norm),
        )

    def after_bad(self) -> Health:
        """The health after a step that was left out because the run may be diverging."""
        return replace(self, dropped=self.dropped + 1, recent=self._shifted(1))

    def after_overflow(self) -> Health:
        """The health after a step of float16 that was left out because the loss scale was too large: no illness."""
        return replace(self, dropped=self.dropped + 1, recent=self._shifted(0))

    def _shifted(self, bit: int) -> int:
        return (self.recent << 1 | bit) & ((1 << WINDOW) - 1)

    @property
    def is_ill(self) -> bool:
        """Whether so many recent steps were bad that the weights must be put back."""
        return self.recent.bit_count() >= TOO_MANY


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """What the loss is multiplied by before the backward pass of float16, so that small gradients are not lost.

    As torch's GradScaler, but part of the progress and a function of it.
    """

    factor: float = 1.0
    good: int = 0
    """Steps without an overflow since the factor last changed."""

    def after_good(self) -> LossScale:
        if self.factor == 1.0:
            return self  # not in use
        if self.good + 1 < GROWS_AFTER or self.factor >= LARGEST_SCALE:
            return replace(self, good=self.good + 1)
        return LossScale(factor=self.factor * 2)

    def after_overflow(self) -> LossScale:
        return LossScale(factor=self.factor / 2)

    @staticmethod
    def first(precision: str) -> LossScale:
        """The scale that a run of this precision begins with."""
        return LossScale(factor=FIRST_SCALE) if precision == "float16" else LossScale()

    @property
    def can_shrink(self) -> bool:
        """Whether an overflow may be the scale's fault; at 2 it can no longer be."""
        return self.factor > 2.0
