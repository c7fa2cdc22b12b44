"""Verb: a model -> results.json. GLUE, SciBERT's tasks, and tasks of one's own."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.files import make_folder, replace_folder
from daybreak.base.run_folder import RunFolder
from daybreak.base.task_records import Cell, TaskResult
from daybreak.base.terminal import duration, say, working
from daybreak.evaluation.cells import EncodedTask, Job, fill
from daybreak.evaluation.classifier import check_save_folder, parameter_count
from daybreak.evaluation.fanout import BACKENDS, forecast_line, run_jobs, thread_count, worker_count
from daybreak.evaluation.forecast import cell_seconds
from daybreak.evaluation.kinds import load_task
from daybreak.evaluation.known_tasks import known_task, spelled_out
from daybreak.evaluation.measure import Measurement, keeping
from daybreak.evaluation.protocols import find_protocol
from daybreak.evaluation.results import merge_result, read_results
from daybreak.evaluation.task_file import read_task_file
from daybreak.evaluation.tasks import Task, TaskRows
from daybreak.packaging.card import write_card


def evaluate(
    model: Path,
    tasks: Sequence[str],
    *,
    task_dir: Path | None = None,
    protocol: str = "quick",
    epochs: int | None = None,
    rate: float | None = None,
    rows: int | None = None,
    frozen: bool = False,
    seeds: int | None = None,
    out: Path | None = None,
    save: Path | None = None,
    untrained: bool = False,
    workers: int | None = None,
    backend: str = "processes",
    price: float | None = None,
    fresh: bool = False,
) -> list[TaskResult]:
    """Fine-tune a model on tasks, with seeds 0 to ``seeds`` - 1, and write the scores to ``results.json``.

    Everything that can be wrong with the input is checked before the first fine-tuning. Each fine-tuning has a file of
    its own in ``cells`` beside ``results.json``: called again after a kill, only the missing ones are done. Several
    models can share one folder.

    Args:
        model: a Hugging Face folder of an encoder, or a run folder.
        tasks: names of GLUE's and SciBERT's tasks or of lists of them, paths of .toml files.
        task_dir: the folder under which the files of tasks by name lie as they are distributed.
        protocol: a name of ``protocols.PROTOCOLS``.
        epochs, rate, rows, frozen: one epoch count, one peak learning rate, another number of training rows, or an
            encoder that does not learn, in place of the protocol's; the result is then not under the protocol's name,
            but under one that says so.
        seeds: fine-tunings of each task and setting; as many as the protocol has when None.
        out: the folder of ``results.json``; by default the run folder, or the model's own.
        save: keep the model of the first seed here, as a stock classifier; with several tasks, each in a folder of
            its name below.
        untrained: fine-tune the same shape with random weights instead: what is learned without pretraining.
        workers: fine-tunings at a time; one a GPU or a CPU core when None.
        backend: processes of this machine, or a ray or dask cluster through joblib.
        price: of an hour of this machine; the forecast then says what the evaluation will cost.
        fresh: do every fine-tuning again.

    Returns:
        The results of this call, in the order of ``tasks``.

    Raises:
        UserError: for anything in the input that the user can mend.
    """
    run = _run_folder(model)
    folder = run.model if run else model
    _check_model_folder(folder)
    chosen = find_protocol(protocol).changed(epochs, rate, rows, frozen)
    seeds = chosen.seeds if seeds is None else seeds
    if seeds < 1:
        raise UserError(f"{seeds} seeds are too few.", "Use at least 1; 3 make a claim.")
    if backend not in BACKENDS:
        raise UserError(f"There is no backend '{backend}'.", f"Use one of: {', '.join(BACKENDS)}.")
    found = find_tasks(tasks, task_dir)
    results_file = make_folder(out or (run.path if run else model)) / "results.json"
    read_results(results_file)
    targets = _save_folders(found, save)
    loaded = [load_task(task) for task in found]
    count = sum(len(chosen.settings(0, task.family or task.name)) for task in found) * seeds
    at_once = worker_count(count, parameter_count(folder), workers)
    first = Measurement(
        folder=folder,
        model_name=_model_name(model),
        data=loaded[0],
        protocol=chosen,
        seeds=seeds,
        untrained=untrained,
        threads=thread_count(at_once),
        hidden=False,
        cells=results_file.parent / "cells",
    )
    results = {}
    for wave in _waves(first, loaded):
        plans = [_plan(each, fresh, keep=each.data.task.name in targets or _is_start(each)) for each in wave]
        if todo := [job for plan in plans for job in plan.jobs if job.finished() is None]:
            say(_forecast(plans, len(todo), at_once, price))
        for plan, cells in _filled(plans, at_once, backend):
            result = plan.measurement.result(plan.rows, plan.jobs, cells)
            results[result.task] = result
            merge_result(results_file, result)
            if target := targets.get(result.task):
                _save(plan, result, target)
            say(_line(result, plan.measurement.data))
    if run and results_file == run.results and run.summary.exists():
        write_card(run, read_results(run.results))
    return [results[task.name] for task in found]


@dataclass(frozen=True)
class _Plan:
    """A measurement, ready to begin."""

    measurement: Measurement
    rows: EncodedTask
    jobs: list[Job]


def _plan(measurement: Measurement, fresh: bool, keep: bool) -> _Plan:
    rows = measurement.encoded()
    jobs = measurement.jobs(rows)
    one_setting = len(jobs) == measurement.seeds
    if keep and one_setting:  # of several settings, the model to keep is known when all are done
        jobs[0] = keeping(jobs[0])
    if fresh:
        for job in jobs:
            job.file.unlink(missing_ok=True)
    return _Plan(measurement, rows, jobs)


def _is_start(measurement: Measurement) -> bool:
    task = measurement.data.task
    return (task.family or task.name) in dict(measurement.protocol.starts).values()


def _waves(first: Measurement, loaded: Sequence[TaskRows]) -> Iterator[list[Measurement]]:
    """What can be measured at once: first what starts from the model, then what starts from a model of that.

    Raises:
        UserError: a task is to start from another one that is not there.
    """
    starts = dict(first.protocol.starts)
    families = {data.task.family or data.task.name: data.task.name for data in loaded}
    later = [data for data in loaded if (data.task.family or data.task.name) in starts]
    for data in later:
        needed = starts[data.task.family or data.task.name]
        if needed not in families:
            raise UserError(
                f"Under the protocol {first.protocol.name}, {data.task.name} starts from a model that learned {needed}.",
                f"Add {needed} to --tasks, or choose another protocol.",
            )
    now = [replace(first, data=data) for data in loaded if data not in later]
    yield now
    if not later:
        return
    following = []
    for data in later:
        source = families[starts[data.task.family or data.task.name]]
        (parent,) = (each for each in now if each.data.task.name == source)
        # A part of the task is not the task: the name of the protocol says so.
        exact = source == starts[data.task.family or data.task.name]
        name = first.protocol.name if exact else f"{first.protocol.name}, from {source}"
        folder = keeping(parent.jobs(parent.encoded())[0]).keep
        assert folder is not None
        following.append(replace(first, data=data, folder=folder, protocol=replace(first.protocol, name=name)))
    yield following


def _filled(plans: Sequence[_Plan], workers: int, backend: str) -> Iterator[tuple[_Plan, list[Cell]]]:
    """Each plan with its cells, as soon as they are there."""
    jobs = [job for plan in plans for job in plan.jobs]
    with working("Fine-tuning") as work:
        cells = run_jobs(jobs, workers, backend, work)
        for plan in plans:
            yield plan, list(itertools.islice(cells, len(plan.jobs)))


def _forecast(plans: Sequence[_Plan], todo: int, workers: int, price: float | None) -> str:
    seconds = 0.0
    for plan in plans:
        left = [job for job in plan.jobs if job.finished() is None]
        if left:
            seconds += (
                cell_seconds(left[0], plan.rows) * sum(job.setting.epochs for job in left) / left[0].setting.epochs
            )
    return forecast_line(seconds / workers, todo, workers, price)


def _save(plan: _Plan, result: TaskResult, target: Path) -> None:
    """Move the first seed's model of the chosen setting to where the user wants it."""
    chosen = (result.settings["epochs"], result.settings["learning_rate"])
    job = next(job for job in plan.jobs if (job.setting.epochs, job.setting.rate) == chosen)
    job = keeping(job)
    with working(f"{result.task}, to keep") as work:
        fill(job, lambda share, loss: work.show(share, f"loss {loss:.3f}"))
    assert job.keep is not None
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.copytree(job.keep, staged)
    replace_folder(staged, target)
    if not _is_start(plan.measurement):
        shutil.rmtree(job.keep)


def _run_folder(model: Path) -> RunFolder | None:
    run = RunFolder(model)
    if not run.recipe.is_file():
        return None
    if not run.model.is_dir():
        raise UserError(f"The run in '{model}' has no model yet.", "Let pretraining end first.")
    return run


def _model_name(folder: Path) -> str:
    """The folder's name, or that of the folder around it where it is called model, as in every run."""
    folder = folder.resolve()
    return folder.parent.name if RunFolder(folder.parent).model == folder else folder.name


def _check_model_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"There is no model folder '{folder}'.", "Name a Hugging Face model folder or a run folder.")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"'{folder}' is no model folder: it holds no config.json.",
            "Name a Hugging Face model folder or a run folder.",
        )


def find_tasks(names: Sequence[str], task_dir: Path | None) -> list[Task]:
    """Resolve names, lists of names and .toml files, and check that their files are there.

    Raises:
        UserError: none was named, one is unknown, two share a name, or a file is missing or wrong.
    """
    spelled = spelled_out(names)
    if not spelled:
        raise UserError("No task was named.", "Name some with --tasks, such as glue5 or the path of a .toml file.")
    found: dict[str, Task] = {}
    for name in spelled:
        task = read_task_file(Path(name)) if name.endswith(".toml") else known_task(name, task_dir)
        if found.setdefault(task.name, task) != task:
            raise UserError(f"Two tasks have the name '{task.name}'.", "Give each its own name.")
    return list(found.values())


def _save_folders(tasks: list[Task], save: Path | None) -> dict[str, Path]:
    if save is None:
        return {}
    folders = {tasks[0].name: save} if len(tasks) == 1 else {task.name: save / task.name for task in tasks}
    for folder in folders.values():
        check_save_folder(folder)
        make_folder(folder.parent)
    return folders


def _line(result: TaskResult, data: TaskRows) -> str:
    rows = f"{result.train_rows:,} train and {result.judged_rows:,} {result.reported} rows"
    skipped = f", {data.skipped} rows skipped" if data.skipped else ""
    chosen = f", {result.selection}" if result.settings_tried else ""
    return (
        f"{result.task} ({result.model}): {result.metric} {result.mean:.3f} +- {result.spread:.3f} over "
        f"{len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}, constant answer {result.baseline:.3f}, "
        f"{rows}{skipped}{chosen}, {duration(result.seconds)}"
    )
