"""From measurements to cells: what can begin at once, what waits for another task's model, how long it will take."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daybreak.core.errors import TooLate, UserError
from daybreak.core.files import replace_folder
from daybreak.core.terminal import duration, working
from daybreak.evaluation.finetuning.cells import Job, encoded, fill
from daybreak.evaluation.finetuning.fanout import run_jobs, telling
from daybreak.evaluation.finetuning.forecast import cell_seconds, forecast_line, waiting_seconds
from daybreak.evaluation.finetuning.measure import Measurement, keeping
from daybreak.evaluation.tasks.task import task_type
from daybreak.schemas.tasks import Cell, TaskResult


@dataclass(frozen=True)
class Plan:
    """A measurement, ready to begin."""

    measurement: Measurement
    jobs: list[Job]
    left: int
    """Cells that are still to be filled."""
    seconds: float
    """What they will take, one after the other."""


def make_plan(measurement: Measurement, overwrite: bool, keep: bool) -> Plan:
    """List the cells, and time a few steps of those to be filled, which also shows whether model and rows fit.

    Args:
        overwrite: remove the cells of earlier calls.
        keep: a model is to be saved.

    Raises:
        UserError: config, tokenizer or weights cannot be used, or do not fit each other.
    """
    jobs = measurement.jobs()
    if keep and len(jobs) == measurement.seeds:  # of several settings, the model to keep is known when all are done
        jobs[0] = keeping(jobs[0])
    if overwrite:
        for job in jobs:
            job.file.unlink(missing_ok=True)
    left = [job for job in jobs if job.finished() is None]
    if not left:
        return Plan(measurement, jobs, 0, 0.0)
    epochs = sum(job.setting.epochs for job in left)
    with telling(left[0]):
        seconds = cell_seconds(left[0], encoded(left[0])) * epochs / left[0].setting.epochs
    return Plan(measurement, jobs, len(left), seconds)


def foreseen(measurement: Measurement, folder: Path) -> Plan:
    """The plan of what starts from another task's model; while that is not there, as if from the one in ``folder``."""
    if not measurement.folder.is_dir():
        measurement = replace(measurement, folder=folder, started=False)
    return make_plan(measurement, overwrite=False, keep=False)


def amount(measurements: Sequence[Measurement]) -> tuple[int, int]:
    """How many fine-tunings these take, and how many training rows they see, counted once an epoch."""
    count = passes = 0
    for each in measurements:
        settings = each.protocol.settings(0, each.data.task.whole, task_type(each.data.task))
        count += len(settings) * each.seeds
        passes += each.train_rows * sum(setting.epochs for setting in settings) * each.seeds
    return count, passes


def is_start(measurement: Measurement) -> bool:
    """Whether other tasks may start from this one's model."""
    return measurement.data.task.whole in dict(measurement.protocol.starts).values()


def waves(measurements: Sequence[Measurement]) -> Iterator[list[Measurement]]:
    """What can be measured at once: first what starts from the model, then what starts from a model of that.

    Raises:
        UserError: a task is to start from another one that is not there.
    """
    starts = dict(measurements[0].protocol.starts)
    later = [each for each in measurements if each.data.task.whole in starts]
    now = [each for each in measurements if each not in later]
    sources = {each.data.task.whole: each for each in now} | {each.data.task.name: each for each in now}
    for each in later:
        if starts[each.data.task.whole] not in sources:
            name, needed = each.data.task.name, starts[each.data.task.whole]
            raise UserError(
                f"Under the protocol {each.protocol.name}, {name} starts from a model that learned {needed}.",
                f"Add {needed} to --tasks, or choose another protocol.",
            )
    if now:
        yield now
    if later:
        # Once for each: jobs() digests the files of the task.
        kept = {start: keeping(sources[start].jobs()[0]).keep for start in {starts[e.data.task.whole] for e in later}}
        following = []
        for each in later:
            start = starts[each.data.task.whole]
            folder, learned = kept[start], sources[start].data.task.name
            assert folder is not None
            # A part of the task is not the task: the name of the protocol says so.
            name = each.protocol.name if learned == start else f"{each.protocol.name}, from {learned}"
            following.append(replace(each, folder=folder, started=True, protocol=replace(each.protocol, name=name)))
        yield following


def filled(plans: Sequence[Plan], workers: int, backend: str) -> Iterator[tuple[Plan, list[Cell]]]:
    """Each plan with its cells, as soon as they are there."""
    jobs = [job for plan in plans for job in plan.jobs]
    with working("Fine-tuning") as work:
        cells = run_jobs(jobs, workers, backend, work)
        for plan in plans:
            yield plan, list(itertools.islice(cells, len(plan.jobs)))


def forecast(plans: Sequence[Plan], workers: int, price: float | None, within: float | None) -> str:
    """What the cells that are still to be filled will take, in words; empty where none are.

    Raises:
        TooLate: it is more than ``within`` seconds.
    """
    left = sum(plan.left for plan in plans)
    if not left:
        return ""
    seconds = waiting_seconds(sum(plan.seconds for plan in plans), left, workers)
    if within is not None and seconds > within:
        raise TooLate(
            f"{left} fine-tunings take about {duration(seconds)} and {duration(within)} are left.",
            "Evaluate later: daybreak evaluate RUN.",
        )
    return forecast_line(seconds, left, workers, price)


def keep_model(plan: Plan, result: TaskResult, target: Path) -> None:
    """Move the first seed's model of the chosen setting to where the user wants it."""
    chosen = (result.settings["epochs"], result.settings["learning_rate"])
    job = next(job for job in plan.jobs if (job.setting.epochs, job.setting.rate) == chosen)
    job = keeping(job)
    with working(f"{result.task}, to keep") as work, telling(job):
        fill(job, lambda share, loss: work.show(share, f"loss {loss:.3f}"))
    assert job.keep is not None
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.copytree(job.keep, staged)
    replace_folder(staged, target)
    if not is_start(plan.measurement):
        shutil.rmtree(job.keep)
