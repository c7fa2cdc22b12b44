"""All kinds of tasks."""

from __future__ import annotations

from dataclasses import replace

from daybreak.evaluation.tasks.choices import Choice
from daybreak.evaluation.tasks.questions import Questions
from daybreak.evaluation.tasks.sequences import Classification, Regression
from daybreak.evaluation.tasks.task import Task, TaskRows
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.evaluation.tasks.token_labels import TokenLabels

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Classification(), Regression(), TokenLabels(), Choice(), Questions())
}


def kind_of(task: Task) -> Kind:
    return KINDS[task.kind]


def task_type(task: Task) -> str:
    """Return ``single`` or ``pair`` for classification, ``number`` for numeric kinds, else the name of the kind."""
    if kind_of(task).numeric:
        return "number"
    if task.kind == "classification":
        return "pair" if len(task.text) == 2 else "single"
    return task.kind


def load_task(task: Task, unlabeled_train: bool = False) -> TaskRows:
    """Read a task's files; without ``unlabeled_train``, the task of the result has no such file."""
    return kind_of(task).load(task if unlabeled_train else replace(task, unlabeled_train=None))
