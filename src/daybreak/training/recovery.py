"""Changes during a run: a smaller microbatch, a return to an earlier checkpoint, or a run without compilation.

Each change is plain data that holds from a step on, so that a replay applies it at the same step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from daybreak.core.errors import UserError
from daybreak.core.terminal import say
from daybreak.schemas.run import Change, Decisions
from daybreak.training import checkpoint
from daybreak.training.checkpoint import Checkpoint, Progress
from daybreak.training.hardware import microbatch_cache
from daybreak.training.hardware.compiling import say_not_compiled
from daybreak.training.step import CompilationFailed, Training, out_of_memory_error

LOWEST_RATE = 1 / 8
"""Fraction of the peak rate after three halvings; a run that diverges at this rate ends."""


def current_change(decisions: Decisions, step: int) -> Change:
    """The change in force at ``step``: the last one up to it, or the decisions of the start."""
    current = Change(
        step=0,
        why="the start",
        microbatch=decisions.microbatch,
        world_size=decisions.world_size,
        threads=decisions.threads,
        compiled=decisions.compiled,
    )
    for change in decisions.changes:
        if change.step <= step:
            current = change
    return current


def with_change(decisions: Decisions, step: int, why: str, **values: Any) -> Decisions:
    """Decisions with ``values`` of a Change in force from ``step`` on; later changes are dropped with their steps."""
    current = current_change(decisions, step)
    change = replace(current, step=step, why=why, skip_to=current.skip_to if current.step == step else None)
    return _in_force(decisions, replace(change, **values))


def _in_force(decisions: Decisions, change: Change) -> Decisions:
    """Decisions with ``change`` in force from its step on."""
    earlier_changes = [earlier for earlier in decisions.changes if earlier.step < change.step]
    return replace(decisions, changes=[*earlier_changes, change])


def moves(decisions: Decisions) -> list[Change]:
    """Return the changes from which on the machine or the version of torch is another than before."""
    places: list[tuple[str | None, str | None]] = [
        (None, None),
        *((change.machine, change.torch) for change in decisions.changes),
    ]
    return [change for before, change in zip(places, decisions.changes) if (change.machine, change.torch) != before]


def without_compilation(decisions: Decisions, step: int) -> Decisions:
    """Decisions of a run that continues without compilation from ``step`` on."""
    return with_change(decisions, step, "no longer compiled: torch.compile failed", compiled=False)


def without_changes_after(decisions: Decisions, step: int) -> Decisions:
    """Decisions of a run that continues from the checkpoint at ``step``; changes of later steps are dropped."""
    return replace(decisions, changes=[change for change in decisions.changes if change.step <= step])


def repeat_step(training: Training, progress: Progress) -> Training:
    """Repeat a step that did not fit into memory, with the same microbatch.

    Its activations are free now, and another program may have had the memory for a moment only. A smaller microbatch
    would stay for the rest of the run, and compiled blocks would be compiled again for it.
    """
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    return _record_decisions(training, training.decisions, progress.step)


def halve_microbatch(training: Training, progress: Progress) -> Training:
    """Halve the microbatch from this step on; the sequences of a step stay the same."""
    current = current_change(training.decisions, progress.step)
    if current.microbatch <= 1:
        raise out_of_memory_error()
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    rows = current.microbatch // 2
    # Phases of other lengths scale it, so the length belongs to the number.
    size = f"{rows} sequences of {training.phases[0].length} tokens"
    why = f"out of memory: microbatch of {size}"
    say(
        f"Out of memory at step {progress.step:,}: continuing with a microbatch of {size} instead of "
        f"{current.microbatch}."
    )
    if training.microbatch_facts and training.world.is_first:
        microbatch_cache.lower(training.microbatch_key, rows)
    decisions = with_change(training.decisions, progress.step, why, microbatch=rows)
    return _record_decisions(training, decisions, progress.step)


def roll_back(training: Training, progress: Progress) -> tuple[Training, Progress]:
    """Load the newest good checkpoint, skip the sequences read since, and halve the peak rate.

    The lost training time stays charged, like work lost to a kill. A run at its lowest rate ends with an error.
    """
    current = current_change(training.decisions, progress.step)
    good = _last_good(training, progress)
    if good is None or current.rate <= LOWEST_RATE:
        tried = (
            f"also at {current.rate:g} times its learning rate"
            if current.rate < 1
            else "with no checkpoint to go back to"
        )
        rate = training.optimizer.defaults["lr"] * current.rate / 2
        raise UserError(
            f"The run diverges at step {progress.step:,}, {tried}.",
            f"Start in another folder with a lower learning rate: --optimizer.lr {rate:.2g}.",
        )
    before = checkpoint.load(good, training.model, training.optimizer, training.average)
    lost = training.clock.elapsed() - before.elapsed
    training.time_by_category.update({use: 0.0 for use in training.time_by_category} | before.time_by_category)
    training.time_by_category["lost"] += lost
    rate = current.rate / 2
    say(
        f"The run diverges at step {progress.step:,}. It returns to step {before.step:,}, skips the sequences read "
        f"since then and continues at {rate:g} times the peak learning rate."
    )
    why = f"diverged at step {progress.step}: rate halved, sequences skipped"
    # All other settings stay those of the present, not those of the step that it returns to.
    change = replace(current, step=before.step, why=why, rate=rate, skip_to=progress.position)
    decisions = _in_force(training.decisions, change)
    before = replace(
        before,
        elapsed=training.clock.elapsed(),
        resumes=progress.resumes,
        time_by_category=dict(training.time_by_category),
        health=replace(before.health, dropped=progress.health.dropped),
    ).scaled_for(training.decisions.precision)
    if training.run and training.world.is_first:
        # Charge the lost time before the trace that proves it is cut; a resume reads only this folder.
        if checkpoint.folder_of(training.run.checkpoints, before.step).is_dir():
            checkpoint.charge(training.run.checkpoints, before)
        else:
            parts = (training.model, training.optimizer, training.average)
            checkpoint.save(training.run.checkpoints, before, *parts, keep=checkpoint.KEEP + 1)
        # Delete later checkpoints before writing the new decisions, so that a kill in between resumes correctly.
        for folder in (training.run.checkpoints, training.run.best, training.run.branch, training.run.late):
            checkpoint.drop_after(folder, before.step)
        if not checkpoint.any_in(training.run.best):
            before = replace(before, best=None)
    return _record_decisions(training, decisions, before.step), before


def disable_compilation(training: Training, progress: Progress, error: CompilationFailed) -> Training:
    """Continue without torch.compile from this step on."""
    say_not_compiled(error)
    return _record_decisions(training, without_compilation(training.decisions, progress.step), progress.step)


def _last_good(training: Training, progress: Progress) -> Checkpoint | None:
    """The newest checkpoint followed by a good step; otherwise that of the first bad step, whose data alone may be
    bad."""
    good = None
    if training.run and training.world.is_first:
        for before in (progress.first_bad, progress.first_bad + 1):
            for folder in (training.run.checkpoints, training.run.best, training.run.branch):
                good = good or checkpoint.read_newest(folder, before=before)[0]
    return checkpoint.broadcast(good, training.world)


def _record_decisions(training: Training, decisions: Decisions, step: int) -> Training:
    """Write the decisions in force from ``step`` on, and cut the records of the steps that are repeated."""
    if training.journal:
        training.journal.roll_back(step)
        training.journal.write_decisions(decisions)
    return replace(training, decisions=decisions)
