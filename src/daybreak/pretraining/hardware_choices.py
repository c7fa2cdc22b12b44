"""Hardware choices of a run: measured at its first start, stored in decisions.json and reused on resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.core.terminal import say
from daybreak.core.world import World
from daybreak.forecasting.law import why_not
from daybreak.pretraining.setup import PretrainingJob, heldout_losses
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.run import Change, Decisions, Environment
from daybreak.training import calibration
from daybreak.training.checkpoint import START, Progress
from daybreak.training.hardware import microbatch_cache, probe
from daybreak.training.hardware.compiling import say_not_compiled, try_compiled
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.phases import with_batch_multiple, with_microbatch
from daybreak.training.recovery import current_change, with_change, without_changes_after, without_compilation
from daybreak.training.step import CompilationFailed, MicrobatchTooLarge, Training, accumulate, out_of_memory_error

Result = TypeVar("Result")

LAW_RECIPE = "mini"
"""Recipe of the runs that the scaling law was fitted to."""
MANY_ROWS = 32
"""A device's part of the batch up to this size is one microbatch; for more, the fastest microbatch is measured."""


def first_decisions(recipe: Recipe, world: World) -> Decisions:
    """Make the choices that do not need the model; ``with_measurements`` adds the others."""
    device = probe.choose_device()
    rates = probe.matmul_rates(device)
    batch = recipe.global_batch(world.size)
    check_batch(recipe, world)
    part = -(-batch // world.size)
    microbatch = recipe.microbatch or (part if part <= MANY_ROWS else 0)
    if world.size > 1 or recipe.devices.batch:
        rule = f", learning rate x{recipe.rate_factor(world.size):g}" if recipe.devices.rate_rule != "none" else ""
        each = f"{'' if part * world.size == batch else 'at most '}{part} on each of {world.size} devices"
        say(f"Batch: {batch} sequences a step, {each}{rule}.")
    return Decisions(
        device=device.type,
        threads=torch.get_num_threads(),
        precision="float32",
        microbatch=min(microbatch, part),
        batch=batch,
        rate_factor=recipe.rate_factor(world.size),
        world_size=world.size,
        reserve_seconds=0.0,
        validation_rows=1,
        validation_marks=0,
        first_heldout=False,
        matmul_gflops=rates,
    )


def check_batch(recipe: Recipe, world: World) -> None:
    """Raise UserError if a step of any phase has fewer sequences than there are processes."""
    batch = recipe.global_batch(world.size)
    finish = recipe.finish.sequences(batch, recipe.length) if recipe.finish.enabled else 0
    sizes = (batch, recipe.phase2.batch, finish, recipe.ramp.batch_multiple)
    _refuse_few_rows(min(rows for rows in sizes if rows), world)


def use_device(decisions: Decisions) -> None:
    """Select the device of the run."""
    if decisions.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "The run was started on a GPU, and this machine has none.", "Resume it on a machine with a GPU."
        )
    if decisions.device == "cuda":
        torch.cuda.set_device(probe.choose_device())


def resume(training: Training, progress: Progress, run: RunFolder, *, trains: bool = True) -> Training:
    """Return the training of a resumed run with its stored choices; only machine and number of processes may differ.

    The sequences of a step, their order and the microbatch do not change. Another number of processes divides them
    differently, so the result is the same up to the order of summation.

    Args:
        trains: False if no step remains, so that nothing has to be compiled.
    """
    world = training.world
    decisions = without_changes_after(training.decisions, progress.step)
    current = current_change(decisions, progress.step)
    reasons: list[str] = []
    changed: dict[str, Any] = {}
    if current.world_size != world.size:
        fewest = min(training.rows_of_step(START, 0.0), *(phase.batch for phase in training.phases))
        _refuse_few_rows(fewest, world)
        say(f"Resuming with {world.size} processes instead of {current.world_size}; the batch stays the same.")
        reasons.append(f"resumed on {world.size} instead of {current.world_size} processes")
        changed.update(world_size=world.size, threads=torch.get_num_threads())
    if world.is_first:
        for name, (words, value) in _elsewhere(training, current, run).items():
            reasons.append(f"resumed {words} {value}")
            changed[name] = value
    if reasons:
        decisions = with_change(decisions, progress.step, "; ".join(reasons), **changed)
        current = current_change(decisions, progress.step)
    torch.set_num_threads(current.threads)
    if decisions != training.decisions and world.is_first:
        write_json(run.decisions, decisions)
    phases = with_microbatch(training.phases, current.microbatch)
    training = replace(training, phases=phases, decisions=decisions)
    if trains and current.compiled and not _compiled_again(training, progress):
        decisions = without_compilation(decisions, progress.step)
        if world.is_first:
            write_json(run.decisions, decisions)
    return replace(training, decisions=decisions)


def _elsewhere(training: Training, current: Change, run: RunFolder) -> dict[str, tuple[str, str]]:
    """Return what is no longer as in the steps so far: the field of a Change -> words about it, and its value."""
    if not run.environment.exists():
        return {}
    now, started = probe.describe(training.device, 0.0), read_json(run.environment, Environment)
    found = {}
    if now.device != (current.machine or started.device):
        found["machine"] = ("on another machine:", now.device)
    if now.torch != (current.torch or started.torch):
        found["torch"] = ("with torch", now.torch)
    return found


def _refuse_few_rows(rows: int, world: World) -> None:
    if rows < world.size:
        raise UserError(
            f"A step of {rows} sequences cannot be divided among {world.size} processes.",
            f"Start at most {rows} processes, or use a larger batch.",
        )


def with_measurements(job: PretrainingJob, training: Training, start: Progress) -> Training:
    """Add the choices that need the model: precision, microbatch, compilation and the time reserved for the end."""
    world, recipe, decisions = training.world, job.recipe, training.decisions
    auto = recipe.precision == "auto"
    precisions = world.broadcast(probe.precisions(training.device)) if auto else (recipe.precision,)
    # The microbatch is measured in the precision that is probably the fastest: half precision, the last one.
    decisions = replace(decisions, precision=precisions[-1])
    training = replace(training, decisions=decisions)

    def compile_model(training: Training) -> Training:
        compiled = compiled_everywhere(training, start)
        return replace(training, decisions=replace(training.decisions, compiled=compiled))

    def measure_costs(training: Training) -> tuple[Training, calibration.Costs]:
        if training.decisions.compiled:
            calibration.rehearse_later_phases(training, start)
        return training, calibration.measure_costs(training, start, precisions)

    rows = decisions.microbatch or _microbatch(training, start)
    rows = _filled(training, start, rows) if job.fill_memory else rows
    if calibration.worth_compiling(recipe.compile, training.device, job.budget):
        rows = rows if rows == recipe.microbatch else _even(training, rows)
        training = until_it_fits(_with_microbatch(training, rows), compile_model)
    else:
        training = _with_microbatch(training, rows)
    training, costs = until_it_fits(training, measure_costs)
    decisions = training.decisions
    final = training.validation.whole_seconds(costs.row)
    # Ranks would otherwise choose different precisions and reserves.
    costs, final, elapsed = world.broadcast((costs, final, training.clock.elapsed()))
    decisions = calibration.decide(decisions, job.budget, costs, training.validation.rows, final, elapsed)
    if recipe.origin.init:
        decisions = replace(decisions, before=heldout_losses(job, training))
    decisions = world.broadcast(decisions)
    training.clock.keep_back(decisions.reserve_seconds)
    training = replace(training, decisions=decisions)
    epochs = calibration.expected_epochs(training, job.budget, elapsed)
    if notice := calibration.repetition_notice(epochs):
        say(notice)
    return training


def compiled_everywhere(training: Training, progress: Progress) -> bool:
    """Compile the blocks on all ranks, or on none if one fails; return whether they are compiled.

    Raises:
        MicrobatchTooLarge: on all ranks, if the microbatch does not fit on one of them; the blocks stay compiled.
    """
    failed, fits = None, True
    try:
        varies = training.objective.count_varies
        failed = try_compiled(training.model, lambda: _dry_step(training, progress), count_varies=varies)
    except torch.OutOfMemoryError:
        fits = False
    if training.world.any(failed is not None):
        training.model.compiled = None
    training.data_parallel.rebuild()
    if training.world.any(not fits):
        raise MicrobatchTooLarge(f"a microbatch of {training.phase(progress, 0.0).microbatch} sequences does not fit")
    return training.model.compiled is not None


def _compiled_again(training: Training, progress: Progress) -> bool:
    """Compile a resumed run's blocks; return whether they are compiled."""
    try:
        if compiled_everywhere(training, progress):
            calibration.rehearse_later_phases(training, progress)
    except MicrobatchTooLarge:  # the loop halves it when it comes to that phase
        pass
    except CompilationFailed as error:
        say_not_compiled(error)
        training.model.compiled = None
    return training.model.compiled is not None


def _dry_step(training: Training, progress: Progress) -> None:
    """Run one microbatch without an update on this rank alone, so that a failure blocks no other rank."""
    alone = replace(training, world=World(), data_parallel=DataParallel(training.model, World()))
    at = training.before_finish
    accumulate(alone, progress, at, training.phase(progress, at).microbatch)


def until_it_fits(training: Training, measure: Callable[[Training], Result]) -> Result:
    """Call ``measure``; halve the microbatch until it fits into memory, and stop compiling if that fails."""
    while True:
        try:
            return measure(training)
        except MicrobatchTooLarge:
            training = _halved(training)
        except CompilationFailed as error:
            say_not_compiled(error)
            training.model.compiled = None
            training = replace(training, decisions=replace(training.decisions, compiled=False))


def _halved(training: Training) -> Training:
    """Return the training with half its microbatch, which does not fit into memory."""
    rows = training.decisions.microbatch
    say(f"A microbatch of {rows} sequences does not fit into this device's memory.")
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    if rows > 1 and training.world.is_first:
        microbatch_cache.lower(training.microbatch_key, rows // 2)
    return _with_microbatch(training, rows // 2)


def _with_microbatch(training: Training, rows: int) -> Training:
    """Return the training with this microbatch, which is also the step of a growing batch."""
    if not rows:
        raise out_of_memory_error()
    phases = with_batch_multiple(with_microbatch(training.phases, rows), training.world.size)
    return replace(training, phases=phases, decisions=replace(training.decisions, microbatch=rows))


def _microbatch(training: Training, start: Progress) -> int:
    """The fastest microbatch on this machine, from the cache of an earlier run or measured."""
    world, key = training.world, training.microbatch_key
    part = training.decisions.batch // world.size
    known = world.broadcast(microbatch_cache.recall(key))
    if known:
        say(f"Microbatch: {known} sequences, the fastest in an earlier run on this machine.")
        return min(known, part)
    rows = world.broadcast(calibration.fastest_microbatch(training, start, part))
    say(f"Microbatch: {rows} sequences are the fastest on this machine.")
    if world.is_first:
        microbatch_cache.remember(key, rows)
    return rows


def _filled(training: Training, start: Progress, rows: int) -> int:
    """The largest microbatch that fits into the memory, at least ``rows``."""
    part = training.decisions.batch // training.world.size
    measured = calibration.largest_microbatch(training, start, part, rows)
    largest, speed = training.world.broadcast(measured)
    say(f"Microbatch: {largest} sequences fill the memory, at {speed:.0%} of the speed of {rows}.")
    return largest


def _even(training: Training, rows: int) -> int:
    """The microbatch that divides a device's sequences into as many parts as ``rows`` does, of one size if possible.

    A smaller last one has another shape, which would be compiled in the first step.
    """
    part = -(-training.decisions.batch // training.world.size)
    return -(-part // -(-part // rows))


def has_copy_heads(recipe: Recipe) -> bool:
    """Whether a new model of the recipe starts with copy heads."""
    return bool(getattr(recipe.model, "plants_copy_heads", False)) and not recipe.origin.has_weights


def why_no_forecast(recipe: Recipe) -> str:
    """Why the scaling law cannot forecast this recipe, in words; empty if it can."""
    return why_not(to_dict(recipe), to_dict(load_recipe(LAW_RECIPE)))
