"""Fine-tune the model of each finished cell of a study on tasks, with ``daybreak evaluate`` in its own process.

    OUT/cells/NAME-seed-0/results.json  and cells/, as ``daybreak evaluate`` writes them into a run folder
    OUT/cells/NAME-seed-0.tasks.log     the output of the process
    OUT/cells/NAME-seed-0.tasks.json    fingerprint of the finished tasks (files, protocol and seeds), and their scores

The process starts after the budget of the cell. It keeps finished fine-tunings if it is killed, and it frees a GPU
before the next cell trains.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint, to_dict
from daybreak.evaluation.finetuning.fingerprints import task_digest
from daybreak.evaluation.finetuning.results import read_results
from daybreak.evaluation.model_source import find_tasks
from daybreak.evaluation.protocols.known_protocols import find_protocol
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.schemas.studies import StudyCell, StudyTasks, TaskScore
from daybreak.schemas.tasks import DEFAULT_PROTOCOL
from daybreak.studies.cell_runner import Cell, StudyFolder, check_ended, run_child
from daybreak.training.signals import Signals


@dataclass(frozen=True, kw_only=True)
class CellTasks:
    """The tasks of a study."""

    record: StudyTasks
    typed: tuple[str, ...]
    """Names and paths, as ``daybreak evaluate --tasks`` takes them."""
    task_dir: str
    """Empty if no task needs a folder."""
    identity: str
    """Fingerprint of the tasks' files, the protocol and the seeds."""

    def command(self, run: Path) -> list[str]:
        """Return the command that fine-tunes the model of ``run``."""
        flags = ["--tasks", ",".join(self.typed), "--protocol", self.record.protocol]
        flags += ["--task-dir", self.task_dir] if self.task_dir else []
        flags += ["--seeds", str(self.record.seeds)] if self.record.seeds else []
        return [sys.executable, "-m", "daybreak", "evaluate", str(run), *flags]


def choose_tasks(
    names: Sequence[str], task_dir: str | Path | None, protocol: str, seeds: int | None
) -> CellTasks | None:
    """Find the tasks of a study and read their files, so that errors appear before the first cell.

    Args:
        names, task_dir, protocol, seeds: see ``evaluate.evaluate``.

    Returns:
        None if ``names`` is empty.
    """
    if not names:
        if task_dir or seeds is not None or protocol != DEFAULT_PROTOCOL:
            raise UserError("No task was named.", "Name some with --tasks, such as --tasks stsb,sst2.")
        return None
    chosen = find_protocol(protocol)
    if seeds is not None and seeds < 1:
        raise UserError(f"{seeds} fine-tunings of each model are too few.", "Give --task-seeds of at least 1.")
    found = find_tasks(names, task_dir)
    chosen.check_starts(found)
    digests = []
    for task in found:
        unlabeled = bool(task.unlabeled_train and chosen.distillation_of(task))
        load_task(task, unlabeled_train=unlabeled)
        digests.append([task.name, task.metric, task_digest(task, soft_targets=unlabeled)])
    return CellTasks(
        record=StudyTasks(tasks=[task.name for task in found], protocol=protocol, seeds=seeds),
        typed=tuple(names),
        task_dir=str(task_dir or ""),
        identity=fingerprint([digests, to_dict(chosen), seeds]),
    )


def evaluate_cell(cell: Cell, study: StudyFolder, lock: TextIO, tasks: CellTasks) -> None:
    """Fine-tune the model of a finished cell on the tasks that are not finished.

    Raises:
        UserError: the command was refused, or another process stopped it.
        Interrupted: a signal arrived; finished fine-tunings are kept.
    """
    done, log = study.beside(cell, ".tasks.json"), study.beside(cell, ".tasks.log")
    run = study.folder(cell)
    if done.exists() and RunFolder(run).results.exists():
        before = read_json(done)
        # Someone may have evaluated the model of the cell with other seeds since. Version 0.1 kept no scores.
        if before["identity"] == tasks.identity and before.get("scores") in (None, to_dict(_scores(run, tasks))):
            return
    done.unlink(missing_ok=True)  # until all tasks are finished, the results are those of no identity
    started = time.monotonic()
    with Signals() as signals:
        code = run_child(tasks.command(run), log, study.threads, lock, signals, look=lambda: None)
    check_ended(code, signals, cell, log)
    seconds = round(time.monotonic() - started, 1)
    write_json(done, {"identity": tasks.identity, "seconds": seconds, "scores": to_dict(_scores(run, tasks))})


def with_scores(found: StudyCell, cell: Cell, study: StudyFolder, tasks: CellTasks) -> StudyCell:
    """Return the record of a cell with its task scores, in the order of the tasks."""
    seconds = read_json(study.beside(cell, ".tasks.json"))["seconds"]
    return replace(found, tasks=_scores(study.folder(cell), tasks), task_seconds=seconds)


def _scores(run: Path, tasks: CellTasks) -> list[TaskScore]:
    """The scores in results.json of the tasks that have one."""
    requested = tasks.record
    # A task that starts from the model of a part of another task has the name of that part in its protocol.
    results = {
        one.task: one
        for one in read_results(RunFolder(run).results)
        if one.protocol.partition(", from ")[0] == requested.protocol and one.model == "pretrained"
    }
    return [
        TaskScore(
            task=name,
            metric=results[name].metric,
            score=results[name].mean,
            spread=results[name].spread,
            seeds=len(results[name].seeds),
            baseline=results[name].baseline,
        )
        for name in requested.tasks
        if name in results
    ]
