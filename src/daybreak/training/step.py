"""One optimizer step: rows, losses, gradients, update. What a run is made of stands here, built.

B rows a step over all ranks, L positions, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder
from daybreak.core.errors import UserError
from daybreak.core.run_folder import RunFolder
from daybreak.core.world import World
from daybreak.schemas.run import Decisions
from daybreak.training.averaging import RunningAverage
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Clock
from daybreak.training.hardware.compiling import failed_to_compile
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.monitoring.journal import Journal
from daybreak.training.monitoring.monitors import Monitor
from daybreak.training.monitoring.telemetry import Telemetry
from daybreak.training.monitoring.watchdog import Watchdog
from daybreak.training.objectives.finish import Finish, WithEmbeddings, contrastive_loss, slopes
from daybreak.training.objectives.objective import Objective
from daybreak.training.phases import Phase, SecondPhase, scheduled
from daybreak.training.prefetch import Prefetch
from daybreak.training.ramp import Ramp
from daybreak.training.schedule import Schedule
from daybreak.training.validation import Validation

BEFORE = 1e-6
"""Of a run, what lies between the last moment before the finish and its beginning."""
FINISHING = " and contrastive"
"""What the name of a stage has added in the finish, where the run's health is judged."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that one run is made of, built."""

    model: Encoder
    data_parallel: DataParallel
    """The same model, as one of several that share their gradients."""
    optimizer: torch.optim.Optimizer
    average: RunningAverage | None
    objective: Objective
    schedule: Schedule
    phases: tuple[Phase, ...]
    """The phases of the run: one, two where ``later`` ever begins, and one more, the last, where ``finish`` does."""
    phase2: SecondPhase
    ramp: Ramp
    clock: Clock
    world: World
    max_grad_norm: float
    seed: int
    device: torch.device
    decisions: Decisions
    """With what was decided in mid-course, which the loop adds to."""
    validation: Validation
    run: RunFolder | None
    """Where checkpoints go; None for a replay, which leaves none."""
    journal: Journal | None
    """None on all ranks but the first."""
    monitors: Sequence[Monitor]
    time_by_category: dict[str, float]
    """Seconds by use, over all processes of the run, see ``Summary.time_by_category``."""
    rate: float = 1.0
    """What the peak learning rate is multiplied by: less than 1 after the run has diverged."""
    begin: float = 0.0
    """Where in the objective's course this run begins: above 0 for one that branched off another."""
    continues: np.ndarray | None = None
    """bool [V], the pieces that go on a word; needed where whole words are masked."""
    record_seconds: float = 1.0
    """A metrics line at most this often; 0 for one a step."""
    prefetch: Prefetch | None = None
    """None where the processor trains: it has nothing to do beside."""
    finish: Finish = Finish()
    telemetry: Telemetry | None = None
    watchdog: Watchdog | None = None

    @property
    def saves(self) -> bool:
        """Whether this process writes checkpoints."""
        return self.run is not None and self.world.is_first

    @property
    def precision(self) -> torch.dtype:
        return getattr(torch, self.decisions.precision)

    def finishing(self, at: float) -> bool:
        """Whether the run is in its finish at this progress."""
        return self.finish.begun(course(self, at))

    @property
    def before_finish(self) -> float:
        """The last progress before the finish; 1 where there is none, or nothing before it."""
        if not self.finish.ever or self.finishing(0.0):
            return 1.0
        return (self.finish.start - self.begin) / (1.0 - self.begin) - BEFORE

    def phase(self, progress: Progress, at: float) -> Phase:
        """The phase that the run is in at progress ``at``."""
        if self.finishing(at):
            return self.phases[-1]
        return self.phases[0 if progress.second_from is None else 1]

    def epochs(self, progress: Progress) -> float:
        """How often the text was read; after a change of length an estimate by the rows of the phase."""
        return progress.position / self.phase(progress, 0.0).rows_per_epoch

    def rows_of_step(self, progress: Progress, at: float) -> int:
        """Rows of the next step over all devices, however many these are by now."""
        phase = self.phase(progress, at)
        # In the second phase and in the finish the ramp is over, whatever it says.
        at = 1.0 if progress.second_from is not None or self.finishing(at) else at
        batch_multiple = phase.batch_multiple or phase.microbatch * self.world.size
        return self.ramp.rows(phase.batch, at, progress.position, batch_multiple)

    def shard(self, rows: int) -> tuple[int, int]:
        """This rank's rows of a step: [first, last + 1), counted from the step's first."""
        size, rank = self.world.size, self.world.rank
        return rows * rank // size, rows * (rank + 1) // size

    def rows(self, phase: Phase, position: int, count: int, progress: float, ahead: int) -> Batch:
        """The rows from ``position`` on, on the device, as they are at this point of the run.

        Args:
            ahead: rows until those that this rank will probably ask for next.
        """

        def made(first: int) -> Batch:
            batch = phase.take(first, count, progress)
            if self.continues is not None:
                batch = replace(batch, continues=self.continues[batch.ids])
            return batch.ready_for(self.device)

        begun = time.monotonic()
        if self.prefetch is None or phase.view is None:
            batch = made(position)
        else:
            same = (phase.take, count, phase.view(progress))
            batch = self.prefetch.take((position, *same), lambda: made(position))
            self.prefetch.begin((position + ahead, *same), lambda: made(position + ahead))
        batch = batch.on(self.device)
        self.charge("data", time.monotonic() - begun)
        return batch

    def charge(self, use: str, seconds: float) -> None:
        """Count a part of a step under ``use``; the loop counts whole steps as training."""
        self.time_by_category[use] += seconds
        self.time_by_category["train"] -= seconds

    def pause(self) -> AbstractContextManager[None]:
        """For what takes longer than a step: no hang."""
        return self.watchdog.pause() if self.watchdog else nullcontext()

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


class TooManyRows(torch.OutOfMemoryError):
    """A microbatch that does not fit into the memory of one of the devices: fewer rows at a time may."""


MEMORY_FULL = (
    "out of memory",  # "CUDA error: out of memory", "HIP out of memory"
    "can't allocate memory",  # a CPU
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cuBLAS has no room for its own workspace
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""What a RuntimeError says that means the same as torch.OutOfMemoryError."""


def memory_is_full(error: Exception) -> bool:
    """Whether fewer rows at a time may help: libraries report a full memory in their own words."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in MEMORY_FULL)


def no_room() -> UserError:
    """What to say when there are no fewer rows to try."""
    return UserError(
        "Not even a single row fits into this device's memory.",
        "Choose a smaller --size or --length, or add --gradient-checkpointing.",
    )


class NotCompiled(RuntimeError):
    """torch.compile cannot do what a new stage asks of it: the blocks must run as they are written."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a step."""

    progress: Progress
    loss: float
    """Mean over masked words, nats."""
    norm: float
    """Of the gradient, before clipping."""
    contrastive: float | None
    """Mean contrastive loss of the finish, nats; None before it."""
    taken: bool
    """Whether the weights were updated."""


def course(training: Training, progress: float) -> float:
    """Where the objective stands: progress, squeezed into what a branched run still has before it."""
    return training.begin + (1.0 - training.begin) * progress


def stage(training: Training, progress: float) -> str:
    """What is being learned at this point."""
    return training.objective.stage(course(training, progress))


def learning_rate(training: Training, progress: Progress, at: float, peaks: Sequence[float]) -> float:
    """Set each group's learning rate for the next step and return the first."""
    second = progress.second_from is not None
    share = training.schedule(scheduled(training.phase2, progress.second_from, at), progress.position) * training.rate
    factor = training.phase2.lr / peaks[0] if second and training.phase2.lr > 0 else 1.0
    for group, peak in zip(training.optimizer.param_groups, peaks, strict=True):
        group["lr"] = peak * factor * share
    return peaks[0] * factor * share


def take_step(
    training: Training, progress: Progress, at: float, *, second: bool = False, asked: Callable[[], bool] = bool
) -> Outcome:
    """One optimizer step on the next rows, shared out over ranks and microbatches.

    The gradient is that of the sum of losses over all targets of all ranks, divided once by their true number, so it
    does not depend on how the batch was split. A step with something in it that is not finite, or that explodes, is
    left out: the rows are passed over and the weights stay (see ``guard``).

    Args:
        second: whether the second phase begins here; with a rate of its own it begins with an optimizer that
            remembers nothing.
        asked: whether this process was asked to leave; its answer and the clock travel with the losses.

    Raises:
        TooManyRows, NotCompiled: on all ranks, where one cannot go on like this; nothing has changed.
    """
    rows = training.rows_of_step(progress, at)
    sums = accumulate(training, progress, at, rows, asked)
    loss_sum, targets = sums.loss, sums.targets
    training.clock.hear(sums.heard)
    if second and training.phase2.lr > 0:  # not before the losses are there: without them the step begins anew
        training.optimizer.state.clear()
    count = max(targets, 1.0)  # independent draws may choose nothing in a tiny batch
    gradients = gradients_of(training.model)
    divisor = count * progress.scale.factor
    norm = sums.norm / divisor
    health = progress.health.in_stage(stage(training, at) + FINISHING * training.finishing(at))
    loss, scale = loss_sum / count, progress.scale
    taken = not health.is_bad(loss, norm, training.max_grad_norm)
    if taken:
        torch._foreach_mul_(gradients, min(1.0, training.max_grad_norm / (norm + 1e-6)) / divisor)
        update(training)
        health, scale = health.after_good(loss, norm), scale.after_good()
    elif scale.can_shrink and math.isfinite(loss) and not math.isfinite(norm):
        health, scale = health.after_overflow(), scale.after_overflow()
    else:
        health = health.after_bad()
    training.optimizer.zero_grad(set_to_none=True)
    done = replace(
        progress,
        step=progress.step + 1,
        position=progress.position + rows,
        tokens=progress.tokens + rows * training.phase(progress, at).length,
        targets=progress.targets + int(targets),
        losses=progress.losses.add(at, loss) if taken and training.phase2.when_flat else progress.losses,
        health=health,
        scale=scale,
    )
    return Outcome(
        progress=done,
        loss=loss,
        norm=norm,
        contrastive=sums.contrastive if training.finishing(at) else None,
        taken=taken,
    )


def update(training: Training) -> None:
    """Move the weights by the gradients at hand, in the run's precision where the optimizer multiplies matrices."""
    with training.autocast():
        training.optimizer.step()


def gradients_of(model: Encoder) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What the ranks found in a step, added up."""

    loss: float
    """Nats on masked words."""
    targets: float
    contrastive: float
    """Mean contrastive loss; 0 before the finish."""
    norm: float
    """Of the gradients as they are, before any division."""
    heard: list[float]
    """What the clocks said."""


def accumulate(training: Training, progress: Progress, at: float, rows: int, asked: Callable[[], bool] = bool) -> Sums:
    """Add this rank's share of a step of ``rows`` rows to the gradients, one microbatch after the other.

    The device is waited for once, here: loss and norm come in one message. Both decide whether this very step updates
    the weights (see ``guard``), so they cannot be read a step later.

    Raises:
        TooManyRows, NotCompiled: on all ranks, with the gradients cleared.
    """
    phase, objective, world = training.phase(progress, at), training.objective, training.world
    begin, end = training.shard(rows)
    first = progress.position + begin
    seed, now = training.seed, course(training, at)
    whole = training.rows(phase, first, end - begin, now, ahead=rows)
    finishing = training.finishing(at)
    all_targets = 0.0
    if objective.averages_rows or finishing:
        targets = objective.targets(whole, seed=seed, position=first, progress=now)
        all_targets = world.sum(targets)
    per_row = all_targets / rows if objective.averages_rows else 1.0
    told, count = torch.zeros((), dtype=torch.float64, device=training.device), 0
    contrastive = torch.zeros((), dtype=torch.float64, device=training.device)
    full = broken = False
    starts = range(0, end - begin, phase.microbatch)
    slope = None
    if finishing and (world.size > 1 or len(starts) > 1):
        contrastive, slope, full, broken = _slopes(training, whole, progress.position, rows, phase.microbatch, now)
    for start in starts:
        part = whole.part(start, start + phase.microbatch)
        # Dropout too is a function of (seed, position): nothing to save, and a replay draws the same.
        torch.manual_seed(seed * 1_000_003 + first + start)
        with training.data_parallel.sharing(start == starts[-1]):
            if full or broken:
                continue  # the other ranks learn of it below, all messages of the step exchanged
            try:
                with training.autocast():
                    loss = training.data_parallel.loss(
                        WithEmbeddings(objective.loss) if finishing else objective,
                        part,
                        seed=seed,
                        position=first + start,
                        progress=now,
                        per_row=per_row,
                    )
                    total = loss.sum
                    if loss.embeddings is not None:
                        if slope is None:  # the step is one microbatch of one process
                            temperature = training.finish.temperature
                            pull = contrastive_loss(loss.embeddings, whole.documents, first, temperature)
                            contrastive = pull.detach()
                        else:
                            pull = (loss.embeddings * slope[start : start + len(part)]).sum()
                        # After the division by all targets this is the weight times the mean over sequences.
                        total = total + training.finish.weight * all_targets * pull
                (total * progress.scale.factor).backward()
            except Exception as error:
                if memory_is_full(error):
                    full = True
                    continue
                if training.model.compiled is None or not failed_to_compile(error):
                    raise
                broken = True
                continue
        told += loss.sum.detach() if loss.masked is None else loss.masked
        count += loss.count
    begun = time.monotonic()
    if training.device.type == "cuda":
        full = world.any(full)  # between processors: a lost peer is noticed before this rank waits inside NCCL
    said = training.clock.voice(asked())
    numbers = on_device((count, full, broken, *said), training.device)
    sums = world.add(torch.cat((told[None], contrastive[None].double() / world.size, numbers)))
    # Where a rank has failed, gradients are not whole, and their norm is not looked at.
    norm = torch.nn.utils.get_total_norm(gradients_of(training.model)).to(training.device, torch.float64)
    loss_sum, contrast, targets, full, broken, *heard, norm_of_all = torch.cat((sums, norm[None])).tolist()
    # A GPU works off its queue while the last message waits: that is training. Its own waits are timed by its events.
    message = time.monotonic() - begun if world.size > 1 and training.device.type != "cuda" else 0.0
    training.charge("communicate", training.data_parallel.take_wait() + message)
    if full or broken:
        training.optimizer.zero_grad(set_to_none=True)
        training.data_parallel.renew()
        if full:
            raise TooManyRows(f"{phase.microbatch} rows at a time do not fit")
        raise NotCompiled("a block cannot be compiled")
    return Sums(loss=loss_sum, targets=targets, contrastive=contrast, norm=norm_of_all, heard=heard)


def on_device(numbers: Sequence[float], device: torch.device) -> Tensor:
    """Return float64 [N] on ``device``, which a GPU copies without being waited for."""
    made = torch.tensor(numbers, dtype=torch.float64, pin_memory=device.type == "cuda")
    return made.to(device, non_blocking=True)


def _slopes(
    training: Training, whole: Batch, position: int, rows: int, microbatch: int, now: float
) -> tuple[Tensor, Tensor, bool, bool]:
    """Look at all sequences of the step once, before their gradients are computed (GradCache, arXiv 2101.06983).

    Args:
        whole: this rank's sequences of the step.
        position: the step's first sequence, of ``rows`` over all ranks.
        now: where the objective stands.

    Returns:
        The contrastive loss of the step, its slope for each of this rank's embeddings, whether this rank had no memory
        for them, and whether its blocks could not be compiled; after either of them the numbers mean nothing.
    """
    world, objective = training.world, WithEmbeddings(training.objective.loss)
    begin, end = training.shard(rows)
    everyone = torch.zeros(rows, training.model.hidden_size, device=training.device)
    documents = torch.zeros(rows, dtype=torch.int64, device=training.device)
    documents[begin:end] = whole.documents
    full = broken = False
    for start in range(begin, end, microbatch):
        part = whole.part(start - begin, start - begin + microbatch)
        torch.manual_seed(training.seed * 1_000_003 + position + start)
        try:
            with training.autocast():
                found = objective.embeddings(
                    training.model, part, seed=training.seed, position=position + start, progress=now, per_row=1.0
                )
        except Exception as error:
            if memory_is_full(error):
                full = True
                break
            if training.model.compiled is None or not failed_to_compile(error):
                raise
            broken = True
            break
        everyone[start : start + len(part)] = found
    begun = time.monotonic()
    if world.size > 1 and training.device.type == "cuda":
        full = world.any(full)  # as after the backward pass
    everyone, documents = world.add(everyone), world.add(documents)
    training.charge("communicate", (time.monotonic() - begun) * (world.size > 1))
    loss, slope = slopes(everyone, documents, position, training.finish.temperature)
    return loss, slope[begin:end], full, broken
