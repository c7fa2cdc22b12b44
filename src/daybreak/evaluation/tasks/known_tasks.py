"""The tasks that are known by name, and their files in a folder of the user's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.evaluation.tasks.glue_tasks import GLUE, GLUE_ON_HUB
from daybreak.evaluation.tasks.scibert_tasks import SCIBERT
from daybreak.evaluation.tasks.task import Hidden, Task

KNOWN = {**GLUE, **SCIBERT}
TASK_LISTS = {
    # What public averages are made of; WNLI, whose dev contradicts its train, is asked for by name.
    "glue": ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"),
    "glue5": ("cola", "sst2", "mrpc", "stsb", "rte"),
}


def spelled_out(names: Sequence[str]) -> list[str]:
    """Put the tasks of each list, such as glue5, in the place of its name."""
    return [each for name in names for each in TASK_LISTS.get(name, (name,))]


def known_task(name: str, task_dir: Path | None) -> Task:
    """Return the task ``name`` with its files under ``task_dir``, as they are distributed, or else as on the hub.

    Of its unlabelled files it has those that are there.

    Raises:
        UserError: the name is unknown, no folder was given, or it lacks one of the task's labelled files.
    """
    layouts = _layouts(name)
    wanted = [_spellings(layout.train)[-1] for layout in layouts]
    if task_dir is None:
        source = "GLUE" if name in GLUE else "SciBERT"
        raise UserError(
            f"Task '{name}' needs the files of {source}, and no folder was given.",
            f"Name the folder that holds {' or '.join(wanted)} with --task-dir.",
        )
    for layout in layouts:
        if _find(task_dir, layout.train) is not None:
            return _placed(layout, task_dir)
    shown = f"'{wanted[0]}'" if len(wanted) == 1 else "neither " + " nor ".join(f"'{path}'" for path in wanted)
    raise UserError(
        f"Task '{name}' needs its files, and '{task_dir}' holds {'no ' if len(wanted) == 1 else ''}{shown}.",
        "Name the folder that holds them with --task-dir.",
    )


def files_of(names: Sequence[str]) -> list[str]:
    """Every file that ``known_task`` looks for, below the folder, with * for what may vary; .toml names have none.

    Raises:
        UserError: a name is unknown.
    """
    files: list[str] = []
    for layout in (layout for name in names if not name.endswith(".toml") for layout in _layouts(name)):
        paths = [*layout.files.values(), *(hidden.path for hidden in layout.hidden)]
        files += [spelling for path in paths for spelling in _spellings(path)]
    return list(dict.fromkeys(files))


def _layouts(name: str) -> list[Task]:
    if name not in KNOWN:
        choices = [*KNOWN, *TASK_LISTS]
        raise UserError(
            f"There is no task '{name}'.{nearest(name, choices)}",
            f"Use {', '.join(choices)}, or the path of a .toml file that describes your own task.",
        )
    return [KNOWN[name], *([GLUE_ON_HUB[name]] if name in GLUE_ON_HUB else [])]


def _placed(task: Task, folder: Path) -> Task:
    """The task with the paths of its files, which lie below ``folder``."""
    found: dict[str, Path] = {}
    for part, path in task.files.items():
        place = _find(folder, path)
        if place is None:
            raise UserError(
                f"Task '{task.name}' needs '{folder / _spellings(path)[-1]}', which does not exist.",
                "Complete that folder, or name another one with --task-dir.",
            )
        found[part] = place
    hidden: dict[str, Hidden] = {}
    for file in task.hidden:
        place = _find(folder, file.path)
        if place is not None:
            hidden.setdefault(file.name, dataclasses.replace(file, path=place))
    return dataclasses.replace(task, **found, hidden=tuple(hidden.values()))  # type: ignore[arg-type]


def _find(folder: Path, path: Path) -> Path | None:
    """The one file of that name.

    Raises:
        UserError: it is there in several pieces, or the folder cannot be read.
    """
    for spelling in _spellings(path):
        try:
            pieces = sorted(file for file in folder.glob(spelling) if file.is_file())
        except OSError as error:
            raise UserError(f"Cannot look into '{folder}': {error.strerror or error}.", "Check the path.") from None
        if len(pieces) > 1:
            raise UserError(
                f"'{folder / spelling}' stands for {len(pieces)} files, and a task reads one.", "Join them into one."
            )
        if pieces:
            return pieces[0]
    return None


def _spellings(path: Path) -> list[str]:
    """``train.parquet`` is called train-00000-of-00001.parquet on the hub."""
    if path.suffix != ".parquet":
        return [path.as_posix()]
    return [path.as_posix(), f"{path.with_suffix('').as_posix()}-*.parquet"]
