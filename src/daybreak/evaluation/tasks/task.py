"""What a task is, and the rows of any task with labels turned into targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.evaluation.scoring.metrics import TWO_LABELS
from daybreak.evaluation.tasks.tables import TableRows, location, read_table, shown

SPLIT_SEED = 0
DEV_SHARE = 0.1
"""Without a dev file, this share of the training rows is held out, drawn with SPLIT_SEED."""


@dataclass(frozen=True)
class UnlabelledFile:
    """An unlabelled file."""

    name: str
    """Of the submission's file that answers it, without its ending."""
    path: Path
    text: tuple[str | int, ...]
    format: str = "tsv"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Where the rows of a task lie and what its labels mean."""

    name: str
    train: Path
    dev: Path | None
    test: Path | None = None
    """A labelled file that is scored with the models that dev is scored with; it decides nothing."""
    mismatched: Path | None = None
    """A second labelled dev file, of other genres; likewise."""
    unlabelled: tuple[UnlabelledFile, ...] = ()
    """Unlabelled files to answer for a submission."""
    family: str = ""
    """The task whose settings a protocol uses; the name itself when empty. A part of a task names the whole here."""
    text: tuple[str | int, ...]
    """The columns of the text, by name or 0-based number: one, or two for pairs."""
    choices: tuple[str | int, ...] = ()
    """The columns of the possible endings of a multiple choice."""
    label: str | int
    kind: str = "classification"
    """A name of ``kinds.KINDS``."""
    metric: str
    """The headline metric, one that the kind has."""
    header: bool = True
    format: str = "tsv"
    labels: tuple[tuple[str, str], ...] = ()
    """(value in the file, name), in id order. Empty: the values found in train, sorted, are the names."""
    symmetric: bool = False
    """The two texts of a pair may change places without changing the label."""

    @property
    def whole(self) -> str:
        """The name of the task that this is, or is a part of; protocols look it up."""
        return self.family or self.name

    @property
    def files(self) -> dict[str, Path]:
        """The labelled files that there are, by part."""
        found = {"train": self.train, "dev": self.dev, "test": self.test, "mismatched": self.mismatched}
        return {part: path for part, path in found.items() if path is not None}


def task_type(task: Task) -> str:
    """``single`` or ``pair`` for a label, ``number`` for a number; for other kinds the kind's own name."""
    if task.kind == "regression":
        return "number"
    if task.kind == "classification":
        return "pair" if len(task.text) == 2 else "single"
    return task.kind


@dataclass(frozen=True)
class LabelledRows:
    """Rows ready to encode: the texts of each (or its words, for tokens), and what is asked about them."""

    texts: list[tuple[str, ...]]
    targets: list[Any]

    def __len__(self) -> int:
        return len(self.texts)

    def swapped(self) -> LabelledRows:
        """Each pair the other way round."""
        return LabelledRows([texts[::-1] for texts in self.texts], self.targets)

    def take(self, indices: Sequence[int]) -> LabelledRows:
        return LabelledRows([self.texts[i] for i in indices], [self.targets[i] for i in indices])


@dataclass(frozen=True)
class TaskRows:
    """A task with its rows in memory."""

    task: Task
    labels: tuple[str, ...]
    """Names in id order; empty for regression."""
    train: LabelledRows
    dev: LabelledRows
    test: LabelledRows | None
    mismatched: LabelledRows | None
    skipped: int
    """Rows of all files that lacked a text or a label."""

    @property
    def parts(self) -> dict[str, LabelledRows]:
        """What is scored, dev first; the names of the others are prefixes of their metrics."""
        others = {"test": self.test, "mismatched": self.mismatched}
        return {"dev": self.dev, **{name: rows for name, rows in others.items() if rows is not None}}


def load_table(task: Task) -> TaskRows:
    """Read the files of a task whose labels stand in a column, and turn labels into targets.

    Raises:
        UserError: a file cannot be used, a label is unknown or no number, or there is nothing to tell apart.
    """
    read = {path: _read(task, path) for path in task.files.values()}
    known, names = ({}, ()) if task.kind == "regression" else _known_labels(task, read[task.train])
    rows = {path: _rows(task, path, cells, known) for path, cells in read.items()}
    return assembled(task, names, rows, sum(cells.skipped for cells in read.values()))


def assembled(task: Task, labels: tuple[str, ...], rows: Mapping[Path, LabelledRows], skipped: int) -> TaskRows:
    """A task with the rows of its files; if it has no dev file, some training rows are held out.

    Raises:
        UserError: there are too few to hold some out.
    """
    train, dev = (rows[task.train], rows[task.dev]) if task.dev else _split(rows[task.train], task)
    return TaskRows(
        task,
        labels,
        train,
        dev,
        test=rows[task.test] if task.test else None,
        mismatched=rows[task.mismatched] if task.mismatched else None,
        skipped=skipped,
    )


def _read(task: Task, path: Path) -> TableRows:
    return read_table(path, (*task.text, task.label), format=task.format, header=task.header)


def _known_labels(task: Task, train: TableRows) -> tuple[dict[str, int], tuple[str, ...]]:
    """Values in the files -> class ids, and the names of the ids."""
    values = [value for value, _ in task.labels] or _sorted_labels({row[-1].strip() for row in train.rows})
    names = tuple(name for _, name in task.labels) or tuple(values)
    if len(names) < 2:
        raise UserError(
            f"Every row of '{task.train}' has the label {shown(names[0])}.",
            "Give training rows of at least two labels.",
        )
    if task.metric in TWO_LABELS and len(names) > 2:
        raise UserError(
            f"The metric {task.metric} is for two labels, and '{task.train}' has {len(names)}.",
            "Use macro_f1, micro_f1, mcc or accuracy.",
        )
    return {value: index for index, value in enumerate(values)}, names


def _split(rows: LabelledRows, task: Task) -> tuple[LabelledRows, LabelledRows]:
    """Hold out DEV_SHARE of ``rows`` (at least one), drawn with SPLIT_SEED and kept in file order."""
    if len(rows) < 2:
        raise UserError(f"'{task.train}' holds one row, too few to hold some out.", "Give more rows or a dev file.")
    held = max(1, round(DEV_SHARE * len(rows)))
    order = np.random.default_rng(SPLIT_SEED).permutation(len(rows))
    return rows.take(sorted(order[held:].tolist())), rows.take(sorted(order[:held].tolist()))


def _sorted_labels(values: set[str]) -> list[str]:
    """Numbers by value, everything else by spelling."""
    try:
        return sorted(values, key=lambda value: (float(value), value))
    except ValueError:
        return sorted(values)


def _rows(task: Task, path: Path, cells: TableRows, known: dict[str, int]) -> LabelledRows:
    texts = [row[:-1] for row in cells.rows]
    labels = [row[-1].strip() for row in cells.rows]
    if task.kind == "regression":
        return LabelledRows(texts, [_number(path, line, label) for line, label in zip(cells.lines, labels)])
    for line, label in zip(cells.lines, labels):
        if label not in known:
            names = ", ".join(shown(value) for value in list(known)[:8]) + (", ..." if len(known) > 8 else "")
            raise UserError(
                f"{location(path, line)} has the label {shown(label)}, which is none of {names}.{nearest(label, known)}",
                "Correct the label, or add training rows that have it.",
            )
    return LabelledRows(texts, [known[label] for label in labels])


def _number(path: Path, line: int, label: str) -> float:
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(
            f"{location(path, line)} has the label {shown(label)}, which is no number.",
            'Correct it, or set kind = "classification".',
        )
    return value
