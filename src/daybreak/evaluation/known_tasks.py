"""The tasks that are known by name, and their files in a folder of the user's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.plain import nearest
from daybreak.evaluation.glue_tasks import GLUE
from daybreak.evaluation.scibert_tasks import SCIBERT
from daybreak.evaluation.tasks import Task

KNOWN = {**GLUE, **SCIBERT}
TASK_LISTS = {"glue5": ("cola", "sst2", "mrpc", "stsb", "rte")}


def spelled_out(names: Sequence[str]) -> list[str]:
    """Put the tasks of each list, such as glue5, in the place of its name."""
    return [each for name in names for each in TASK_LISTS.get(name, (name,))]


def known_task(name: str, task_dir: Path | None) -> Task:
    """Return the task ``name`` with its files under ``task_dir``.

    Raises:
        UserError: the name is unknown, no folder was given, or it lacks one of the task's files.
    """
    if name not in KNOWN:
        choices = [*KNOWN, *TASK_LISTS]
        raise UserError(
            f"There is no task '{name}'.{nearest(name, choices)}",
            f"Use {', '.join(choices)}, or the path of a .toml file that describes your own task.",
        )
    task = KNOWN[name]
    source = "GLUE" if name in GLUE else "SciBERT"
    if task_dir is None:
        raise UserError(
            f"Task '{name}' needs the files of {source}, and no folder was given.",
            f"Name the folder that holds {task.train} with --task-dir.",
        )
    found: dict[str, Path] = {}
    for part in ("train", "dev", "test"):
        path = getattr(task, part)
        if path is None:
            continue
        found[part] = task_dir / path
        if not found[part].is_file():
            raise UserError(
                f"Task '{name}' needs '{found[part]}', which does not exist.",
                f"Name the folder that holds {path} with --task-dir.",
            )
    return dataclasses.replace(task, **found)  # type: ignore[arg-type]
