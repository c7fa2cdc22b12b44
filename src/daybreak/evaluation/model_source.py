"""What evaluate and probe are given: a model to measure, and tasks to measure it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.tasks.known_tasks import files_of, known_task, spelled_out
from daybreak.evaluation.tasks.task import Task
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.exporting.hub import DATASET, dataset_folder


@dataclass(frozen=True)
class ModelSource:
    """A model that is measured."""

    run: RunFolder | None
    """Where it came out of a run of ours."""
    folder: Path
    """Of the model itself."""
    usual: Path
    """Where results lie unless the user says otherwise: the folder as it was named."""
    name: str
    """In results: the folder's name, or that of the folder around it where it is called model, as in every run."""


def find_model(model: Path) -> ModelSource:
    """Resolve a run folder, or a Hugging Face folder.

    Raises:
        UserError: it is neither, or a run without a model yet.
    """
    run = RunFolder(model)
    resolved = model.resolve()
    name = resolved.parent.name if RunFolder(resolved.parent).model == resolved else resolved.name
    if run.recipe.is_file():
        if not run.model.is_dir():
            raise UserError(f"The run in '{model}' has no model yet.", "Let pretraining end first.")
        return ModelSource(run, run.model, model, name)
    if not model.is_dir():
        remedy = "Name a run folder or a Hugging Face model folder (hf download NAME --local-dir FOLDER makes one)."
        raise UserError(f"There is no model folder '{model}'.", remedy)
    if not (model / "config.json").is_file():
        raise UserError(
            f"'{model}' is no model folder: it holds no config.json.",
            "Name a Hugging Face model folder or a run folder.",
        )
    return ModelSource(None, model, model, name)


def find_tasks(names: Sequence[str], task_dir: str | Path | None) -> list[Task]:
    """Resolve names, lists of names and .toml files, and check that their files are there.

    Args:
        task_dir: the folder of the tasks that have names, or ``hf://owner/name`` for a data set of the hub.

    Raises:
        UserError: none was named, one is unknown, two share a name, or a file is missing or wrong.
    """
    spelled = spelled_out(names)
    if not spelled:
        raise UserError("No task was named.", "Name some with --tasks, such as glue5 or the path of a .toml file.")
    if isinstance(task_dir, str) and task_dir.startswith(DATASET):
        task_dir = dataset_folder(task_dir, files_of(spelled))
    folder = Path(task_dir) if task_dir else None
    found: dict[str, Task] = {}
    for name in spelled:
        task = read_task_file(Path(name)) if name.endswith(".toml") else known_task(name, folder)
        if found.setdefault(task.name, task) != task:
            raise UserError(f"Two tasks have the name '{task.name}'.", "Give each its own name.")
    return list(found.values())
