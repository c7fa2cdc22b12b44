"""The 11 files that gluebenchmark.com takes in one zip.

Each file is tab-separated with the header ``index<TAB>prediction`` and one row for each row of the task's unlabelled
test file, in its order (Wang et al. 2019, arXiv:1804.07461, and the server's own instructions). Five tasks are answered
by 0 and 1 and not by names of labels, which is where files of transformers' ``run_glue`` fail.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, write_text
from daybreak.schemas.tasks import Cell

if TYPE_CHECKING:  # it loads scikit-learn, which a check of files need not wait for
    from daybreak.evaluation.tasks.task import Task

HEADER = "index\tprediction"
ARCHIVE = "submission.zip"
LEAST, MOST = 0.0, 5.0
"""Of STS-B; the server refuses a file with a number outside."""
DATE = (1980, 1, 1, 0, 0, 0)
"""Of every file in the zip, so that equal answers make equal bytes."""


@dataclass(frozen=True)
class AnswerFile:
    """One file of a submission."""

    rows: int
    values: tuple[tuple[str, str], ...]
    """(name of a label, what the file says for it); empty where the file holds numbers."""
    filler: str
    """For every row of a task that was not run: the server wants all files."""


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_INFERENCE = _same("entailment", "neutral", "contradiction")
_BINARY_INFERENCE = _same("entailment", "not_entailment")
FILES = {
    "CoLA": AnswerFile(1063, (("unacceptable", "0"), ("acceptable", "1")), "0"),
    "SST-2": AnswerFile(1821, (("negative", "0"), ("positive", "1")), "0"),
    "MRPC": AnswerFile(1725, (("not_equivalent", "0"), ("equivalent", "1")), "0"),
    "STS-B": AnswerFile(1379, (), "2.500"),
    "MNLI-m": AnswerFile(9796, _INFERENCE, "entailment"),
    "MNLI-mm": AnswerFile(9847, _INFERENCE, "entailment"),
    "QNLI": AnswerFile(5463, _BINARY_INFERENCE, "entailment"),
    "QQP": AnswerFile(390965, (("not_duplicate", "0"), ("duplicate", "1")), "0"),
    "RTE": AnswerFile(3000, _BINARY_INFERENCE, "entailment"),
    # The majority of this test is not_entailment, which is 0 here and the other way round than in QNLI and RTE.
    "WNLI": AnswerFile(146, (("not_entailment", "0"), ("entailment", "1")), "0"),
    "AX": AnswerFile(1104, _INFERENCE, "entailment"),
}
"""By name without its ending."""


def chosen_answers(
    found: Sequence[tuple[Task, Sequence[Cell]]],
) -> tuple[dict[str, list[float]], dict[str, tuple[str, ...]], list[str]]:
    """Take for each task the answers of the fine-tuning with the best headline on dev; of equal ones the first.

    Args:
        found: tasks, each with its cells; several settings may be among them.

    Returns:
        Answers and label names by file, as ``write_submission`` wants them, and a sentence a task about its choice.
    """
    answers: dict[str, list[float]] = {}
    labels: dict[str, tuple[str, ...]] = {}
    told = []
    for task, cells in found:
        able = [cell for cell in cells if cell.hidden]
        if not able:
            continue

        def dev(cell: Cell, metric: str = task.metric) -> float:
            value = cell.scores[metric]
            return -math.inf if math.isnan(value) else value

        best = max(able, key=dev)
        answers |= best.hidden
        labels |= {name: tuple(label for _, label in task.labels) for name in best.hidden}
        told.append(
            f"{task.name}: seed {best.seed} of {best.protocol} ({best.epochs} epochs, rate {best.learning_rate:g}), "
            f"the best of {len(able)} on dev with {task.metric} {best.scores[task.metric]:.3f}, "
            f"answers {', '.join(f'{name}.tsv' for name in best.hidden)}."
        )
    return answers, labels, told


def write_submission(
    folder: Path, answers: Mapping[str, Sequence[float]], labels: Mapping[str, Sequence[str]]
) -> list[str]:
    """Write the 11 files and ``submission.zip`` with all of them into ``folder``; older ones there are replaced.

    Args:
        answers: by name of file, class ids in test order; numbers for STS-B, which are clipped to [0, 5].
        labels: by name of file, names of the labels in the order of those ids. The names decide what is written.

    Returns:
        A sentence for each file that holds filler, because there were no answers for it.

    Raises:
        UserError: there are too few or too many answers, one is no number, or a label is none of the server's.
    """
    texts = {name: _text(name, answers.get(name), labels.get(name, ())) for name in FILES}
    make_folder(folder)
    for name, text in texts.items():
        write_text(folder / f"{name}.tsv", text)
    temporary = folder / f".{ARCHIVE}.{os.getpid()}.tmp"
    with zipfile.ZipFile(temporary, "w") as archive:
        for name, text in texts.items():
            entry = zipfile.ZipInfo(f"{name}.tsv", DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
    os.replace(temporary, folder / ARCHIVE)
    return [
        f"{name}.tsv is filler, {file.filler} in every row: there are no answers for it."
        for name, file in FILES.items()
        if name not in answers
    ]


def check_rows(name: str, rows: int) -> None:
    """Refuse a test file of so many rows.

    Raises:
        UserError: the server wants another number.
    """
    if rows != FILES[name].rows:
        raise UserError(
            f"{name}.tsv takes {FILES[name].rows:,} answers, and {rows:,} are there.",
            "Answer the test file as GLUE distributes it, whole and in its order.",
        )


def _text(name: str, answers: Sequence[float] | None, labels: Sequence[str]) -> str:
    file = FILES[name]
    values = [file.filler] * file.rows if answers is None else _values(name, answers, labels)
    return "".join(f"{line}\n" for line in (HEADER, *(f"{index}\t{value}" for index, value in enumerate(values))))


def _values(name: str, answers: Sequence[float], labels: Sequence[str]) -> list[str]:
    """What the file says for each answer."""
    check_rows(name, len(answers))
    if not all(math.isfinite(answer) for answer in answers):
        raise UserError(f"An answer for {name}.tsv is no number.", "Fine-tune again: the model has diverged.")
    told = dict(FILES[name].values)
    if not told:
        return [f"{min(MOST, max(LEAST, answer)):.3f}" for answer in answers]
    if unknown := [label for label in labels if label not in told]:
        raise UserError(f"{name}.tsv has no answer for the label '{unknown[0]}'.", f"The labels are {', '.join(told)}.")
    return [told[labels[int(answer)]] for answer in answers]
