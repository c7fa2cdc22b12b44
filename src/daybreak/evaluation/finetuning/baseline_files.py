"""Files beside the runs of a task that keep what the bag of words predicts, for all models that use the same rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import sklearn

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json
from daybreak.evaluation.baselines.bag_of_words import VERSION
from daybreak.evaluation.finetuning.fingerprints import task_digest
from daybreak.evaluation.tasks.task import Task

_Value = TypeVar("_Value")


def read_or_make(
    file: Path,
    task: Task,
    rows: int,
    read: Callable[[Mapping[str, Any]], _Value],
    make: Callable[[], dict[str, Any]],
    *,
    soft_targets: bool = False,
) -> _Value:
    """Return ``read`` of the file's content; without a file for these rows and this version, make and write it first.

    Args:
        rows: number of labeled training rows of the task's fine-tunings.
        soft_targets: whether the file holds predictions for soft targets.
    """
    identity = {
        "software": [VERSION, sklearn.__version__],
        "rows": task_digest(task, soft_targets=soft_targets),
        "train_rows": rows,
        "metric": task.metric,
    }
    if file.is_file():
        with contextlib.suppress(UserError, TypeError, AttributeError, KeyError, ValueError):  # edited by hand
            kept = read_json(file)
            if {name: kept.get(name) for name in identity} == identity:
                return read(kept)
    made = make()
    make_folder(file.parent)
    write_json(file, {**identity, **made})
    return read(made)
