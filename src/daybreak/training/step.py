"""One optimizer step: rows, losses, gradients, update. What a run is made of stands here, built.

B rows a step over all ranks, L positions, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from daybreak.base.batch import Batch
from daybreak.base.encoder import Encoder
from daybreak.base.errors import UserError
from daybreak.base.world import World
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Clock
from daybreak.training.journal import Journal
from daybreak.training.monitors import Monitor
from daybreak.training.objectives import Objective
from daybreak.training.phases import Later, Stretch, scheduled
from daybreak.training.ramp import Ramp
from daybreak.training.schedule import Schedule
from daybreak.training.validation import Validation


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that one run is made of, built."""

    model: Encoder
    optimizer: torch.optim.Optimizer
    objective: Objective
    schedule: Schedule
    stretches: tuple[Stretch, ...]
    """The phases of the run: one, or two where ``later`` ever begins."""
    later: Later
    ramp: Ramp
    clock: Clock
    world: World
    clip: float
    seed: int
    device: torch.device
    precision: torch.dtype
    validation: Validation
    validation_rows: int
    validation_marks: int
    checkpoints: Path
    branch: Path
    """Folder of the checkpoint before the decay, from which a longer run can branch."""
    journal: Journal | None
    """None on all ranks but the first."""
    monitors: Sequence[Monitor]
    spent: dict[str, float]
    """Seconds by use, over all processes of the run; the loop adds to train, communicate, validate and checkpoint."""
    begin: float = 0.0
    """Where in the objective's course this run begins: above 0 for one that branched off another."""
    continues: np.ndarray | None = None
    """bool [V], the pieces that go on a word; needed where whole words are masked."""

    def stretch(self, progress: Progress) -> Stretch:
        """The phase that the run is in."""
        return self.stretches[0 if progress.second_from is None else 1]

    def epochs(self, progress: Progress) -> float:
        """How often the text was read; after a change of length an estimate by the rows of the phase."""
        return progress.position / self.stretch(progress).rows_per_epoch

    def rows_of_step(self, progress: Progress, at: float) -> int:
        """Rows of the next step over all devices."""
        stretch = self.stretch(progress)
        # In the second phase the ramp is over, whatever it says.
        at = 1.0 if progress.second_from is not None else at
        return self.ramp.rows(stretch.batch, at, progress.position, stretch.microbatch * self.world.size)

    def rows(self, stretch: Stretch, position: int, count: int) -> Batch:
        """The rows from ``position`` on, on the device."""
        batch = stretch.take(position, count)
        if self.continues is not None:
            batch = replace(batch, continues=self.continues[batch.ids])
        return batch.on(self.device)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


def course(training: Training, progress: float) -> float:
    """Where the objective stands: progress, squeezed into what a branched run still has before it."""
    return training.begin + (1.0 - training.begin) * progress


def learning_rate(training: Training, progress: Progress, at: float, peaks: Sequence[float]) -> float:
    """Set each group's learning rate for the next step and return the first."""
    second = progress.second_from is not None
    share = training.schedule(scheduled(training.later, progress.second_from, at), progress.position)
    factor = training.later.lr / peaks[0] if second and training.later.lr > 0 else 1.0
    for group, peak in zip(training.optimizer.param_groups, peaks, strict=True):
        group["lr"] = peak * factor * share
    return peaks[0] * factor * share


def take_step(training: Training, progress: Progress, at: float) -> tuple[Progress, float, float]:
    """One optimizer step on the next rows, shared out over ranks and microbatches.

    The gradient is that of the sum of losses over all targets of all ranks, divided once by their true number, so it
    does not depend on how the batch was split.

    Returns:
        The new progress, the mean loss on masked words, and the gradient's norm before clipping.
    """
    parameters = list(training.model.parameters())
    rows = training.rows_of_step(progress, at)
    total, tokens = accumulate(training, progress, at, rows)
    begun = time.monotonic()
    total = training.world.sum_gradients(parameters, total)
    loss_sum, count = total.tolist()
    count = max(count, 1.0)  # independent draws may choose nothing in a tiny batch
    if training.world.size > 1:
        # Waiting for the slowest rank is part of what communication costs. The loop counts the whole step as training.
        seconds = time.monotonic() - begun
        training.spent["communicate"] += seconds
        training.spent["train"] -= seconds
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients)) / count
    if not math.isfinite(loss_sum) or not math.isfinite(norm):
        raise UserError(
            f"The loss is not finite at step {progress.step}; the last checkpoint is kept.",
            f"Start in another folder with half the rate: --optimizer.lr {training.optimizer.defaults['lr'] / 2:g}.",
        )
    torch._foreach_mul_(gradients, min(1.0, training.clip / (norm + 1e-6)) / count)
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    done = replace(
        progress,
        step=progress.step + 1,
        position=progress.position + rows,
        tokens=progress.tokens + tokens * training.world.size,
        targets=progress.targets + int(count),
        losses=progress.losses.add(at, loss_sum / count) if training.later.when_flat else progress.losses,
    )
    return done, loss_sum / count, norm


def accumulate(training: Training, progress: Progress, at: float, rows: int) -> tuple[torch.Tensor, int]:
    """Add this rank's share of a step of ``rows`` rows to the gradients, one microbatch after the other.

    Returns:
        float32 [2], the sum of losses on masked words and the number of targets; and the tokens read.
    """
    stretch, objective = training.stretch(progress), training.objective
    total = torch.zeros(2, dtype=torch.float32, device=training.device)
    share = rows // training.world.size
    first = progress.position + training.world.rank * share
    seed, now = training.seed, course(training, at)
    whole = training.rows(stretch, first, share)
    per_row = 1.0
    if objective.averages_rows:
        targets = objective.targets(whole, seed=seed, position=first, progress=now)
        per_row = training.world.sum(targets) / rows
    for start in range(0, share, stretch.microbatch):
        part = whole.part(start, start + stretch.microbatch)
        # Dropout too is a function of (seed, position): nothing to save, and a replay draws the same.
        torch.manual_seed(seed * 1_000_003 + first + start)
        with training.autocast():
            loss = objective.loss(
                training.model, part, seed=seed, position=first + start, progress=now, per_row=per_row
            )
        loss.sum.backward()
        told = loss.sum.detach() if loss.masked is None else loss.masked
        total += torch.stack((told, torch.tensor(float(loss.count), device=training.device)))
    return total, whole.ids.numel()
