"""results.json: one entry for each protocol, task and model (its name, with or without pretraining).

A new result replaces the older one. In files of early versions models have the name "".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.formatting import listed
from daybreak.core.terminal import say
from daybreak.schemas.tasks import TaskResult


def read_results(path: Path) -> list[TaskResult]:
    """Return the results in ``path``; an empty list if there is no file.

    A damaged file is renamed to results.json.damaged. Every fine-tuning also has its own file, so evaluating again
    restores the results in seconds.
    """
    if not path.exists():
        return []
    try:
        results: list[TaskResult] = read_json(path, list[TaskResult])
    except UserError as error:
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        say(f"{error.sentence} It is now '{aside}'; evaluate the tasks again, finished fine-tunings are reused.")
        return []
    return results


def merge_result(path: Path, result: TaskResult) -> None:
    """Put ``result`` into the file atomically, unless it is there; other processes may do so at the same time."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        found = read_results(path)
        old = next((old for old in found if old.key == result.key), result)
        rows, old_rows = ((each.labels, each.training_size, each.dev_rows) for each in (result, old))
        if rows != old_rows or not result.has_files_of(old):
            say(
                f"The earlier result of '{result.task}' was measured on other rows and is replaced. "
                "If it belongs to another task, give one of the two another name."
            )
        outdated = [old for old in found if old.key != result.key and _is_outdated(old, result)]
        if outdated:
            tasks = listed(sorted({f"{old.task} under {old.protocol}" for old in outdated}))
            say(f"The model has changed: its earlier results are no longer in '{path.name}' ({tasks}).")
        if result not in found or outdated:
            write_json(path, [*(old for old in found if old.key != result.key and old not in outdated), result])
    finally:
        os.close(folder)


def _is_outdated(old: TaskResult, new: TaskResult) -> bool:
    """Whether a result is of earlier weights in the folder of ``new``; weights are unknown in files of early versions.

    Models that share a folder have different names.
    """
    same_model = old.model == new.model == "pretrained" and old.model_name == new.model_name
    return same_model and "" not in (old.weights, new.weights) and old.weights != new.weights
