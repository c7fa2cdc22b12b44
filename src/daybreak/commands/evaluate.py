"""Command ``evaluate``: fine-tune a model on GLUE, SciBERT's tasks, SWAG and your own, and write results.json."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from daybreak.commands.options import CommaSeparated, TaskDirOptions, keywords, listed, parse
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, refuse_link_out
from daybreak.core.formatting import check_price, check_seeds, check_whole
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import check_choice
from daybreak.core.terminal import duration, say, working
from daybreak.evaluation.finetuning.results import merge_result, read_results
from daybreak.evaluation.glue_server.submission import (
    ARCHIVE,
    FILES,
    best_predictions,
    check_rows,
    check_submission,
    write_submission,
)
from daybreak.schemas.tasks import DEFAULT_PROTOCOL, FinetuningRun, TaskResult

if TYPE_CHECKING:
    from daybreak.evaluation.finetuning.task_evaluation import TaskEvaluation
    from daybreak.evaluation.model_source import ModelSource
    from daybreak.evaluation.protocols.protocol import Protocol
    from daybreak.evaluation.tasks.task import Task, TaskRows

LOCAL = "processes"
"""Backend of the fine-tunings on this machine."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(TaskDirOptions):
    """Each option except ``model`` and ``tasks`` is a keyword of ``evaluate``."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """Hugging Face folder or run folder."""
    tasks: CommaSeparated
    """Names such as cola, glue, glue5, bc5cdr or sci-cite, or paths of .toml files."""
    protocol: str = DEFAULT_PROTOCOL
    """Fine-tuning protocol: quick, small, distilled, cramming, electra, transfer, bert, bert-8gb or
    scibert."""
    epochs: int | None = None
    """Epochs instead of the protocol's. The name of the protocol in the results shows the change."""
    rate: float | None = None
    """Peak learning rate instead of the protocol's."""
    rows: int | None = None
    """Training rows instead of the protocol's number; 0 for all."""
    frozen: bool = False
    """Train only the head and freeze the encoder."""
    seeds: int | None = None
    """Fine-tuning seeds per task. Defaults to the protocol's."""
    out: Path | None = None
    """Folder for results.json. Defaults to the model's folder."""
    save: Path | None = None
    """Save the model of the first seed here, as a Hugging Face classifier."""
    submission: Path | None = None
    """Write a submission for gluebenchmark.com to this folder."""
    untrained: bool = False
    """Fine-tune the same architecture from random weights, to measure the value of pretraining."""
    workers: int | None = None
    """Parallel fine-tunings. Defaults to one per GPU, or per CPU core as far as memory allows. Required for a
    cluster."""
    backend: str = LOCAL
    """processes (on this machine) or ray (a cluster)."""
    price: float | None = None
    """Price of an hour of this machine; the forecast then includes the cost."""
    overwrite: bool = False
    """Repeat all fine-tunings, including finished ones."""
    baselines: bool = True
    """Also fit the bag-of-words baseline, a linear model on word and character counts, on the same training rows."""


def main(arguments: Sequence[str]) -> None:
    options = keywords(parse(EvaluateOptions, "evaluate", arguments))
    evaluate(options.pop("model"), options.pop("tasks"), **options)


@dataclass(frozen=True, kw_only=True)
class CheckSubmissionOptions:
    path: Annotated[Positional[Path], arg(metavar="PREDICTIONS")]
    """Folder or zip file of the submission."""


def main_of_check_submission(arguments: Sequence[str]) -> None:
    options = parse(CheckSubmissionOptions, "check-submission", arguments)
    check_submission(options.path)


def evaluate(
    model: Path | str,
    tasks: Sequence[Path | str] | Path | str,
    *,
    task_dir: Path | str | None = None,
    protocol: str = DEFAULT_PROTOCOL,
    epochs: int | None = None,
    rate: float | None = None,
    rows: int | None = None,
    frozen: bool = False,
    seeds: int | None = None,
    most_seeds: int | None = None,
    out: Path | str | None = None,
    save: Path | str | None = None,
    submission: Path | str | None = None,
    untrained: bool = False,
    workers: int | None = None,
    backend: str = LOCAL,
    price: float | None = None,
    within: float | None = None,
    overwrite: bool = False,
    baselines: bool = True,
) -> list[TaskResult]:
    """Fine-tune a model on tasks, with seeds 0 to ``seeds`` - 1, and write the scores to ``results.json``.

    The input is checked before the first fine-tuning. Each fine-tuning has its own file in ``cells`` beside
    ``results.json``, so the same call after an interruption runs only the missing ones. Several models can share one
    folder.

    The keywords are the options of ``daybreak evaluate``.

    Args:
        most_seeds: largest number of seeds, where the protocol has more for a task.
        within: longest time in seconds; if the forecast is longer, nothing is started.

    Returns:
        The results of this call, in the order of ``tasks``.

    Raises:
        TooLate: the forecast time is longer than ``within``.
        Interrupted: a signal was received; the same call resumes.
    """
    from daybreak.evaluation.finetuning.fingerprints import model_digest
    from daybreak.evaluation.finetuning.parallel import BACKENDS, interruptible
    from daybreak.evaluation.finetuning.task_evaluation import keep_model
    from daybreak.evaluation.model_source import find_model, find_tasks
    from daybreak.evaluation.protocols.known_protocols import find_protocol
    from daybreak.evaluation.tasks.kinds import kind_of

    with interruptible():
        save, submission = (Path(folder) if folder else None for folder in (save, submission))
        source = find_model(Path(model))
        for name, number in (("epochs", epochs), ("rows", rows), ("workers", workers)):
            check_whole(name, number)
        chosen = find_protocol(protocol).changed(epochs, rate, rows, frozen)
        check_seeds(seeds)
        check_price(price)
        check_choice("--backend", backend, BACKENDS)
        found = find_tasks([str(task) for task in listed(tasks)], task_dir)
        if submission is not None:
            _check_submission(found, submission)
        results_file = RunFolder(make_folder(Path(out or source.usual))).results
        refuse_link_out(results_file.parent, RunFolder(results_file.parent).cells)
        earlier = read_results(results_file)
        if save is not None:
            check_savable(found, chosen, source.folder)
        targets = _save_folders(found, save, results_file, untrained)
        weights = model_digest(source.folder, random=False)
        names = [one.model_name for one in earlier if one.weights == weights and one.model_name]
        if names and source.name not in names and results_file.parent == source.usual:
            source = replace(source, name=names[0])  # the folder was renamed, and the model is the same
        if results_file.parent != source.usual and any(
            one.model_name == source.name and one.weights not in ("", weights) for one in earlier
        ):
            name = f"{source.name}-{weights[:6]}"
            say(f"'{results_file.parent}' has results of another model named {source.name}: this one is {name}.")
            source = replace(source, name=name)
        for task in found:
            if task.unlabeled_train and not chosen.distillation_of(task) and not untrained:
                say(f"The unlabeled rows of {task.name} are not used by {chosen.name}. --protocol distilled uses them.")
        evaluations, parallel = _evaluations(
            found,
            source,
            chosen,
            seeds,
            workers,
            backend,
            untrained=untrained,
            most_seeds=most_seeds,
            unlabeled=submission is not None,
            cells=RunFolder(results_file.parent).cells,
            weights=weights,
            baselines=baselines,
            shortens=epochs is None,
        )
        results, predicted = {}, []
        for each, runs in _run_evaluations(evaluations, parallel, backend, price, within, overwrite, targets):
            result = each.result(runs)
            merge_result(results_file, result)
            if target := targets.get(result.task):
                keep_model(each, result, target)
            say(_line(result, each.data, new=each.remaining > 0))
            if target:
                head = kind_of(each.data.task).head
                code = ", trust_remote_code=True" if any(target.glob("*.py")) else ""
                say(f"Classifier: {target}  (transformers.AutoModel{head}.from_pretrained(...{code}) loads it)")
            results[result.task] = result
            predicted.append((each.data.task, runs))
        _conclude(source, results_file, list(results.values()))
        if submission is not None:
            _submit(submission, predicted)
        return [results[task.name] for task in found]


def forecast_evaluation(
    model: Path, tasks: Sequence[str], *, task_dir: str | Path | None, protocol: str, seeds: int | None
) -> tuple[int, float]:
    """Time a few steps of each fine-tuning; return their number, and the forecast of their seconds in parallel.

    Tasks that a protocol starts from another task's model are timed from ``model``.

    Raises:
        UserError: the task that another one starts from is missing.
    """
    from daybreak.evaluation.finetuning.forecast import waiting_seconds
    from daybreak.evaluation.finetuning.parallel import thread_count
    from daybreak.evaluation.model_source import find_model, find_tasks
    from daybreak.evaluation.protocols.known_protocols import find_protocol

    source, chosen, found = find_model(model), find_protocol(protocol), find_tasks(tasks, task_dir)
    chosen.check_starts(found)
    with tempfile.TemporaryDirectory() as empty:
        evaluations, workers = _evaluations(
            found, source, chosen, seeds, None, LOCAL,
            untrained=True, unlabeled=False, cells=Path(empty), weights="",
        )  # fmt: skip
        threads = thread_count(workers, LOCAL)
        planned = [replace(each, threads=threads).planned() for each in evaluations]
    count = sum(each.remaining for each in planned)
    return count, waiting_seconds(sum(each.seconds for each in planned), count, workers)


def _evaluations(
    tasks: Sequence[Task],
    source: ModelSource,
    protocol: Protocol,
    seeds: int | None,
    workers: int | None,
    backend: str,
    most_seeds: int | None = None,
    **settings: Any,
) -> tuple[list[TaskEvaluation], int]:
    """Return the fine-tunings of a model on each task, with more ``settings``, and the number of parallel workers."""
    from daybreak.evaluation.finetuning.classifier import parameter_count
    from daybreak.evaluation.finetuning.parallel import worker_count
    from daybreak.evaluation.finetuning.task_evaluation import TaskEvaluation, total_work
    from daybreak.evaluation.tasks.kinds import load_task

    def number(task: Task) -> int:
        usual = seeds or protocol.seeds_of(task.whole)
        return usual if most_seeds is None else min(usual, most_seeds)

    found = [
        TaskEvaluation(
            folder=source.folder,
            model_name=source.name,
            data=load_task(task, unlabeled_train=bool(protocol.distillation_of(task))),
            protocol=protocol,
            seeds=number(task),
            **settings,
        )
        for task in tasks
    ]
    return found, worker_count(*total_work(found), parameter_count(source.folder), workers, backend)


def _run_evaluations(
    evaluations: Sequence[TaskEvaluation],
    workers: int,
    backend: str,
    price: float | None,
    within: float | None,
    overwrite: bool,
    targets: Mapping[str, Path],
) -> Iterator[tuple[TaskEvaluation, list[FinetuningRun]]]:
    """Print a forecast and run the fine-tunings; tasks that others start from come first."""
    from daybreak.evaluation.finetuning.parallel import thread_count
    from daybreak.evaluation.finetuning.task_evaluation import forecast, planned_from, run_all, stages

    def planned(stage: Sequence[TaskEvaluation]) -> list[TaskEvaluation]:
        return [each.planned(overwrite=overwrite, target=targets.get(each.data.task.name)) for each in stage]

    threads = thread_count(workers, backend)
    with working("Timing the fine-tunings"):
        first, *later = stages([replace(each, threads=threads) for each in evaluations])
        plans = planned(first)
        start = evaluations[0].folder
        expected = [planned_from(each, start, overwrite=overwrite) for stage in later for each in stage]
    if message := forecast([*plans, *expected], workers, price, within):
        say(message)
    yield from run_all(plans, workers, backend)
    for stage in later:
        yield from run_all(planned(stage), workers, backend)


def _conclude(source: ModelSource, results_file: Path, new: Sequence[TaskResult]) -> None:
    """Print the averages that include new results, and update the model card of a run."""
    from daybreak.evaluation.protocols.conventions import averages
    from daybreak.exporting.card import write_card

    results = read_results(results_file)
    changed = {(result.protocol, result.model_name, result.model) for result in new}
    for average in averages(results):
        if (average.protocol, average.model_name, average.model) in changed:
            say(f"Average as in {average.convention} ({average.model}): {100 * average.value:.1f}, {average.what}.")
    if source.run and results_file == source.run.results and source.run.summary.exists():
        write_card(source.run, results, averages(results))


def _check_submission(tasks: Sequence[Task], folder: Path) -> None:
    """Raise UserError unless a submission can contain one prediction for each row of each test file."""
    from daybreak.evaluation.tasks.kinds import kind_of

    if not any(task.unlabeled for task in tasks):
        raise UserError("None of these tasks has a GLUE test file.", "Leave --submission out, or add a GLUE task.")
    targets = {(folder / f"{name}.tsv").resolve() for name in FILES}
    whole: dict[str, str] = {}
    for task in tasks:
        if task.unlabeled and whole.setdefault(task.whole, task.name) != task.name:
            raise UserError(
                f"Both {whole[task.whole]} and {task.name} predict the test file of {task.whole}.", "Give only one."
            )
        for path in (*task.paths, *(file.path for file in task.unlabeled)):
            if path.resolve() in targets:
                raise UserError(
                    f"The submission would replace '{path}', a file of {task.name}.",
                    "Choose another folder with --submission.",
                )
        for file in task.unlabeled:
            check_rows(file.name, len(kind_of(task).load_unlabeled(task, file.name)))
    make_folder(folder)


def _submit(folder: Path, predicted: Sequence[tuple[Task, Sequence[FinetuningRun]]]) -> None:
    predictions, labels, messages = best_predictions(predicted)
    for line in messages + write_submission(folder, predictions, labels):
        say(line)
    say(f"Submission: {folder / ARCHIVE}")


def check_savable(tasks: Sequence[Task], protocol: Protocol, folder: Path) -> None:
    """Raise UserError if the classifier would need two kinds of code: the encoder's own, and that of its head."""
    from daybreak.evaluation.finetuning.classifier import load_config
    from daybreak.models.crammed import MODEL_TYPE

    own = [task.name for task in tasks if protocol.head_of(task) != "stock"]
    if own and load_config(folder).model_type == MODEL_TYPE:
        raise UserError(
            f"A model of the crammed family cannot be saved with the head that {protocol.name} gives {own[0]}.",
            "Leave --save out, or choose --protocol quick.",
        )


def _save_folders(tasks: list[Task], save: Path | None, results_file: Path, untrained: bool) -> dict[str, Path]:
    """Return the folder for the saved model of each task, none of which contains files that would be lost."""
    from daybreak.evaluation.finetuning.classifier import check_save_folder

    if save is None:
        return {}
    folders = {tasks[0].name: save} if len(tasks) == 1 else {task.name: save / task.name for task in tasks}
    for task, folder in folders.items():
        check_save_folder(folder, task, untrained)
        if RunFolder(folder).cells.exists() or results_file.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"'{folder}' contains results.", "Choose another folder with --save.")
        make_folder(folder.parent)
    return folders


def _line(result: TaskResult, data: TaskRows, *, new: bool) -> str:
    others = [(part, result.scores.get(f"{part}_{result.metric}")) for part in ("mismatched", "test")]
    seeds = len(result.seeds)
    spread = f" +- {result.spread:.3f}" if seeds > 1 else ""
    parts = [
        f"{result.task} ({result.model}): {result.metric} {result.mean:.3f}{spread}",
        f"median {result.median:.3f} of {seeds} seeds" if seeds > 1 else "1 seed",
        *(f"{part} {statistics.fmean(scores):.3f}" for part, scores in others if scores),
        f"constant answer {result.baseline:.3f}",
        f"bag of words {result.bag_of_words[result.metric]:.3f}" if result.bag_of_words else "no bag-of-words baseline",
        result.bag_of_words_part,
        f"both averaged {statistics.fmean(result.combined):.3f}" if result.combined else "",
        f"{result.training_size} train and {result.reported_rows:,} {result.reported} rows",
        f"{data.skipped} rows skipped" if data.skipped else "",
        *(
            f"{leaked:,} of {len(data.parts[part]):,} {part} rows are also training rows"
            for part, leaked in data.leaked_rows.items()
        ),
        result.selection if result.settings_tried else "",
        duration(result.seconds) if new else f"all fine-tunings were finished ({duration(result.seconds)})",
    ]
    return ", ".join(filter(None, parts))
