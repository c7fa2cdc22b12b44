"""Find the model and the tasks that the user names for evaluate and probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.run_folder import RunFolder, warn_if_refused
from daybreak.evaluation.tasks.known_tasks import BUILT_IN, files_of, held_task, known_task, spelled_out
from daybreak.evaluation.tasks.task import Task
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.exporting.hub import DATASET, dataset_folder


@dataclass(frozen=True)
class ModelSource:
    run: RunFolder | None
    """The run folder, if Daybreak trained the model."""
    folder: Path
    """The model folder."""
    usual: Path
    """Default folder for results: the path that the user gave."""
    name: str
    """Name in results: that of the folder, or of its parent if the folder is the ``model`` folder of a run."""


def find_model(model: Path) -> ModelSource:
    """Find the model in a run folder or a Hugging Face folder."""
    run = RunFolder(model)
    resolved = model.resolve()
    name = resolved.parent.name if RunFolder(resolved.parent).model == resolved else resolved.name
    if run.recipe.is_file():
        if not run.model.is_dir() and run.summary.is_file():
            raise UserError(
                f"'{model}' is a finished run without its model, such as a record.", "Name the folder of the run."
            )
        if not run.model.is_dir():
            raise UserError(
                f"The run in '{model}' has no model yet.", "Let the run finish; the same command resumes a stopped run."
            )
        warn_if_refused(run.model)
        return ModelSource(run, run.model, model, name)
    if not model.is_dir():
        remedy = "Name a run folder or a Hugging Face model folder (hf download NAME --local-dir FOLDER makes one)."
        raise UserError(f"There is no model folder '{model}'.", remedy)
    if not (model / "config.json").is_file():
        fault = f"'{model}' is not a model folder: it has no config.json."
        raise UserError(fault, "Name a Hugging Face model folder or a run folder.")
    warn_if_refused(model)
    return ModelSource(None, model, model, name)


def find_tasks(names: Sequence[str], task_dir: str | Path | None) -> list[Task]:
    """Return the tasks with these names or .toml files, and check that their files exist.

    Args:
        task_dir: the folder of the built-in tasks, or ``hf://owner/name`` for a data set on the hub.

    Raises:
        UserError: no task was named, a name is unknown or used twice, or a file is missing or wrong.
    """
    spelled = spelled_out(names)
    if not spelled:
        raise UserError("No task was named.", "Name some with --tasks, such as glue5 or the path of a .toml file.")
    if task_dir and all(name.endswith(".toml") for name in spelled):
        raise UserError(
            f"--task-dir '{task_dir}' is not used: a task file has the paths of its own files.", "Leave it out."
        )
    folder = _local_folder(task_dir, spelled) if task_dir else None
    found: dict[str, Task] = {}
    for name in spelled:
        task = read_task_file(Path(name)) if name.endswith(".toml") else known_task(name, folder)
        if found.setdefault(task.name, task) != task:
            raise UserError(f"Two tasks have the name '{task.name}'.", "Give each its own name.")
    return list(found.values())


def _local_folder(task_dir: str | Path, names: Sequence[str]) -> Path:
    if isinstance(task_dir, str) and task_dir.startswith(DATASET):
        return dataset_folder(task_dir, files_of(names))
    return Path(task_dir)


def tasks_in(task_dir: str | Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tasks whose labeled files a folder holds, and the others.

    If the files of a whole task are absent and those of its published subset exist, the subset is returned.

    Args:
        task_dir: the folder of the built-in tasks, or ``hf://owner/name`` for a data set on the hub.
        names: built-in tasks and lists of tasks; empty for GLUE without WNLI and SciBERT's tasks.
    """
    spelled = spelled_out(names or BUILT_IN)
    folder = _local_folder(task_dir, spelled)
    held = {name: held_task(name, folder) for name in spelled}
    if not any(held.values()):
        raise UserError(
            f"'{task_dir}' contains no training and dev files of {', '.join(spelled)}.",
            "Name the folder of the task files as distributed with --task-dir, or leave it out.",
        )
    return [found for found in held.values() if found], [name for name, found in held.items() if not found]
