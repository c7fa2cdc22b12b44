"""Tasks, and their rows with labels as targets."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.evaluation.scoring.metrics import TWO_LABELS
from daybreak.evaluation.tasks.tables import (
    FORMATS,
    UNLABELED,
    TableRows,
    check_skipped,
    location,
    numbered,
    read_table,
    shown,
)

SPLIT_SEED = 0
DEV_FRACTION = 0.1
"""Fraction of the training texts that is held out, drawn with SPLIT_SEED, if there is no dev file."""

MISSING = frozenset(("na", "n/a", "nan", "null"))
"""Labels, in lower case, that stand for a missing number among numbers."""
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass(frozen=True)
class UnlabeledFile:
    name: str
    """Name of the submission file with its predictions, without ``.tsv``."""
    path: Path
    text: tuple[str | int, ...]
    format: str = "tsv"


@dataclass(frozen=True, kw_only=True)
class Task:
    """The files of a task, their columns and the meaning of the labels."""

    name: str
    train: Path
    dev: Path | None
    test: Path | None = None
    """A labeled file that is scored with the same models as dev; it selects nothing."""
    mismatched: Path | None = None
    """A second labeled dev file, of other genres; it selects nothing either."""
    unlabeled: tuple[UnlabeledFile, ...] = ()
    """Unlabeled files to predict for a submission."""
    unlabeled_train: Path | None = None
    """A file of rows without labels, which protocols with soft targets also train on."""
    family: str = ""
    """The task whose protocol settings apply, if not the task itself: a subset of a task names the whole task."""
    text: tuple[str | int, ...]
    """The text columns by name or 0-based number: one, or two for pairs."""
    choices: tuple[str | int, ...] = ()
    """The columns of the choices of a multiple-choice task."""
    label: str | int
    kind: str = "classification"
    """A name of ``kinds.KINDS``."""
    metric: str
    """The headline metric, one of the kind's metrics."""
    header: bool = True
    format: str = "tsv"
    by_ending: bool = False
    """Whether a file whose ending is a format has that format, and only other files have ``format``."""
    labels: tuple[tuple[str, str], ...] = ()
    """(value in the file, name) in the order of the class ids. Empty: the sorted values in the training file."""

    @property
    def whole(self) -> str:
        """The name of the task, or of the whole task for a subset."""
        return self.family or self.name

    @property
    def files(self) -> dict[str, Path]:
        """The labeled files by part."""
        found = {"train": self.train, "dev": self.dev, "test": self.test, "mismatched": self.mismatched}
        return {part: path for part, path in found.items() if path is not None}

    @property
    def paths(self) -> list[Path]:
        """The files that training and evaluation may read."""
        return [*self.files.values(), *([self.unlabeled_train] if self.unlabeled_train else [])]

    def format_of(self, path: Path) -> str:
        ending = path.suffix.lower().lstrip(".")
        return ending if self.by_ending and ending in FORMATS else self.format


@dataclass(frozen=True)
class LabeledRows:
    """Rows ready to encode: texts (for token classification, words) and targets."""

    texts: list[tuple[str, ...]]
    targets: list[Any]
    skipped: int = 0
    """Number of rows of the file that lack a text or a label."""

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Sequence[int]) -> LabeledRows:
        return LabeledRows([self.texts[i] for i in indices], [self.targets[i] for i in indices])


@dataclass(frozen=True)
class TaskRows:
    task: Task
    labels: tuple[str, ...]
    """Label names in the order of the class ids; empty if the targets are numbers without names."""
    train: LabeledRows
    dev: LabeledRows
    test: LabeledRows | None
    mismatched: LabeledRows | None
    skipped: int
    """Number of unusable rows in all files."""
    unlabeled_train: LabeledRows | None = None
    """Rows without labels to train on, with 0 as targets; their texts are in no labeled file."""

    @property
    def parts(self) -> dict[str, LabeledRows]:
        """The scored parts, dev first; the names of the others are prefixes of their metrics."""
        others = {"test": self.test, "mismatched": self.mismatched}
        return {"dev": self.dev, **{name: rows for name, rows in others.items() if rows is not None}}

    @property
    def leaked_rows(self) -> dict[str, int]:
        """The number of rows of each scored part whose texts are those of a training row, if there are any."""
        known = set(map(tuple, self.train.texts))
        found = {part: sum(tuple(texts) in known for texts in rows.texts) for part, rows in self.parts.items()}
        return {part: number for part, number in found.items() if number}


def load_table(task: Task, *, numbers: bool = False) -> TaskRows:
    """Read the files of a task with a column of labels, which become class ids, or with ``numbers`` of numbers."""
    columns = (*task.text, task.label)
    texts = len(task.text)
    read = {
        path: read_table(path, columns, format=task.format_of(path), header=task.header, texts=texts)
        for path in task.files.values()
    }
    read = _without_missing(read)
    known, names = (None, ()) if numbers else _known_labels(task, read[task.train])
    rows = {path: labeled_rows(path, cells, known) for path, cells in read.items()}
    if numbers and len(set(rows[task.train].targets)) < 2:
        raise UserError(
            f"Every row of '{task.train}' has the number {rows[task.train].targets[0]:g}.",
            "Give training rows of at least two numbers.",
        )
    found = assembled(task, names, rows)
    if task.unlabeled_train is None:
        return found
    more = unlabeled_train_rows(task, rows.values())
    return replace(found, unlabeled_train=more, skipped=found.skipped + more.skipped)


def unlabeled_train_rows(task: Task, labeled: Iterable[LabeledRows]) -> LabeledRows:
    """Return the different rows of ``task.unlabeled_train`` whose texts are not among the ``labeled`` ones.

    Raises:
        UserError: there are none.
    """
    path = task.unlabeled_train
    assert path is not None
    cells = read_table(path, task.text, format=task.format_of(path), header=task.header, texts=len(task.text))
    known = {texts for rows in labeled for texts in rows.texts}
    texts = [texts for texts in dict.fromkeys(cells.rows) if texts not in known]
    if not texts:
        raise UserError(f"Every row of '{path}' is also a labeled row.", "Give other rows, or remove unlabeled.")
    return LabeledRows(texts, [0] * len(texts), cells.skipped)


def assembled(task: Task, labels: tuple[str, ...], rows: Mapping[Path, LabeledRows]) -> TaskRows:
    """Return the task with the rows of its files; without a dev file, some training rows are held out."""
    train, dev = (rows[task.train], rows[task.dev]) if task.dev else _split(rows[task.train], task)
    return TaskRows(
        task,
        labels,
        train,
        dev,
        test=rows[task.test] if task.test else None,
        mismatched=rows[task.mismatched] if task.mismatched else None,
        skipped=sum(found.skipped for found in rows.values()),
    )


def _known_labels(task: Task, train: TableRows) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the class id of each label value, and the names of the ids."""
    values = [value for value, _ in task.labels] or _sorted_labels({row[-1].strip() for row in train.rows})
    names = tuple(name for _, name in task.labels) or tuple(values)
    if len(names) < 2:
        fault = f"Every row of '{task.train}' has the label {shown(names[0])}."
        raise UserError(fault, "Give training rows of at least two labels.")
    if task.metric in TWO_LABELS and len(names) > 2:
        raise UserError(
            f"The metric {task.metric} is for two labels, and '{task.train}' has {len(names)}.",
            "Use macro_f1, micro_f1, mcc or accuracy.",
        )
    return {value: index for index, value in enumerate(values)}, names


def _split(rows: LabeledRows, task: Task) -> tuple[LabeledRows, LabeledRows]:
    """Hold out DEV_FRACTION of the different texts (at least one), drawn with SPLIT_SEED; rows stay in file order.

    Rows of equal texts stay together, because a model that has seen one of them knows the label of the others. So do
    questions with one context, and choices with one context.
    """
    shared = {"qa": slice(1, 2), "choice": slice(0, 1)}.get(task.kind, slice(None))
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, texts in enumerate(rows.texts):
        groups.setdefault(tuple(texts[shared]), []).append(number)
    if len(groups) < 2:
        fault = f"'{task.train}' holds one {'row' if len(rows) == 1 else 'text'}, too few to hold some out."
        raise UserError(fault, "Give more rows or a dev file.")
    held = max(1, round(DEV_FRACTION * len(groups)))
    numbers = list(groups.values())
    order = np.random.default_rng(SPLIT_SEED).permutation(len(groups)).tolist()
    train, dev = (
        sorted(itertools.chain.from_iterable(numbers[i] for i in part)) for part in (order[held:], order[:held])
    )
    return rows.take(train), rows.take(dev)


def _sorted_labels(values: Collection[str]) -> list[str]:
    """Sort numbers by value and keep one of 1 and 1.0; sort other labels alphabetically."""
    numbers = {value: number for value in values if (number := _number(value)) is not None}
    if len(numbers) < len(values):
        return sorted(values)
    spellings = {numbers[value]: value for value in sorted(values, reverse=True)}
    return [spellings[number] for number in sorted(spellings)]


def _without_missing(read: Mapping[Path, TableRows]) -> dict[Path, TableRows]:
    """Leave out rows whose label is NA, NaN or null, as R and pandas write a missing number, if all others are numbers.

    Raises:
        UserError: too many rows of a file are left out.
    """
    labels = {row[-1].strip() for cells in read.values() for row in cells.rows}
    missing = {label for label in labels if label.lower() in MISSING}
    if not missing or any(_number(label) is None for label in labels - missing):
        return dict(read)
    return {path: _without(missing, path, cells) for path, cells in read.items()}


def _without(labels: Collection[str], path: Path, cells: TableRows) -> TableRows:
    """Leave out and count the rows that have one of the labels."""
    found = [row[-1].strip() for row in cells.rows]
    kept = [index for index, label in enumerate(found) if label not in labels]
    if len(kept) == len(found):
        return cells
    first = next(index for index, label in enumerate(found) if label in labels)
    example = f"{numbered(path, cells.lines[first])}, for example, has the label {shown(found[first])}"
    skipped = cells.skipped + len(found) - len(kept)
    check_skipped(len(kept), skipped, f"rows in '{path}' are unusable: {example}", UNLABELED)
    return TableRows([cells.rows[index] for index in kept], [cells.lines[index] for index in kept], skipped)


def labeled_rows(
    path: Path,
    cells: TableRows,
    known: Mapping[str, int] | None,
    remedy: str = "Correct the label, or add training rows that have it.",
) -> LabeledRows:
    """Return the rows with the ids in ``known`` of their last cells, or with numbers if it is None.

    If all known labels are numbers, a label may be written as another equal number: 1.0 for 1.
    """
    numbers = {_number(value): index for value, index in (known or {}).items()}
    targets = []
    for line, row in zip(cells.lines, cells.rows):
        label = row[-1].strip()
        number = _number(label)
        target = number if known is None else known.get(label)
        if target is None and number is not None and None not in numbers:
            target = numbers.get(number)
        if target is None:
            fault = f"{location(path, line)} has the label {shown(label)}, which is "
            if known is None and DECIMAL_COMMA.fullmatch(label):
                raise UserError(f"{fault}not a number.", "Write points instead of decimal commas.")
            if known is None:
                raise UserError(f"{fault}not a number.", 'Correct it, or set kind = "classification".')
            names = ", ".join(shown(value) for value in list(known)[:8]) + (", ..." if len(known) > 8 else "")
            if (
                number is not None
                and None not in numbers
                and any(each % 1 for each in (number, *filter(None, numbers)))
            ):
                raise UserError(f"{fault}none of {names}.", 'Set kind = "regression" if the answer is a number.')
            raise UserError(f"{fault}none of {names}.{nearest(label, known)}", remedy)
        targets.append(target)
    return LabeledRows([row[:-1] for row in cells.rows], targets, cells.skipped)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
