"""One optimizer step (sequences, losses, gradients, update) and the parts of a run that it uses.

B sequences of a step over all ranks, L positions, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

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
from daybreak.training.hardware.compiling import failed_to_compile, why_not_compiled
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.monitoring.journal import Journal
from daybreak.training.monitoring.monitors import Monitor
from daybreak.training.monitoring.telemetry import Telemetry
from daybreak.training.monitoring.watchdog import Watchdog
from daybreak.training.objectives.finish import Finish, WithEmbeddings, contrastive_gradients, contrastive_loss
from daybreak.training.objectives.objective import Objective
from daybreak.training.phases import Phase, SecondPhase, schedule_progress
from daybreak.training.prefetch import Prefetch
from daybreak.training.schedule import Ramp, Schedule
from daybreak.training.validation import Validation

MARGIN_BEFORE_FINISH = 1e-6
"""Distance in progress between the last point before the finish and its start."""
CONTRASTIVE_SUFFIX = " and contrastive"
"""Suffix of the stage's name in the finish, where the health of the run is checked separately."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """All parts of one run, built."""

    model: Encoder
    data_parallel: DataParallel
    """The same model, with gradients summed over all ranks."""
    optimizer: torch.optim.Optimizer
    average: RunningAverage | None
    objective: Objective
    schedule: Schedule
    phases: tuple[Phase, ...]
    """The phases of the run, in order: the first, the second if ``phase2`` is enabled, and the finish if it is
    enabled."""
    phase2: SecondPhase
    ramp: Ramp
    clock: Clock
    world: World
    max_grad_norm: float
    seed: int
    device: torch.device
    decisions: Decisions
    """Decisions of the run; the loop adds the changes made during it."""
    validation: Validation
    run: RunFolder | None
    """Folder for checkpoints; None for a replay, which writes none."""
    journal: Journal | None
    """None on all ranks but the first."""
    monitors: Sequence[Monitor]
    time_by_category: dict[str, float]
    """Seconds by category over all processes of the run, see ``Summary.time_by_category``."""
    rate: float = 1.0
    """Factor of the peak learning rate: less than 1 after the run has diverged."""
    objective_start: float = 0.0
    """Progress of the objective at which this run starts: above 0 for a run that branched off another."""
    is_continuation: np.ndarray | None = None
    """bool [V], True for tokens that continue a word; required where whole words are masked."""
    record_seconds: float = 1.0
    """Minimum seconds between two metrics records; 0 for one record a step."""
    prefetch: Prefetch | None = None
    """None on a CPU, which cannot load data while it trains."""
    finish: Finish = Finish()
    telemetry: Telemetry | None = None
    watchdog: Watchdog | None = None
    microbatch_facts: tuple[Any, ...] = ()
    """Machine and recipe, on which the fastest microbatch depends: a part of ``microbatch_key``; empty if unknown."""

    @property
    def microbatch_key(self) -> list[Any]:
        """Key of this run in ``microbatch_cache``."""
        return [*self.microbatch_facts, self.decisions.precision, self.decisions.batch // self.world.size]

    @property
    def precision(self) -> torch.dtype:
        return getattr(torch, self.decisions.precision)

    def finishing(self, at: float) -> bool:
        """Whether the run is in its finish at this progress."""
        return self.finish.is_active(objective_progress(self, at))

    @property
    def before_finish(self) -> float:
        """The last progress before the finish; 1 if there is no finish or nothing before it."""
        if not self.finish.enabled or self.finishing(0.0):
            return 1.0
        return (self.finish.start - self.objective_start) / (1.0 - self.objective_start) - MARGIN_BEFORE_FINISH

    def phase(self, progress: Progress, at: float) -> Phase:
        """The phase of the run at progress ``at``."""
        if self.finishing(at):
            return self.phases[-1]
        return self.phases[0 if progress.second_from is None else 1]

    @property
    def plateau_loss(self) -> float:
        """Training loss of a unigram model that copies the targets that stay visible, nats."""
        return self.validation.unigram_loss * (1 - self.objective.given)

    def conditions(self, at: float) -> Hashable:
        """What the training loss of the first phase at progress ``at`` depends on besides the weights."""
        now, view = objective_progress(self, at), self.phases[0].view
        return self.finishing(at), self.objective.conditions(now), view(now) if view else None

    def epochs(self, progress: Progress) -> float:
        """Number of passes over the text since the run's own first step."""
        if progress.epochs is None:  # a checkpoint of an earlier version: an estimate by the first phase
            return progress.rows / self.phases[0].rows_per_epoch
        return progress.epochs

    def rows_of_step(self, progress: Progress, at: float) -> int:
        """Sequences of the next step over all devices, independent of their number."""
        phase = self.phase(progress, at)
        # Only the first phase grows its batch.
        at = 1.0 if progress.second_from is not None or self.finishing(at) else at
        batch_multiple = phase.batch_multiple or phase.microbatch * self.world.size
        return self.ramp.rows(phase.batch, at, progress.position, batch_multiple)

    def shard(self, rows: int) -> tuple[int, int]:
        """This rank's sequences of a step: [first, last + 1), counted from the first sequence of the step."""
        size, rank = self.world.size, self.world.rank
        return rows * rank // size, rows * (rank + 1) // size

    def rows(self, phase: Phase, position: int, count: int, progress: float, ahead: int) -> Batch:
        """The sequences from ``position`` on, on the device, at this progress.

        Args:
            ahead: distance to the position that this rank probably reads next.
        """

        def load(first: int) -> Batch:
            batch = phase.take(first, count, progress)
            if self.is_continuation is not None:
                batch = replace(batch, is_continuation=self.is_continuation[batch.input_ids])
            return batch.pinned_for(self.device)

        started = time.monotonic()
        if self.prefetch is None or phase.view is None:
            batch = load(position)
        else:
            same = (phase.take, count, phase.view(progress))
            batch = self.prefetch.take((position, *same), lambda: load(position))
            self.prefetch.start((position + ahead, *same), lambda: load(position + ahead))
        batch = batch.to(self.device)
        self.charge("data", time.monotonic() - started)
        return batch

    def charge(self, use: str, seconds: float) -> None:
        """Count a part of a step under ``use``; the loop counts whole steps as training."""
        self.time_by_category[use] += seconds
        self.time_by_category["train"] -= seconds

    def pause(self) -> AbstractContextManager[None]:
        """Suspend the watchdog for work that takes longer than a step."""
        return self.watchdog.pause() if self.watchdog else nullcontext()

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


class MicrobatchTooLarge(torch.OutOfMemoryError):
    """The microbatch does not fit into the memory of one of the devices; a smaller one may fit."""


MEMORY_FULL = (
    "out of memory",  # "CUDA error: out of memory", "HIP out of memory"
    "can't allocate memory",  # a CPU
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cuBLAS has no room for its own workspace
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Parts of RuntimeError messages that mean the same as torch.OutOfMemoryError."""


def memory_is_full(error: Exception) -> bool:
    """Whether a smaller microbatch may help; libraries report a full memory in different ways."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in MEMORY_FULL)


def out_of_memory_error() -> UserError:
    """The error for a microbatch of one sequence that does not fit."""
    return UserError(
        "Not even a single sequence fits into this device's memory.",
        "Choose a smaller --size or --length, or add --gradient-checkpointing.",
    )


class CompilationFailed(RuntimeError):
    """torch.compile fails on a new stage, for the reason in the message; the blocks must run uncompiled."""


@dataclass
class Failure:
    """Why this rank cannot complete a step; the other ranks receive it after all messages of the step."""

    out_of_memory: bool = False
    compiler_error: Exception | None = None
    """The first error of the compiler. One of a full memory is not kept: it would keep the tensors of its step."""

    @property
    def not_compiled(self) -> bool:
        """Whether a block could not be compiled."""
        return self.compiler_error is not None

    def note(self, error: Exception, model: Encoder) -> None:
        """Note a full memory or a failed compilation; raise any other error again."""
        if memory_is_full(error):
            self.out_of_memory = True
        elif model.compiled is not None and failed_to_compile(error):
            self.compiler_error = self.compiler_error or error
        else:
            raise error

    def take_error(self) -> CompilationFailed:
        """The error for all ranks, in the words of the compiler where it failed.

        The compiler's error moves to it: its traceback leads back here and would keep the tensors of the step.
        """
        cause, self.compiler_error = self.compiler_error, None
        error = CompilationFailed("it failed in another process" if cause is None else why_not_compiled(cause))
        error.__cause__ = cause
        return error

    def __bool__(self) -> bool:
        return self.out_of_memory or self.not_compiled


@dataclass(frozen=True, kw_only=True)
class StepResult:
    progress: Progress
    loss: float
    """Mean over masked tokens, nats."""
    norm: float
    """Gradient norm before clipping."""
    contrastive: float | None
    """Mean contrastive loss of the finish, nats; None before the finish."""
    updated: bool
    """Whether the weights were updated."""


def objective_progress(training: Training, progress: float) -> float:
    """Progress of the objective: a branched run covers only the part from ``objective_start`` on."""
    return training.objective_start + (1.0 - training.objective_start) * progress


def stage(training: Training, progress: float) -> str:
    """Name of the objective's stage at this progress."""
    return training.objective.stage(objective_progress(training, progress))


def learning_rate(training: Training, progress: Progress, at: float, peaks: Sequence[float]) -> float:
    """Set the learning rate of each group for the next step and return the first one."""
    in_second_phase = progress.second_from is not None
    multiplier = (
        training.schedule(schedule_progress(training.phase2, progress.second_from, at), progress.position)
        * training.rate
    )
    factor = training.phase2.lr / peaks[0] if in_second_phase and training.phase2.lr > 0 else 1.0
    for group, peak in zip(training.optimizer.param_groups, peaks, strict=True):
        group["lr"] = peak * factor * multiplier
    return peaks[0] * factor * multiplier


def take_step(
    training: Training,
    progress: Progress,
    at: float,
    *,
    second_starts: bool = False,
    stop_requested: Callable[[], bool] = lambda: False,
) -> StepResult:
    """Take one optimizer step on the next sequences, divided among ranks and microbatches.

    The gradient is that of the loss summed over all targets of all ranks, divided once by their number. It does not
    depend on the division of the batch. A step with a value that is not finite, or with an exploding loss or gradient,
    is skipped: the sequences are consumed and the weights stay (see ``guard``).

    Args:
        second_starts: whether the second phase starts at this step; with its own learning rate it starts with an empty
            optimizer state.
        stop_requested: whether this process received a signal to stop; the answer and the clock are sent with the
            losses.

    Raises:
        MicrobatchTooLarge, CompilationFailed: on all ranks, if one of them cannot continue; nothing has changed.
    """
    rows, phase = training.rows_of_step(progress, at), training.phase(progress, at)
    sums = accumulate(training, progress, at, rows, stop_requested)
    training.clock.receive(sums.clock_sums)
    if second_starts and training.phase2.lr > 0:  # after the losses: a step that fails is repeated
        training.optimizer.state.clear()
    count = max(sums.targets, 1.0)  # independent draws may choose no position in a tiny batch
    gradients = gradients_of(training.model)
    divisor = count * progress.scale.factor
    norm = sums.norm / divisor
    health = progress.health.in_stage(stage(training, at) + CONTRASTIVE_SUFFIX * training.finishing(at))
    loss, scale = sums.loss / count, progress.scale
    updated = not health.is_bad(loss, norm, training.max_grad_norm)
    if updated:
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
        tokens=progress.tokens + rows * phase.length,
        epochs=training.epochs(progress) + rows / phase.rows_per_epoch,
        targets=progress.targets + int(sums.targets),
        losses=progress.losses.add(at, loss) if updated and training.phase2.when_flat else progress.losses,
        health=health,
        scale=scale,
    )
    return StepResult(
        progress=done,
        loss=loss,
        norm=norm,
        contrastive=sums.contrastive if training.finishing(at) else None,
        updated=updated,
    )


def update(training: Training) -> None:
    """Apply the gradients to the weights; an optimizer that multiplies matrices uses the run's precision."""
    with training.autocast():
        training.optimizer.step()


def gradients_of(model: Encoder) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """Sums of a step over all ranks."""

    loss: float
    """Nats over masked tokens."""
    targets: float
    contrastive: float
    """Mean contrastive loss; 0 before the finish."""
    norm: float
    """Norm of the gradients before any division."""
    clock_sums: list[float]
    """Sums of the clocks' payloads."""


def accumulate(
    training: Training,
    progress: Progress,
    at: float,
    rows: int,
    stop_requested: Callable[[], bool] = lambda: False,
) -> StepSums:
    """Add this rank's part of a step of ``rows`` sequences to the gradients, one microbatch after the other.

    The host waits for the device once: loss and norm are read together. Both decide whether this step updates the
    weights (see ``guard``), so they cannot be read a step later.

    Raises:
        MicrobatchTooLarge, CompilationFailed: on all ranks, with the gradients cleared.
    """
    phase, objective, world = training.phase(progress, at), training.objective, training.world
    begin, end = training.shard(rows)
    first = progress.position + begin
    seed, now = training.seed, objective_progress(training, at)
    whole = training.rows(phase, first, end - begin, now, ahead=rows)
    finishing = training.finishing(at)
    all_targets = 0.0
    if objective.averages_rows or finishing:
        targets = objective.targets(whole, seed=seed, position=first, progress=now)
        all_targets = world.sum(targets)
    per_row = {"per_row": all_targets / rows} if objective.averages_rows else {}
    loss_total, count = torch.zeros((), dtype=torch.float64, device=training.device), 0
    contrastive = torch.zeros((), dtype=torch.float64, device=training.device)
    failure = Failure()
    starts = range(0, end - begin, phase.microbatch)
    embedding_gradients = None
    if finishing and (world.size > 1 or len(starts) > 1):
        contrastive, embedding_gradients = _contrastive_pass(
            training, whole, progress.position, rows, phase.microbatch, now, failure
        )
    for start in starts:
        part = whole[start : start + phase.microbatch]
        # Dropout is a function of (seed, position) as well: there is no state to save, and a replay draws the same.
        torch.manual_seed(seed * 1_000_003 + first + start)
        with training.data_parallel.microbatch(start == starts[-1]):
            if failure:
                continue
            try:
                done = _add_gradients(
                    training,
                    part,
                    WithEmbeddings(objective.loss) if finishing else objective,
                    None if embedding_gradients is None else embedding_gradients[start : start + len(part)],
                    contrastive_weight=training.finish.weight * all_targets,
                    scale=progress.scale.factor,
                    arguments={"seed": seed, "position": first + start, "progress": now, **per_row},
                )
            except Exception as error:
                failure.note(error, training.model)
                continue
        loss_total += done.loss
        count += done.count
        if done.contrastive is not None:
            contrastive = done.contrastive
    return _sum_over_ranks(
        training, loss_total, contrastive, count, failure, phase.microbatch, stop_requested=stop_requested
    )


def _sum_over_ranks(
    training: Training,
    loss: Tensor,
    contrastive: Tensor,
    count: int,
    failure: Failure,
    microbatch: int,
    *,
    stop_requested: Callable[[], bool],
) -> StepSums:
    """Sum this rank's losses, targets and clock over all ranks, and take the norm of the gradients, already summed.

    Raises:
        MicrobatchTooLarge, CompilationFailed: on all ranks, with the gradients cleared.
    """
    world = training.world
    started = time.monotonic()
    if training.device.type == "cuda":
        # Over gloo: detects a lost peer before this rank waits inside NCCL.
        failure.out_of_memory = world.any(failure.out_of_memory)
    payload = training.clock.payload(stop_requested())
    numbers = on_device((count, failure.out_of_memory, failure.not_compiled, *payload), training.device)
    sums = world.add(torch.cat((loss[None], contrastive[None].double() / world.size, numbers)))
    # If a rank has failed, the gradients are incomplete and their norm is not used.
    norm = torch.nn.utils.get_total_norm(gradients_of(training.model)).to(training.device, torch.float64)
    loss_sum, contrast, targets, out_of_memory, not_compiled, *clock_sums, norm_of_all = torch.cat(
        (sums, norm[None])
    ).tolist()
    # A GPU computes its queue while the last message waits: that is training time. CUDA events time its own waits.
    message = time.monotonic() - started if world.size > 1 and training.device.type != "cuda" else 0.0
    training.charge("communicate", training.data_parallel.take_wait() + message)
    if out_of_memory or not_compiled:
        training.optimizer.zero_grad(set_to_none=True)
        training.data_parallel.rebuild()
        if out_of_memory:
            raise MicrobatchTooLarge(f"a microbatch of {microbatch} sequences does not fit")
        raise failure.take_error()
    return StepSums(loss=loss_sum, targets=targets, contrastive=contrast, norm=norm_of_all, clock_sums=clock_sums)


@dataclass(frozen=True)
class MicrobatchSums:
    """Sums over a microbatch, without a graph."""

    loss: Tensor
    count: int
    contrastive: Tensor | None
    """The contrastive loss of the step, if the microbatch is the whole step and has embeddings."""


def _add_gradients(
    training: Training,
    part: Batch,
    objective: Objective | WithEmbeddings,
    embedding_gradients: Tensor | None,
    *,
    contrastive_weight: float,
    scale: float,
    arguments: dict[str, Any],
) -> MicrobatchSums:
    """Run the forward and backward pass of one microbatch.

    It is a function of its own so that nothing keeps the tensors of a pass that did not fit into memory: the ranks then
    need memory for new buffers.

    Args:
        embedding_gradients: [B, H] of the contrastive loss for these sequences; None if they are the whole step.
        contrastive_weight: factor of the contrastive loss.
        scale: factor of the whole loss, for float16.
        arguments: of the objective.
    """
    contrastive = None
    with training.autocast():
        loss = training.data_parallel.loss(objective, part, **arguments)
        total = loss.sum
        if loss.embeddings is not None:
            if embedding_gradients is None:
                temperature = training.finish.temperature
                term = contrastive_loss(loss.embeddings, part.passage_ids, arguments["position"], temperature)
                contrastive = term.detach()
            else:
                term = (loss.embeddings * embedding_gradients).sum()
            # After the division by all targets this is the weight times the mean over sequences.
            total = total + contrastive_weight * term
    (total * scale).backward()
    masked = loss.sum.detach() if loss.masked is None else loss.masked
    return MicrobatchSums(masked, loss.count, contrastive)


def on_device(numbers: Sequence[float], device: torch.device) -> Tensor:
    """Return float64 [N] on ``device``; a GPU copies it without blocking the host."""
    values = torch.tensor(numbers, dtype=torch.float64)
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)


def _contrastive_pass(
    training: Training, whole: Batch, position: int, rows: int, microbatch: int, now: float, failure: Failure
) -> tuple[Tensor, Tensor]:
    """Compute all embeddings of the step without gradients, before the pass with gradients (GradCache, arXiv
    2101.06983): the contrastive loss of the step, and its gradient for each embedding of this rank.

    Args:
        whole: this rank's sequences of the step.
        position: first sequence of the step, of ``rows`` over all ranks.
        now: progress of the objective.
        failure: noted here; the numbers are then meaningless.
    """
    world, objective = training.world, WithEmbeddings(training.objective.loss)
    begin, end = training.shard(rows)
    everyone = torch.zeros(rows, training.model.hidden_size, device=training.device)
    documents = torch.zeros(rows, dtype=torch.int64, device=training.device)
    documents[begin:end] = whole.passage_ids
    for start in range(begin, end, microbatch):
        part = whole[start - begin : start - begin + microbatch]
        torch.manual_seed(training.seed * 1_000_003 + position + start)
        try:
            with training.autocast():
                embeddings = objective.embeddings(
                    training.model, part, seed=training.seed, position=position + start, progress=now
                )
        except Exception as error:
            failure.note(error, training.model)
            break
        everyone[start : start + len(part)] = embeddings
    started = time.monotonic()
    if world.size > 1 and training.device.type == "cuda":
        failure.out_of_memory = world.any(failure.out_of_memory)  # as after the backward pass
    everyone, documents = world.add(everyone), world.add(documents)
    training.charge("communicate", (time.monotonic() - started) * (world.size > 1))
    loss, embedding_gradients = contrastive_gradients(everyone, documents, position, training.finish.temperature)
    return loss, embedding_gradients[begin:end]
