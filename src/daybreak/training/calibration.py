"""Measurements before the first step, and the choices that follow from them; later starts reuse the choices."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from daybreak.core.budget import Budget
from daybreak.core.errors import TooShort, UserError
from daybreak.core.process import machine_memory, peak_bytes
from daybreak.core.terminal import duration, say
from daybreak.schemas.run import Decisions
from daybreak.training.checkpoint import START, Progress
from daybreak.training.clock import Tick, reserve_for
from daybreak.training.hardware.probe import synchronize
from daybreak.training.loop import save
from daybreak.training.phases import with_microbatch
from daybreak.training.step import Training, accumulate, memory_is_full, out_of_memory_error, stage, update

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
MIN_STEPS = 20
VALIDATION_FRACTION = 0.02
"""Fraction of a time budget for all validations together."""
MARKS = 10
PROBE_ROWS = 32
PROBE_STEP_ROWS = 32
"""Fewest sequences of a device on which a step is timed; a larger batch is extrapolated."""
TRIALS = 3
FIRST_MICROBATCH = 8
MIN_SPEEDUP = 1.02
"""Required speed-up of a microbatch of twice the size."""
MIN_COMPILE_SECONDS = 240.0
"""Budget in seconds from which compilation pays off without a cache. On one H100, ``base`` takes 16 seconds to its
first step and then reads 359,000 tokens a second without compilation, and 75 seconds and 584,000 with it: both have
read as much after three minutes (docs/log.md)."""
MANY_EPOCHS = 4.0
"""Up to about this number of passes, repeated text is nearly as good as new text (arXiv 2305.16264)."""
COURSE_PARTS = 1000
"""Number of intervals over which the expected epochs are integrated."""
MIN_INTERIM_ROWS = 32
"""Fewest sequences of a useful interim validation."""

MEASURED_AT = (0.0, 0.5, 1.0)
"""Progress values at which a step is timed; the speed between them is interpolated linearly."""


@dataclass(frozen=True)
class Pace:
    """Speed over the progress of a run, measured before the first step."""

    speeds: tuple[float, ...]
    """Steps per second at MEASURED_AT."""

    def covered(self, progress: float) -> float:
        """Steps up to ``progress`` (0 to 1) in a run of one second."""
        points = sorted({*(point for point in MEASURED_AT if point < progress), 0.0, progress})
        return float(np.trapezoid(np.interp(points, MEASURED_AT, self.speeds), points))


def pace_of(decisions: Decisions) -> Pace:
    """The measured pace; constant for runs of earlier versions, which measured only the end."""
    seconds = decisions.course_seconds or [decisions.step_seconds[decisions.precision]] * len(MEASURED_AT)
    return Pace(tuple(1.0 / step for step in seconds))


@dataclass(frozen=True)
class Costs:
    """Seconds, measured on the untrained model."""

    step: dict[str, float]
    """By precision, at the end of the run."""
    by_progress: list[float]
    """At MEASURED_AT, in the fastest precision."""
    row: float
    """Per sequence of validation."""
    save: float
    first: float
    """Fraction of the full batch in the first step: below 1 with a batch ramp."""


def fastest_microbatch(training: Training, start: Progress, device_batch: int) -> int:
    """Return the fastest microbatch of one device.

    The search starts at FIRST_MICROBATCH and doubles it while it fits into memory and gets faster.
    A larger microbatch than the fastest one has no benefit, even if it fits into the memory.
    """
    best, best_rate, rows = 0, 0.0, min(FIRST_MICROBATCH, device_batch)
    with _optimizer_in_memory(training):
        before = peak_bytes()
        while rows <= device_batch:
            rate = _rate(training, start, rows)
            if not rate:
                say(f"A microbatch of {rows} sequences does not fit into this device's memory.")
                if best or rows == 1:
                    break
                rows //= 2
                continue
            if rate < best_rate * MIN_SPEEDUP:
                break
            best, best_rate = rows, rate
            if _twice_is_too_much(training, before):
                break
            rows *= 2
    if best == 0:
        raise out_of_memory_error()
    return best


def largest_microbatch(training: Training, start: Progress, device_batch: int, rows: int) -> tuple[int, float]:
    """Double ``rows``, a microbatch that fits, while it fits into memory and a device has so many sequences.

    Returns:
        The largest microbatch, and its sequences a second as a fraction of those of ``rows``.
    """
    rates: dict[int, float] = {}
    with _optimizer_in_memory(training):
        before = peak_bytes()
        while rate := _rate(training, start, rows):
            rates[rows] = rate
            if rows == device_batch or _twice_is_too_much(training, before):
                break
            rows = min(2 * rows, device_batch)
    if not rates:
        raise out_of_memory_error()
    largest = max(rates)
    return largest, rates[largest] / rates[min(rates)]


def _twice_is_too_much(training: Training, before: int) -> bool:
    """Whether a microbatch of twice the size may not fit into a CPU's memory, of which ``before`` bytes were in use.

    It needs about twice as much, and a CPU process without memory is killed and raises no error.
    """
    on_cpu = training.device.type == "cpu"
    return training.world.any(on_cpu and 2 * (peak_bytes() - before) > machine_memory()[1] / 2)


def _rate(training: Training, start: Progress, microbatch: int) -> float:
    """Sequences a second of one device in the fastest of TRIALS steps, as rank 0 measures it.

    It is 0 on all ranks if one of them runs out of memory.
    """
    trial = replace(training, phases=with_microbatch(training.phases, microbatch))
    with contextlib.suppress(torch.OutOfMemoryError):
        seconds = min(_time_rows(trial, start, microbatch * training.world.size) for _ in range(TRIALS))
        return training.world.broadcast(microbatch / seconds)
    torch.cuda.empty_cache()
    return 0.0


def measure_costs(training: Training, start: Progress, precisions: Sequence[str]) -> Costs:
    """Time a step in each of ``precisions``, a small validation and a checkpoint.

    The first run of each is a warm-up and does not count. The checkpoint at step 0 stays, so that a run killed in its
    first seconds can resume.
    """
    step, updates, moments = {}, {}, 0
    for precision in precisions:
        trial = replace(training, decisions=replace(training.decisions, precision=precision))
        updates[precision], moments = _time_update(trial)
        step[precision] = min(_time_step(trial, start, 1.0, updates[precision]) for _ in range(TRIALS))
    fastest = min(step, key=lambda name: step[name])
    trial = replace(training, decisions=replace(training.decisions, precision=fastest))
    earlier = [min(_time_step(trial, start, at, updates[fastest]) for _ in range(2)) for at in MEASURED_AT[:-1]]
    row = min(_time_row(training, start) for _ in range(2))
    first = training.rows_of_step(start, 0.0) / training.phase(start, 0.0).batch
    saving = save(training, start) * _growth_of_a_checkpoint(training, moments)
    return Costs(step=step, by_progress=[*earlier, step[fastest]], row=row, save=saving, first=first)


def rehearse_later_phases(training: Training, start: Progress) -> None:
    """Run two microbatches of each device in every later phase, without an update.

    Their sequences have other shapes, so their graphs are compiled here and not during the run, and a lack of memory
    shows at once.

    Raises:
        MicrobatchTooLarge, CompilationFailed: on all ranks.
    """
    moments = _later_phases(training, start)
    if not moments:
        return
    with _optimizer_in_memory(training):
        training.optimizer.zero_grad(set_to_none=True)
        for progress, at in moments:
            phase = training.phase(progress, at)
            accumulate(training, progress, at, min(phase.batch, 2 * phase.microbatch * training.world.size))
            training.optimizer.zero_grad(set_to_none=True)


def _later_phases(training: Training, start: Progress) -> list[tuple[Progress, float]]:
    """A moment in each stage of the second phase and one in the finish, if they are not over."""
    moments = []
    if training.phase2.enabled and start.second_from is None and not training.finishing(0.0):
        begin = min(training.phase2.start, training.before_finish)
        second = replace(start, second_from=begin)
        moments += [(second, at) for at in {stage(training, at): at for at in (begin, training.before_finish)}.values()]
    if training.finish.enabled:
        moments.append((start, 1.0))
    return moments


def _growth_of_a_checkpoint(training: Training, moments: int) -> float:
    """Ratio of the later size of a checkpoint to its current size; the optimizer has no state before its first step.

    Args:
        moments: bytes of the optimizer's later state.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in training.model.parameters())
    later = weights * (2 if training.average else 1) + moments  # an average has no tensors before its first step
    return later / (weights + _bytes_remembered(training.optimizer))


def _bytes_remembered(optimizer: torch.optim.Optimizer) -> int:
    tensors = (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _time_step(training: Training, start: Progress, at: float, fixed: float) -> float:
    """Seconds of a step with a full batch and an update of ``fixed`` seconds, at progress ``at``.

    It is timed on whole microbatches: another number of sequences would need another compilation.
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
    """Seconds of an update with zero gradient and zero rate, and the bytes of the optimizer's state."""
    with _updated_once(training):
        return _timed(training, lambda: update(training)), _bytes_remembered(training.optimizer)


def _optimizer_in_memory(training: Training) -> contextlib.AbstractContextManager[None]:
    """Let the optimizer have the memory that it has from the first update on."""
    return contextlib.nullcontext() if training.optimizer.state else _updated_once(training)


@contextlib.contextmanager
def _updated_once(training: Training) -> Iterator[None]:
    """Make an update with zero gradient and zero rate, which allocates a new state of the optimizer.

    The state and the rates are restored afterwards.
    """
    optimizer = training.optimizer
    state, rates = optimizer.state, [group["lr"] for group in optimizer.param_groups]
    optimizer.state = defaultdict(dict)
    try:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        _allocate(training)
        yield
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state = state
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _allocate(training: Training) -> None:
    try:
        update(training)
    except RuntimeError as error:
        if not memory_is_full(error):
            raise
        raise out_of_memory_error() from None


def _timed(training: Training, work: Callable[[], object]) -> float:
    """Seconds of ``work`` alone: the GPU's queue is empty before and after it."""
    synchronize(training.device)
    started = time.monotonic()
    work()
    synchronize(training.device)
    return time.monotonic() - started


def _time_row(training: Training, start: Progress) -> float:
    rows, validation = min(PROBE_ROWS, training.validation.rows), training.validation
    training.model.eval()  # as in validation: dropout and compiled blocks are for training only
    validation.measure(training.model, rows=rows, step=start.step, tokens=0, tick=Tick(0.0, 0.0), final=False)
    training.model.train()
    return validation.row_seconds


def decide(decisions: Decisions, budget: Budget, costs: Costs, rows: int, final: float, elapsed: float) -> Decisions:
    """Complete ``decisions`` with the fastest precision, the reserve and the plan of validations.

    Args:
        rows: sequences of the final validation.
        final: seconds of the final validation.
        elapsed: seconds charged so far.
    """
    precision = min(costs.step, key=lambda name: costs.step[name])
    step_seconds = {name: round(seconds, 4) for name, seconds in costs.step.items()}
    by_progress = [round(seconds, 6) for seconds in costs.by_progress]
    decisions = replace(decisions, precision=precision, step_seconds=step_seconds, course_seconds=by_progress)
    if budget.unit != "seconds":
        return replace(decisions, reserve_seconds=0.0, validation_rows=rows, validation_marks=MARKS)
    reserve = reserve_for(validation=final, save=costs.save, step=costs.step[precision])
    _refuse_short(budget, elapsed, reserve, costs.step[precision] * costs.first)
    room = VALIDATION_FRACTION * budget.amount - final
    affordable = int(max(0.0, room) / costs.row)
    unit = min(MIN_INTERIM_ROWS, rows)
    marks = min(MARKS, affordable // unit)
    interim = min(rows, affordable // marks // unit * unit) if marks else rows
    return replace(decisions, reserve_seconds=reserve, validation_rows=interim, validation_marks=marks)


def _refuse_short(budget: Budget, elapsed: float, reserve: float, step: float) -> None:
    left = budget.amount - elapsed - reserve
    if left < MIN_STEPS * step:
        needed = elapsed + reserve + MIN_STEPS * step
        raise TooShort(
            f"A budget of {budget.text} is too short: starting, {MIN_STEPS} steps and saving take about "
            f"{duration(needed + 0.5)} on this machine.",
            f"Give at least {max(1, round(needed * 1.5 + 0.5))}s.",
        )


def expected_epochs(training: Training, budget: Budget, elapsed: float) -> float:
    """Expected passes over the text: of a time budget in the rest of the run, of another budget in the whole run.

    The batch ramp and the second phase are followed in COURSE_PARTS parts. At one progress, all of them read as many
    tokens a second as whole steps of the first phase, which are measured.

    Args:
        elapsed: seconds charged so far.
    """
    decisions, first, begin = training.decisions, training.phase(START, 0.0), 0.0
    if budget.unit == "seconds":
        started = elapsed if training.clock.first_step_at is None else training.clock.first_step_at
        seconds, pace = budget.amount - decisions.reserve_seconds - started, pace_of(decisions)
        begin = min(1.0, (elapsed - started) / seconds)
        tokens_per_step = (1.0 - VALIDATION_FRACTION) * seconds * first.batch * first.length
    parts = min(COURSE_PARTS, int(budget.amount)) if budget.unit == "steps" else COURSE_PARTS
    progress, epochs = START, 0.0
    for part in range(parts):
        at, end = (begin + (1.0 - begin) * place / parts for place in (part, part + 1))
        now = min(at, training.before_finish)  # the finish counts as what precedes it
        if training.phase2.enabled and now >= training.phase2.start:
            progress = replace(progress, second_from=training.phase2.start)
        phase = training.phase(progress, now)
        if budget.unit == "steps":
            rows = training.rows_of_step(progress, now) * budget.amount / parts
        elif budget.unit == "tokens":
            rows = budget.amount / parts / phase.length
        else:
            rows = tokens_per_step * (pace.covered(end) - pace.covered(at)) / phase.length
        progress = replace(progress, position=progress.position + round(rows))
        epochs += rows / phase.rows_per_epoch
    return epochs


def repetition(epochs: float) -> str:
    """Describe how often the text is read and what that is worth; empty if nothing is read twice."""
    if epochs <= 1.0:
        return ""
    times, many = f"{epochs:.{1 if epochs < 10 else 0}f} times", f"about {MANY_EPOCHS:.0f} times"
    if epochs <= MANY_EPOCHS:
        return f"{times}; up to {many}, repeated text is nearly as good as new text."
    return f"{times}; beyond {many}, repetition helps little: use more text."


def repetition_notice(epochs: float) -> str:
    """Return ``repetition`` as a sentence, a warning beyond MANY_EPOCHS; empty if nothing is read twice."""
    start = "Warning: the" if epochs > MANY_EPOCHS else "The"
    return f"{start} run reads the text {advice}" if (advice := repetition(epochs)) else ""


def worth_compiling(setting: str, device: torch.device, budget: Budget) -> bool:
    """Whether to try torch.compile: if requested, or automatically on a GPU with enough time."""
    if setting != "auto":
        return setting == "on"
    return device.type == "cuda" and (budget.unit != "seconds" or budget.amount >= MIN_COMPILE_SECONDS)


def refuse_few_steps(budget: Budget, tokens_per_step: int) -> None:
    """Raise UserError for a token or step budget below MIN_STEPS steps."""
    per_step = {"steps": 1, "tokens": tokens_per_step}.get(budget.unit)
    if per_step and budget.amount < MIN_STEPS * per_step:
        unit = "steps" if budget.unit == "steps" else "tok"
        raise UserError(
            f"A budget of {budget.text} is too short for {MIN_STEPS} steps.",
            f"Give at least {MIN_STEPS * per_step}{unit}.",
        )
