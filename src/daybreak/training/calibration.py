"""Choices that come from measuring, made once at a run's first start and obeyed ever after."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from daybreak.core.errors import UserError
from daybreak.core.process import peak_bytes
from daybreak.core.terminal import duration, say
from daybreak.schemas.run import Decisions
from daybreak.training.checkpoint import START, Progress
from daybreak.training.clock import Budget, Tick, reserve_for
from daybreak.training.hardware.speed import COURSE, pace_of
from daybreak.training.loop import save
from daybreak.training.phases import with_microbatch
from daybreak.training.step import Training, accumulate, no_room, update

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
FEWEST_STEPS = 20
VALIDATION_SHARE = 0.02
"""Of a time budget, for all validations together."""
MARKS = 10
PROBE_ROWS = 32
PROBE_STEP_ROWS = 32
"""Fewest rows of a device's share that a step is timed on; a larger share takes proportionally longer."""
TRIALS = 3
SMALLEST = 8
PAYS = 1.02
"""A microbatch twice as large must be this much faster."""
COMPILE_FROM = 360.0
"""Seconds of a budget from which compiling, about a minute without a cache, is repaid: by a model of its kernels (no
device has been measured) an eager step of the flagship takes a third longer."""
MANY_EPOCHS = 4.0
"""Up to about so many passes text is nearly as good as new (arXiv 2305.16264)."""
SMALLEST_INTERIM = 32
"""Rows below which an interim validation says too little."""


@dataclass(frozen=True)
class Costs:
    """Seconds, measured on the untrained model."""

    step: dict[str, float]
    """By precision, at the end of the run."""
    course: list[float]
    """At COURSE, in the fastest precision."""
    row: float
    """Of validation."""
    save: float
    first: float
    """Share of a step's rows that the first step has: below 1 where the batch grows."""


def fastest_microbatch(training: Training, start: Progress, share: int) -> int:
    """Return how many rows a device should handle at a time: doubled from SMALLEST while that fits and pays.

    In place of the old advice to fill the memory by hand: more than is fastest brings nothing.
    """
    best, best_rate, rows = 0, 0.0, min(SMALLEST, share)
    before = peak_bytes()
    while rows <= share:
        trial = replace(training, phases=with_microbatch(training.phases, rows))
        seconds = _trials(trial, start, rows * training.world.size)
        if seconds == math.inf:
            torch.cuda.empty_cache()
            say(f"{rows} rows at a time do not fit into this device's memory.")
            if best or rows == 1:
                break
            rows //= 2
            continue
        (rate,) = training.world.agree(rows / seconds)
        if rate < best_rate * PAYS:
            break
        best, best_rate = rows, rate
        # The next one takes about twice what this one took; a CPU has no out-of-memory error but a dead process.
        if training.world.any(training.device.type == "cpu" and 2 * (peak_bytes() - before) > _free_bytes() / 2):
            break
        rows *= 2
    if best == 0:
        raise no_room()
    return best


def _trials(training: Training, start: Progress, rows: int) -> float:
    """Seconds of the fastest of TRIALS steps; infinity where one rank has no room, and then on all of them."""
    try:
        return min(_time_rows(training, start, rows) for _ in range(TRIALS))
    except torch.OutOfMemoryError:
        return math.inf


def _free_bytes() -> float:
    """Memory that can still be had on this machine; without limit where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf


def measure_costs(training: Training, start: Progress, precisions: Sequence[str]) -> Costs:
    """Time a step in each of ``precisions``, a small validation and a checkpoint.

    The first of each warms up and does not count. The checkpoint at step 0 stays: a run that is killed in its first
    seconds has one to resume from.
    """
    step, updates, moments = {}, {}, 0
    for precision in precisions:
        trial = replace(training, decisions=replace(training.decisions, precision=precision))
        updates[precision], moments = _time_update(trial)
        step[precision] = min(_time_step(trial, start, 1.0, updates[precision]) for _ in range(TRIALS))
    fastest = min(step, key=lambda name: step[name])
    trial = replace(training, decisions=replace(training.decisions, precision=fastest))
    earlier = [min(_time_step(trial, start, at, updates[fastest]) for _ in range(2)) for at in COURSE[:-1]]
    row = min(_time_row(training, start) for _ in range(2))
    first = training.rows_of_step(start, 0.0) / training.phase(start, 0.0).batch
    saving = save(training, start) * _growth_of_a_checkpoint(training, moments)
    return Costs(step=step, course=[*earlier, step[fastest]], row=row, save=saving, first=first)


def _growth_of_a_checkpoint(training: Training, moments: int) -> float:
    """By what factor a checkpoint will be larger than now: an optimizer that has moved nothing remembers nothing.

    Args:
        moments: bytes that the optimizer will remember.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in training.model.parameters())
    rest = weights * (2 if training.average else 1)
    return (rest + moments) / (rest + _bytes_remembered(training.optimizer))


def _bytes_remembered(optimizer: torch.optim.Optimizer) -> int:
    tensors = (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _time_step(training: Training, start: Progress, at: float, fixed: float) -> float:
    """Of a step with all its rows and an update of ``fixed`` seconds, as it is when the share ``at`` is over.

    Timed on whole microbatches: rows of another number would be compiled once more.
    """
    at = min(at, training.before_finish)
    phase = training.phase(start, at)
    whole, microbatch = phase.batch, phase.microbatch
    rows = min(whole, -(-PROBE_STEP_ROWS // microbatch) * microbatch * training.world.size)
    return _time_rows(training, start, rows, at) * whole / rows + fixed


def _time_rows(training: Training, start: Progress, rows: int, at: float = 1.0) -> float:
    at = min(at, training.before_finish)
    seconds = _timed(training, lambda: accumulate(training, start, at, rows))
    training.optimizer.zero_grad(set_to_none=True)
    return seconds


def _time_update(training: Training) -> tuple[float, int]:
    """Seconds of an update that moves nothing, for gradient and rate are 0, and bytes that the optimizer remembers.

    Both are forgotten afterwards.
    """
    optimizer = training.optimizer
    state, rates = optimizer.state, [group["lr"] for group in optimizer.param_groups]
    optimizer.state = defaultdict(dict)
    try:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        update(training)  # the first makes room for what the optimizer remembers
        return _timed(training, lambda: update(training)), _bytes_remembered(optimizer)
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state = state
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _timed(training: Training, work: Callable[[], object]) -> float:
    """Seconds of ``work`` alone: a GPU's queue is empty before and after it."""
    _wait_for(training.device)
    begun = time.monotonic()
    work()
    _wait_for(training.device)
    return time.monotonic() - begun


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time_row(training: Training, start: Progress) -> float:
    rows, validation = min(PROBE_ROWS, training.validation.rows), training.validation
    training.model.eval()  # as it will be judged: dropout and compiled blocks are for training
    validation.measure(training.model, rows=rows, step=start.step, tokens=0, tick=Tick(0.0, 0.0), final=False)
    training.model.train()
    return validation.row_seconds


def decide(decisions: Decisions, budget: Budget, costs: Costs, rows: int, final: float, elapsed: float) -> Decisions:
    """Complete ``decisions`` with the faster precision, the reserve and the plan of validations.

    Args:
        rows: of the final validation.
        final: seconds that it takes.
        elapsed: seconds already charged.

    Raises:
        UserError: the budget does not give FEWEST_STEPS steps.
    """
    precision = min(costs.step, key=lambda name: costs.step[name])
    step_seconds = {name: round(seconds, 4) for name, seconds in costs.step.items()}
    course = [round(seconds, 6) for seconds in costs.course]
    decisions = replace(decisions, precision=precision, step_seconds=step_seconds, course_seconds=course)
    if budget.unit != "seconds":
        return replace(decisions, reserve_seconds=0.0, validation_rows=rows, validation_marks=MARKS)
    reserve = reserve_for(validation=final, save=costs.save, step=costs.step[precision])
    _refuse_short(budget, elapsed, reserve, costs.step[precision] * costs.first)
    room = VALIDATION_SHARE * budget.amount - final
    affordable = int(max(0.0, room) / costs.row)
    unit = min(SMALLEST_INTERIM, rows)
    marks = min(MARKS, affordable // unit)
    interim = min(rows, affordable // marks // unit * unit) if marks else rows
    return replace(decisions, reserve_seconds=reserve, validation_rows=interim, validation_marks=marks)


def _refuse_short(budget: Budget, elapsed: float, reserve: float, step: float) -> None:
    left = budget.amount - elapsed - reserve
    if left < FEWEST_STEPS * step:
        needed = elapsed + reserve + FEWEST_STEPS * step
        raise UserError(
            f"A budget of {budget.text} is too short: starting, {FEWEST_STEPS} steps and saving take about "
            f"{duration(needed + 0.5)} on this machine.",
            f"Give at least --budget {max(1, round(needed * 1.5 + 0.5))}s.",
        )


def expected_epochs(training: Training, budget: Budget, elapsed: float) -> float:
    """How often what is left of a run will read its text, at the speed that was measured.

    Args:
        elapsed: seconds already charged.
    """
    decisions, phase = training.decisions, training.phase(START, 0.0)
    if budget.unit == "seconds":
        begun = elapsed if training.clock.first_step_at is None else training.clock.first_step_at
        seconds, pace = budget.amount - decisions.reserve_seconds - begun, pace_of(decisions)
        ahead = pace.covered(1.0) - pace.covered(min(1.0, (elapsed - begun) / seconds))
        steps = (1.0 - VALIDATION_SHARE) * seconds * ahead
    else:
        steps = budget.amount / (1 if budget.unit == "steps" else phase.batch * phase.length)
    return steps * phase.batch / phase.rows_per_epoch


def worth_compiling(asked: str, device: torch.device, budget: Budget) -> bool:
    """Whether to try torch.compile: where it is asked for, or by itself on a GPU with time to repay it."""
    if asked != "auto":
        return asked == "on"
    return device.type == "cuda" and (budget.unit != "seconds" or budget.amount >= COMPILE_FROM)


def refuse_few_steps(budget: Budget, tokens_per_step: int) -> None:
    """Raise UserError for a token or step budget below FEWEST_STEPS steps."""
    per_step = {"steps": 1, "tokens": tokens_per_step}.get(budget.unit)
    if per_step and budget.amount < FEWEST_STEPS * per_step:
        unit = "steps" if budget.unit == "steps" else "tok"
        raise UserError(
            f"A budget of {budget.text} is too short for {FEWEST_STEPS} steps.",
            f"Give at least --budget {FEWEST_STEPS * per_step}{unit}.",
        )
