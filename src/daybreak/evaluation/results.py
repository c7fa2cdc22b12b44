"""results.json: one entry for each protocol, task and model; a new measurement replaces the older one."""

from __future__ import annotations

from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.files import read_json, write_json
from daybreak.base.records import TaskResult


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
        raise UserError(f"'{path}' is no list of results: {error.sentence}", "Move it away or mend it.") from None
    return results


def merge_result(path: Path, result: TaskResult) -> list[TaskResult]:
    """Put ``result`` into the file, in one step, and return what it holds now."""
    key = (result.protocol, result.task, result.model)
    kept = [old for old in read_results(path) if (old.protocol, old.task, old.model) != key]
    write_json(path, [*kept, result])
    return [*kept, result]
