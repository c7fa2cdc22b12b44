"""Verb: a model -> results.json. GLUE, SciBERT's tasks, and tasks of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.files import make_folder
from daybreak.base.run_folder import RunFolder
from daybreak.base.task_records import TaskResult
from daybreak.base.terminal import duration, say, working
from daybreak.evaluation.classifier import check_save_folder
from daybreak.evaluation.known_tasks import known_task, spelled_out
from daybreak.evaluation.measure import measure
from daybreak.evaluation.protocols import find_protocol
from daybreak.evaluation.results import merge_result, read_results
from daybreak.evaluation.task_file import read_task_file
from daybreak.evaluation.tasks import Task, TaskRows, load_task
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
    seeds: int = 3,
    out: Path | None = None,
    save: Path | None = None,
    untrained: bool = False,
) -> list[TaskResult]:
    """Fine-tune a model on tasks, with seeds 0 to ``seeds`` - 1, and write the scores to ``results.json``.

    Everything that can be wrong with the input is checked before the first fine-tuning. The file is written after
    each task, so that a kill loses at most one; several models can share one.

    Args:
        model: a Hugging Face folder of an encoder, or a run folder.
        tasks: names of GLUE's and SciBERT's tasks, ``glue5`` for five of GLUE's, paths of .toml files.
        task_dir: the folder under which the files of tasks by name lie as they are distributed: the one that holds
            GLUE's CoLA, SST-2, MRPC, QQP, STS-B and RTE, or the one that holds SciBERT's text_classification.
        protocol: quick, or scibert (16 settings for each seed, chosen on dev, reported on test).
        epochs, rate, rows: one epoch count, one peak learning rate or another number of training rows in place of the
            protocol's; the result is then not under the protocol's name, but under one that says so.
        out: the folder of ``results.json``; by default the run folder, or the model's own.
        save: keep the model of the first seed here, as a stock classifier; with several tasks, each in a folder of
            its name below.
        untrained: fine-tune the same shape with random weights instead: what is learned without pretraining.

    Returns:
        The results of this call, in the order of ``tasks``.

    Raises:
        UserError: for anything in the input that the user can mend.
    """
    run = _run_folder(model)
    folder = run.model if run else model
    _check_model_folder(folder)
    chosen = find_protocol(protocol).changed(epochs, rate, rows)
    if seeds < 1:
        raise UserError(f"{seeds} seeds are too few.", "Use at least 1; 3 make a claim.")
    found = find_tasks(tasks, task_dir)
    results_file = make_folder(out or (run.path if run else model)) / "results.json"
    read_results(results_file)
    targets = _save_folders(found, save)
    loaded = [load_task(task) for task in found]
    tune = partial(measure, folder, protocol=chosen, seeds=seeds, model_name=_model_name(model), untrained=untrained)
    results = []
    for data in loaded:
        with working(data.task.name) as work:
            result = tune(data=data, work=work, save=targets.get(data.task.name))
        merge_result(results_file, result)
        results.append(result)
        say(_line(result, data))
    if run and results_file == run.results and run.summary.exists():
        write_card(run, read_results(run.results))
    return results


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
