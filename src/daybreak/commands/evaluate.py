"""Verb: a model -> results.json. GLUE, SciBERT's tasks, and tasks of one's own."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import duration, say
from daybreak.evaluation.finetuning.classifier import check_save_folder, parameter_count
from daybreak.evaluation.finetuning.fingerprints import model_digest
from daybreak.evaluation.finetuning.parallel import BACKENDS, interruptible, thread_count, worker_count
from daybreak.evaluation.finetuning.results import merge_result, read_results
from daybreak.evaluation.finetuning.task_evaluation import (
    TaskEvaluation,
    forecast,
    keep_model,
    planned_from,
    run_all,
    stages,
    total_work,
)
from daybreak.evaluation.glue_server.submission import ARCHIVE, best_predictions, check_rows, write_submission
from daybreak.evaluation.model_source import ModelSource, find_model, find_tasks
from daybreak.evaluation.protocols.conventions import averages
from daybreak.evaluation.protocols.known_protocols import find_protocol
from daybreak.evaluation.protocols.protocol import Protocol
from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.evaluation.tasks.task import Task, TaskRows
from daybreak.exporting.card import write_card
from daybreak.schemas.tasks import FinetuningRun, TaskResult


@interruptible()
def evaluate(
    model: Path,
    tasks: Sequence[str],
    *,
    task_dir: str | Path | None = None,
    protocol: str = "quick",
    epochs: int | None = None,
    rate: float | None = None,
    rows: int | None = None,
    frozen: bool = False,
    seeds: int | None = None,
    out: Path | None = None,
    save: Path | None = None,
    submission: Path | None = None,
    untrained: bool = False,
    workers: int | None = None,
    backend: str = "processes",
    price: float | None = None,
    within: float | None = None,
    overwrite: bool = False,
    baselines: bool = True,
) -> list[TaskResult]:
    """Fine-tune a model on tasks, with seeds 0 to ``seeds`` - 1, and write the scores to ``results.json``.

    Everything that can be wrong with the input is checked before the first fine-tuning. Each fine-tuning has a file of
    its own in ``cells`` beside ``results.json``: called again after a kill, only the missing ones are done. Several
    models can share one folder.

    Args:
        model: a Hugging Face folder of an encoder, or a run folder.
        tasks: names of GLUE's and SciBERT's tasks or of lists of them, paths of .toml files.
        task_dir: the folder under which the files of tasks by name lie as they are distributed, or hf://nyu-mll/glue.
        protocol: a name of ``protocols.PROTOCOLS``.
        epochs, rate, rows, frozen: one epoch count, one peak learning rate, another number of training rows (0 for
            all), or an encoder that does not learn, in place of the protocol's; the result is then not under the
            protocol's name, but under one that says so.
        seeds: fine-tunings of each task and setting; as many as the protocol has when None.
        out: the folder of ``results.json``; by default the run folder, or the model's own.
        save: keep the model of the first seed here, as a stock classifier; with several tasks, each in a folder of
            its name below.
        submission: answer GLUE's test files too, by the seed that is best on dev, and write what the server takes here.
        untrained: fine-tune the same shape with random weights instead: what is learned without pretraining.
        workers: fine-tunings at a time; one a GPU or a CPU core when None.
        backend: ``processes`` of this machine, or a ``ray`` cluster.
        price: of an hour of this machine; the forecast then says what the evaluation will cost.
        within: seconds that it may take; where the forecast says more, nothing is begun.
        overwrite: do every fine-tuning again.
        baselines: fit the bag-of-words baseline on the same training rows too.

    Returns:
        The results of this call, in the order of ``tasks``.

    Raises:
        UserError: for anything in the input that the user can mend.
        Interrupted: a signal came; the same call goes on from what is done.
    """
    subject = find_model(model)
    chosen = find_protocol(protocol).changed(epochs, rate, rows, frozen)
    if seeds is not None and seeds < 1:
        raise UserError(f"{seeds} seeds are too few.", "Use at least 1; 3 make a claim.")
    if backend not in BACKENDS:
        raise UserError(f"There is no backend '{backend}'.", f"Use one of: {', '.join(BACKENDS)}.")
    found = find_tasks(tasks, task_dir)
    if submission is not None:
        _check_answered(found, submission)
    results_file = RunFolder(make_folder(out or subject.usual)).results
    read_results(results_file)
    if save is not None:
        _check_stock(found, chosen)
    targets = _save_folders(found, save, results_file)
    weights = model_digest(subject.folder, random=False)
    evaluations = [
        TaskEvaluation(
            folder=subject.folder,
            model_name=subject.name,
            data=load_task(task),
            protocol=chosen,
            seeds=seeds or chosen.seeds_of(task.whole),
            untrained=untrained,
            unlabelled=submission is not None,
            cells=RunFolder(results_file.parent).cells,
            weights=weights,
            baselines=baselines,
        )
        for task in found
    ]
    at_once = worker_count(*total_work(evaluations), parameter_count(subject.folder), workers, backend)
    results, predicted = {}, []
    for each, runs in _run_evaluations(evaluations, at_once, backend, price, within, overwrite, targets):
        result = each.result(runs)
        merge_result(results_file, result)
        if target := targets.get(result.task):
            keep_model(each, result, target)
        say(_line(result, each.data, new=each.remaining > 0))
        if target:
            head = kind_of(each.data.task).head
            say(f"Classifier: {target}  (transformers.AutoModel{head}.from_pretrained(...) loads it)")
        results[result.task] = result
        predicted.append((each.data.task, runs))
    _conclude(subject, results_file, list(results.values()))
    if submission is not None:
        _submit(submission, predicted)
    return [results[task.name] for task in found]


def _run_evaluations(
    evaluations: Sequence[TaskEvaluation],
    workers: int,
    backend: str,
    price: float | None,
    within: float | None,
    overwrite: bool,
    saved: Collection[str],
) -> Iterator[tuple[TaskEvaluation, list[FinetuningRun]]]:
    """Say how long the evaluations take, then yield each with its runs; tasks that others start from come first."""

    def planned(stage: Sequence[TaskEvaluation]) -> list[TaskEvaluation]:
        return [each.planned(overwrite=overwrite, keep=each.data.task.name in saved or each.is_start) for each in stage]

    threads = thread_count(workers, backend)
    first, *later = stages([replace(each, threads=threads) for each in evaluations])
    plans = planned(first)
    expected = [planned_from(each, evaluations[0].folder) for stage in later for each in stage]
    if message := forecast([*plans, *expected], workers, price, within):
        say(message)
    yield from run_all(plans, workers, backend)
    for stage in later:
        yield from run_all(planned(stage), workers, backend)


def _conclude(subject: ModelSource, results_file: Path, new: Sequence[TaskResult]) -> None:
    """Say the averages that the new results complete, and bring the model's card up to date."""
    here = read_results(results_file)
    touched = {(result.protocol, result.model_name, result.model) for result in new}
    for average in averages(here):
        if (average.protocol, average.model_name, average.model) in touched:
            say(f"Average as {average.convention} counts ({average.model}): {100 * average.value:.1f}, {average.what}.")
    if subject.run and results_file == subject.run.results and subject.run.summary.exists():
        write_card(subject.run, here, averages(here))


def _check_answered(tasks: Sequence[Task], folder: Path) -> None:
    """A submission has one answer for each row of each test file.

    Raises:
        UserError: none of the tasks has one, two would answer the same, one is not as GLUE has it, or ``folder`` cannot
            be written.
    """
    if not any(task.unlabelled for task in tasks):
        raise UserError("None of these tasks has a test file of GLUE.", "Leave --submission out, or add such a task.")
    whole: dict[str, str] = {}
    for task in tasks:
        if task.unlabelled and whole.setdefault(task.whole, task.name) != task.name:
            raise UserError(
                f"Both {whole[task.whole]} and {task.name} would answer the test file of {task.whole}.", "Name one."
            )
        for file in task.unlabelled:
            check_rows(file.name, len(kind_of(task).load_unlabelled(task, file.name)))
    make_folder(folder)


def _submit(folder: Path, predicted: Sequence[tuple[Task, Sequence[FinetuningRun]]]) -> None:
    predictions, labels, choices = best_predictions(predicted)
    for line in choices + write_submission(folder, predictions, labels):
        say(line)
    say(f"Submission: {folder / ARCHIVE}")


def _check_stock(tasks: Sequence[Task], protocol: Protocol) -> None:
    """Only a stock head can be saved as a class that transformers loads.

    Raises:
        UserError: the protocol gives one of the tasks a head of Daybreak's own.
    """
    for task in tasks:
        if protocol.head_of(task) != "stock":
            raise UserError(
                f"Under the protocol {protocol.name}, {task.name} has a head that transformers has no class for.",
                "Leave --save out, or choose --protocol quick.",
            )


def _save_folders(tasks: list[Task], save: Path | None, results_file: Path) -> dict[str, Path]:
    """Where the model of each task goes.

    Raises:
        UserError: what is there would be lost.
    """
    if save is None:
        return {}
    folders = {tasks[0].name: save} if len(tasks) == 1 else {task.name: save / task.name for task in tasks}
    for folder in folders.values():
        check_save_folder(folder)
        if RunFolder(folder).cells.exists() or results_file.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"'{folder}' holds results.", "Choose another folder with --save.")
        make_folder(folder.parent)
    return folders


def _line(result: TaskResult, data: TaskRows, *, new: bool) -> str:
    other = result.scores.get(f"mismatched_{result.metric}")
    seeds = len(result.seeds)
    spread = f" +- {result.spread:.3f}" if seeds > 1 else ""
    told = [
        f"{result.task} ({result.model}): {result.metric} {result.mean:.3f}{spread}",
        f"median {result.median:.3f} of {seeds} seeds" if seeds > 1 else "1 seed",
        f"mismatched {statistics.fmean(other):.3f}" if other else "",
        f"constant answer {result.baseline:.3f}",
        f"bag of words {result.bag_of_words[result.metric]:.3f}" if result.bag_of_words else "no bag of words",
        result.bag_of_words_part,
        f"{result.train_rows:,} train and {result.reported_rows:,} {result.reported} rows",
        f"{data.skipped} rows skipped" if data.skipped else "",
        result.selection if result.settings_tried else "",
        duration(result.seconds) if new else f"nothing new to fine-tune ({duration(result.seconds)} earlier)",
    ]
    return ", ".join(filter(None, told))
