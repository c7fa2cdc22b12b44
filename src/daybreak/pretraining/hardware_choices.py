"""What is decided before the first step: measured at a run's first start, obeyed at every later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.core.terminal import say
from daybreak.core.world import World
from daybreak.forecasting.runs import why_not
from daybreak.pretraining.setup import PretrainingJob, heldout_losses
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.run import Decisions
from daybreak.training import calibration
from daybreak.training.changes import changed, cut, in_force, uncompiled
from daybreak.training.checkpoint import START, Progress
from daybreak.training.hardware import microbatch_cache, probe
from daybreak.training.hardware.compiling import try_compiled
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.phases import with_batch_multiple, with_microbatch
from daybreak.training.step import NotCompiled, TooManyRows, Training, accumulate, no_room

LAW_RECIPE = "mini"
"""A recipe as the runs behind the law had it."""
MANY_ROWS = 32
"""A device's share up to this many rows is handled at a time; of more the fastest number is found by measuring."""


def first_decisions(recipe: Recipe, world: World) -> Decisions:
    """Measure what is fast here; what needs the model follows in ``calibration.decide``."""
    device = probe.choose_device()
    rates = probe.matmul_rates(device)
    batch = recipe.global_batch(world.size)
    fewest = min(rows for rows in (batch, recipe.phase2.batch, recipe.finish.batch, recipe.ramp.batch_multiple) if rows)
    _refuse_idle(fewest, world)
    share = -(-batch // world.size)
    microbatch = recipe.microbatch or (share if share <= MANY_ROWS else 0)
    if world.size > 1 or recipe.devices.batch:
        rule = f", learning rate x{recipe.rate_factor(world.size):g}" if recipe.devices.rate_rule != "none" else ""
        say(f"Batch: {share} rows a device x {world.size} devices = {batch} rows a step{rule}.")
    return Decisions(
        device=device.type,
        threads=torch.get_num_threads(),
        precision="float32",
        microbatch=min(microbatch, share),
        batch=batch,
        rate_factor=recipe.rate_factor(world.size),
        world_size=world.size,
        reserve_seconds=0.0,
        validation_rows=1,
        validation_marks=0,
        matmul_gflops=rates,
    )


def use_device(decisions: Decisions) -> None:
    """Choose the device as decided, and refuse where this machine has none."""
    if decisions.device == "cuda" and not torch.cuda.is_available():
        raise UserError("The run was started on a GPU and there is none now.", "Resume it on such a machine.")
    if decisions.device == "cuda":
        torch.cuda.set_device(probe.choose_device())
        # Torch prefers cuDNN's attention on some GPUs and versions, whose gradients differ from one run to the next.
        torch.backends.cuda.enable_cudnn_sdp(False)


def resume(training: Training, progress: Progress, run: RunFolder) -> Training:
    """A resumed run obeys what was decided; only its processes may be others.

    The rows of a step, their order and the microbatch stay as they were. Another number of processes shares them out
    anew, so the result is the same up to the order of summation.
    """
    world = training.world
    decisions = cut(training.decisions, progress.step)
    held = in_force(decisions, progress.step)
    if held.world_size != world.size:
        fewest = min(training.rows_of_step(START, 0.0), *(phase.batch for phase in training.phases))
        _refuse_idle(fewest, world)
        say(f"Going on with {world.size} processes in place of {held.world_size}: the same rows, shared out anew.")
        why = f"resumed on {world.size} in place of {held.world_size} processes"
        decisions = changed(decisions, progress.step, why, world_size=world.size, threads=torch.get_num_threads())
    torch.set_num_threads(in_force(decisions, progress.step).threads)
    if decisions != training.decisions and world.is_first:
        write_json(run.decisions, decisions)
    phases = with_microbatch(training.phases, in_force(decisions, progress.step).microbatch)
    training = replace(training, phases=phases, decisions=decisions)
    if in_force(decisions, progress.step).compiled and not compiled_everywhere(training, progress):
        decisions = uncompiled(decisions, progress.step)
        if world.is_first:
            write_json(run.decisions, decisions)
    return replace(training, decisions=decisions)


def _refuse_idle(rows: int, world: World) -> None:
    if rows < world.size:
        raise UserError(
            f"A step of {rows} rows cannot be shared by {world.size} processes.",
            f"Start at most {rows}, or a run with more rows a step.",
        )


def with_measurements(job: PretrainingJob, training: Training, start: Progress) -> Training:
    """Complete the decisions with what only the built model can tell."""
    world, recipe, decisions = training.world, job.recipe, training.decisions
    auto = recipe.precision == "auto"
    asked = world.broadcast(probe.precisions(training.device)) if auto else (recipe.precision,)
    # What fits and pays is found in the precision that is likely to win: half precision stands last.
    decisions = replace(decisions, precision=asked[-1])
    training = replace(training, decisions=decisions)
    training = _with_rows(training, decisions.microbatch or _microbatch(job, training, start))
    if calibration.worth_compiling(recipe.compile, training.device, job.budget):
        compiled = compiled_everywhere(training, start)
        training = replace(training, decisions=replace(training.decisions, compiled=compiled))
    training, costs = _with_costs(training, start, asked)
    decisions = training.decisions
    final = training.validation.whole_seconds(costs.row)
    # One opinion for all: each rank measured its own.
    costs, final, elapsed = world.broadcast((costs, final, training.clock.elapsed()))
    decisions = calibration.decide(decisions, job.budget, costs, training.validation.rows, final, elapsed)
    if recipe.origin.init:
        decisions = replace(decisions, before=heldout_losses(job, training))
    decisions = world.broadcast(decisions)
    training.clock.keep_back(decisions.reserve_seconds)
    training = replace(training, decisions=decisions)
    _warn_of_repeats(calibration.expected_epochs(training, job.budget, elapsed))
    return training


def _warn_of_repeats(epochs: float) -> None:
    """Said before the first step: afterwards it is too late to look for more text."""
    if epochs > calibration.MANY_EPOCHS:
        say(
            f"At this speed the budget reads the text about {epochs:.0f} times; beyond about "
            f"{calibration.MANY_EPOCHS:.0f} times it teaches little: more text would."
        )


def compiled_everywhere(training: Training, progress: Progress) -> bool:
    """Compile the blocks on every rank, or on none; return whether that worked."""
    failed = try_compiled(training.model, lambda: _dry_step(training, progress))
    if training.world.any(failed is not None):
        training.model.compiled = None
    training.data_parallel.renew()
    return training.model.compiled is not None


def _dry_step(training: Training, progress: Progress) -> None:
    """A microbatch without its update, by this rank alone, so that no other waits where it fails."""
    alone = replace(training, world=World(), data_parallel=DataParallel(training.model, World()))
    at = training.before_finish
    accumulate(alone, progress, at, training.phase(progress, at).microbatch)


def _with_costs(training: Training, start: Progress, asked: Sequence[str]) -> tuple[Training, calibration.Costs]:
    """Measure what things cost, with as few rows at a time as that takes."""
    while True:
        try:
            return training, calibration.measure_costs(training, start, asked)
        except TooManyRows:
            training = _with_rows(training, training.decisions.microbatch // 2)
        except NotCompiled:
            training.model.compiled = None
            training = replace(training, decisions=replace(training.decisions, compiled=False))


def _with_rows(training: Training, rows: int) -> Training:
    """The run with this many rows at a time, by which a batch grows as well."""
    if not rows:
        raise no_room()
    phases = with_batch_multiple(with_microbatch(training.phases, rows), training.world.size)
    return replace(training, phases=phases, decisions=replace(training.decisions, microbatch=rows))


def _microbatch(job: PretrainingJob, training: Training, start: Progress) -> int:
    """The rows at a time that are the fastest here: as remembered from an earlier run, or measured."""
    world, recipe = training.world, job.recipe
    share = training.decisions.batch // world.size
    environment = probe.describe(training.device, 0.0)
    parts = [to_dict(recipe.model), to_dict(recipe.objective), recipe.length, recipe.gradient_checkpointing, share]
    facts = [environment.device, environment.torch, training.decisions.precision, *parts]
    known = world.broadcast(microbatch_cache.recall(facts))
    if known:
        say(f"Microbatch: {known} rows at a time were the fastest here before.")
        return min(known, share)
    rows = world.broadcast(calibration.fastest_microbatch(training, start, share))
    say(f"Microbatch: {rows} rows at a time are the fastest here.")
    if world.is_first:
        microbatch_cache.remember(facts, rows)
    return rows


def why_no_forecast(recipe: Recipe) -> str:
    """Why the law of losses does not speak of this recipe, in words; empty where it does."""
    return why_not(to_dict(recipe), to_dict(load_recipe(LAW_RECIPE)))
