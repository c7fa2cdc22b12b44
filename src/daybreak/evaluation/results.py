"""results.json: one entry for each protocol, task and model (its name, with or without pretraining).

A new measurement replaces the older one. Files from before models had names are read: their entries have the name "".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.files import read_json, write_json
from daybreak.base.task_records import TaskResult


def read_results(path: Path) -> list[TaskResult]:
    """What ``path`` holds; an empty list when there is no such file.

    Raises:
        UserError: the file is there and is no list of results.
    """
    if not path.exists():
        return []
    try:
        results: list[TaskResult] = read_json(path, list[TaskResult])
    except UserError as error:
        raise UserError(f"This is no list of results: {error.sentence}", "Move it away or mend it.") from None
    return results


def merge_result(path: Path, result: TaskResult) -> None:
    """Put ``result`` into the file, in one step; others may do so at the same time."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        kept = [old for old in read_results(path) if old.key != result.key]
        write_json(path, [*kept, result])
    finally:
        os.close(folder)
