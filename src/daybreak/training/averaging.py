"""Weight averaging over the end of a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from daybreak.core.errors import UserError

COUNT = "count"
MEAN = "mean."
"""Prefix of parameter names in a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Average of the weights over the end of the run (LAWA, arXiv 2209.14981)."""

    fraction: float = 0.0
    """Last fraction of the run, whose weights are averaged; 0 for no averaging."""
    every: int = 10
    """Number of optimizer steps from one averaged set of weights to the next."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise UserError(
                f"--average.fraction is {self.fraction:g}, but it is a fraction of the run.", "Give a number in [0, 1]."
            )
        if self.every < 1:
            raise UserError(f"--average.every is {self.every}.", "Give a count of steps, at least 1.")

    def counts(self, step: int, progress: float) -> bool:
        """Whether the weights after ``step`` steps, at this progress, are part of the mean."""
        return self.fraction > 0 and progress >= 1.0 - self.fraction and step % self.every == 0


class RunningAverage:
    """Mean of the weights so far, each with the same weight: float32, on the device of the parameters.

    It uses no memory before the first averaged step. Which steps are averaged is a function of step and progress alone,
    so a replay averages the same weights.
    """

    def __init__(self, averaging: Averaging, model: nn.Module):
        self._averaging = averaging
        self._model = model
        self._count = 0
        self._means: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, step: int, progress: float) -> None:
        """Add the model's weights after ``step`` steps to the mean, if this step is averaged."""
        if not self._averaging.counts(step, progress):
            return
        weights = {name: parameter.detach().float() for name, parameter in self._model.named_parameters()}
        self._count += 1
        if self._count == 1:
            self._means = {name: weight.clone() for name, weight in weights.items()}
        else:
            means = [self._means[name] for name in weights]
            torch._foreach_lerp_(means, list(weights.values()), 1.0 / self._count)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a checkpoint: the number of averaged weights, and their means."""
        return {COUNT: torch.tensor(self._count), **{MEAN + name: mean for name, mean in self._means.items()}}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of ``tensors``, replacing the current mean."""
        self._count = int(tensors[COUNT])
        place = {name: parameter.device for name, parameter in self._model.named_parameters()}
        self._means = {
            name: tensors[MEAN + name].to(device, torch.float32, copy=True)
            for name, device in place.items()
            if self._count
        }

    @torch.no_grad()
    def put_in(self, model: nn.Module) -> None:
        """Replace the weights of ``model`` by the mean; they stay unchanged if no step was averaged."""
        if self._count:
            for name, parameter in model.named_parameters():
                parameter.copy_(self._means[name])
