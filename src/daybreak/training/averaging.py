"""The mean of a run's weights over its end, in place of the last ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from daybreak.core.errors import UserError

COUNT = "count"
MEAN = "mean."
"""What precedes a parameter's name in a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Which weights count: LAWA (arXiv 2209.14981) over the end of the run, a Polyak-Ruppert average of its tail."""

    fraction: float = 0.0
    """Share of the run, at its end, whose weights are averaged; 0 for none."""
    every: int = 10
    """Optimizer steps from one that counts to the next."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise UserError(
                f"--average.fraction is {self.fraction:g}, but it is a share of the run.", "Give a number in [0, 1]."
            )
        if self.every < 1:
            raise UserError(f"--average.every is {self.every}.", "Give a count of steps, at least 1.")

    def counts(self, step: int, progress: float) -> bool:
        """Whether the weights after ``step`` steps, at that share of the run, are part of the mean."""
        return self.fraction > 0 and progress >= 1.0 - self.fraction and step % self.every == 0


class RunningAverage:
    """The mean so far, each weight counting the same: float32, on the device of the parameters.

    Nothing is kept, and no memory used, before the first step that counts. What counts is a function of steps and
    progress alone, so a replay averages the same weights.
    """

    def __init__(self, averaging: Averaging, model: nn.Module):
        self._averaging = averaging
        self._model = model
        self._count = 0
        self._means: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, step: int, progress: float) -> None:
        """Take in the model's weights as they are after ``step`` steps, if these count."""
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
        """Return what a checkpoint holds of it: how many weights have counted, and their means."""
        return {COUNT: torch.tensor(self._count), **{MEAN + name: mean for name, mean in self._means.items()}}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Undo ``tensors``, forgetting what was there."""
        self._count = int(tensors[COUNT])
        place = {name: parameter.device for name, parameter in self._model.named_parameters()}
        self._means = {
            name: tensors[MEAN + name].to(device, torch.float32, copy=True)
            for name, device in place.items()
            if self._count
        }

    @torch.no_grad()
    def put_in(self, model: nn.Module) -> None:
        """Give ``model`` the mean for its weights; it keeps its own where no step has counted."""
        if self._count:
            for name, parameter in model.named_parameters():
                parameter.copy_(self._means[name])
