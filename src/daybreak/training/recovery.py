"""Going on where a run would otherwise end: a microbatch that does not fit, weights that have diverged."""

from __future__ import annotations

from dataclasses import replace

import torch

from daybreak.core.errors import UserError
from daybreak.core.terminal import say
from daybreak.schemas.run import Decisions
from daybreak.training import checkpoint
from daybreak.training.changes import changed, in_force, uncompiled
from daybreak.training.checkpoint import Found, Progress
from daybreak.training.step import Training, no_room

LOWEST_RATE = 1 / 8
"""Share of the peak rate after three halvings: a run that diverges even there is given up."""


def halve_microbatch(training: Training, progress: Progress) -> Training:
    """Handle half as many rows at a time from this step on; the rows of a step stay the same.

    Raises:
        UserError: it was a single row.
    """
    held = in_force(training.decisions, progress.step)
    if held.microbatch <= 1:
        raise no_room()
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    rows = held.microbatch // 2
    why = f"out of memory: {rows} rows at a time"
    say(f"Out of memory at step {progress.step:,}: going on with {rows} rows at a time in place of {held.microbatch}.")
    decisions = changed(training.decisions, progress.step, why, microbatch=rows)
    return _decided(training, decisions, progress.step)


def go_back(training: Training, progress: Progress) -> tuple[Training, Progress]:
    """Put the weights back to the newest good checkpoint, pass over the rows read since, and halve the peak rate.

    What was trained since is lost and charged, like work that a kill undid.

    Raises:
        UserError: the rate was halved often enough, or there is no good checkpoint.
    """
    held = in_force(training.decisions, progress.step)
    found = _last_good(training, progress)
    if found is None or held.rate <= LOWEST_RATE:
        tried = f"also at {held.rate:g} times its rate" if held.rate < 1 else "with no checkpoint to go back to"
        rate = training.optimizer.defaults["lr"] * held.rate / 2
        raise UserError(
            f"The run diverges at step {progress.step:,}, {tried}.",
            f"Start in another folder with a lower rate: --optimizer.lr {rate:.2g}.",
        )
    before = checkpoint.load(found, training.model, training.optimizer, training.average)
    lost = training.clock.elapsed() - before.elapsed
    training.time_by_category.update({use: 0.0 for use in training.time_by_category} | before.time_by_category)
    training.time_by_category["lost"] += lost
    rate = held.rate / 2
    say(
        f"Diverging at step {progress.step:,}: back to step {before.step:,}, past the rows read since, at "
        f"{rate:g} times the peak rate."
    )
    decisions = changed(
        training.decisions,
        before.step,
        f"diverged at step {progress.step}: rate halved, rows passed over",
        rate=rate,
        microbatch=held.microbatch,
        compiled=held.compiled,
        world_size=held.world_size,
        threads=held.threads,
        skip_to=progress.position,
    )
    before = replace(
        before,
        elapsed=training.clock.elapsed(),
        time_by_category=dict(training.time_by_category),
        health=replace(before.health, dropped=progress.health.dropped),
    ).scaled_for(training.decisions.precision)
    if training.run and training.world.is_first:
        # What was lost is charged before the trace is cut that proves it. A resume looks nowhere but here.
        if checkpoint.folder_of(training.run.checkpoints, before.step).is_dir():
            checkpoint.charge(training.run.checkpoints, before)
        else:
            parts = (training.model, training.optimizer, training.average)
            checkpoint.save(training.run.checkpoints, before, *parts, keep=checkpoint.KEEP + 1)
        # The course that is left must be gone before the new one is written down: a kill in between resumes soundly.
        for folder in (training.run.checkpoints, training.run.best, training.run.branch, training.run.late):
            checkpoint.drop_after(folder, before.step)
    return _decided(training, decisions, before.step), before


def uncompile(training: Training, progress: Progress) -> Training:
    """Go on from this step on without torch.compile."""
    say("The model could not be compiled any further; training goes on without.")
    return _decided(training, uncompiled(training.decisions, progress.step), progress.step)


def _last_good(training: Training, progress: Progress) -> Found | None:
    """Weights with which a step went well; else those of the first bad step, whose rows alone may have been bad."""
    found = None
    if training.run and training.world.is_first:
        for before in (progress.first_bad, progress.first_bad + 1):
            for folder in (training.run.checkpoints, training.run.best, training.run.branch):
                found = found or checkpoint.newest(folder, before=before)[0]
    return checkpoint.agreed(found, training.world)


def _decided(training: Training, decisions: Decisions, step: int) -> Training:
    """Write down what holds from ``step`` on, and cut the records of what is done again."""
    if training.journal:
        training.journal.go_back(step)
        training.journal.decided(decisions)
    return replace(training, decisions=decisions)
