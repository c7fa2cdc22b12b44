"""Train a regression on targets with mean 0 and standard deviation 1, and give the model the units of the task back.

A fine-tuning moves a weight by a few hundredths, so the output of a model would not reach targets in the hundreds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import torch
from torch import nn

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.task import LabeledRows

LARGEST, FEWEST_DIGITS = 1e30, 1e-5
"""Largest target, and smallest standard deviation of targets in units of their mean."""


@dataclass(frozen=True)
class Units:
    """Mean and standard deviation of the targets of training."""

    mean: float
    deviation: float

    @torch.no_grad()
    def give_back_to(self, model: nn.Module) -> None:
        """Change the last layer of a fine-tuned model so that its output has the units of the task."""
        layers = (module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1)
        *_, last = layers
        last.weight.mul_(self.deviation)
        last.bias.mul_(self.deviation).add_(self.mean)


def standardized(rows: LabeledRows) -> tuple[LabeledRows, Units]:
    """Return rows with standardized targets, and their former units; constant targets become 0.

    Raises:
        UserError: the numbers are too large for float32, or it has too few digits to tell them apart.
    """
    units = Units(statistics.fmean(rows.targets), statistics.pstdev(rows.targets) or 1.0)
    if max(map(abs, rows.targets)) > LARGEST or units.deviation < FEWEST_DIGITS * abs(units.mean):
        raise UserError(
            f"The numbers of the task have a mean of {units.mean:.3g} and a standard deviation of "
            f"{units.deviation:.3g}, which a model cannot tell apart.",
            "Subtract a constant from them, or divide them by one.",
        )
    return replace(rows, targets=[(target - units.mean) / units.deviation for target in rows.targets]), units
