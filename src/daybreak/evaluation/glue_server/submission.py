"""Write and check the 11 files that gluebenchmark.com takes in one zip.

Each file is tab-separated with the header ``index<TAB>prediction`` and one row for each row of the task's unlabeled
test file, in its order (Wang et al. 2019, arXiv:1804.07461, and the server's instructions). The server expects 0 and 1
for five tasks, not label names; the files of transformers' ``run_glue`` have names there.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.core.errors import UserError, reason
from daybreak.core.files import make_folder, write_text
from daybreak.core.serialization import nearest
from daybreak.core.terminal import say
from daybreak.schemas.tasks import FinetuningRun

if TYPE_CHECKING:  # the module loads scikit-learn, which a check of files does not need
    from daybreak.evaluation.tasks.task import Task

HEADER = "index\tprediction"
ARCHIVE = "submission.zip"
LEAST, MOST = 0.0, 5.0
"""Range of STS-B scores; the server refuses a file with a number outside it."""
DATE = (1980, 1, 1, 0, 0, 0)
"""Date of every file in the zip, so that equal predictions give equal bytes."""
LARGEST = 2**26
"""Largest file that is read, in bytes; the longest correct file, QQP's, has about 4 million."""
MAX_UNKNOWN = 10
"""Files that do not belong to a submission are listed up to this number."""
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class PredictionFile:
    """The format of one file of a submission."""

    rows: int
    values: tuple[tuple[str, str], ...]
    """(label name, value in the file); empty if the file holds numbers."""
    filler: str
    """Value of every row of a task without predictions; the server requires all files."""


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_INFERENCE = _same("entailment", "neutral", "contradiction")
_BINARY_INFERENCE = _same("entailment", "not_entailment")
FILES = {
    "CoLA": PredictionFile(1063, (("unacceptable", "0"), ("acceptable", "1")), "0"),
    "SST-2": PredictionFile(1821, (("negative", "0"), ("positive", "1")), "0"),
    "MRPC": PredictionFile(1725, (("not_equivalent", "0"), ("equivalent", "1")), "0"),
    "STS-B": PredictionFile(1379, (), "2.500"),
    "MNLI-m": PredictionFile(9796, _INFERENCE, "entailment"),
    "MNLI-mm": PredictionFile(9847, _INFERENCE, "entailment"),
    "QNLI": PredictionFile(5463, _BINARY_INFERENCE, "entailment"),
    "QQP": PredictionFile(390965, (("not_duplicate", "0"), ("duplicate", "1")), "0"),
    "RTE": PredictionFile(3000, _BINARY_INFERENCE, "entailment"),
    # Most rows of this test file are not_entailment. Unlike in QNLI and RTE, 0 means not_entailment.
    "WNLI": PredictionFile(146, (("not_entailment", "0"), ("entailment", "1")), "0"),
    "AX": PredictionFile(1104, _INFERENCE, "entailment"),
}
"""By file name without ``.tsv``."""


# ---------------------------------------------------------------- writing


def best_predictions(
    found: Sequence[tuple[Task, Sequence[FinetuningRun]]],
) -> tuple[dict[str, list[float]], dict[str, tuple[str, ...]], list[str]]:
    """Return for each task the predictions of the run with the best dev score; the first of equal ones.

    Args:
        found: tasks with their runs, which may have different settings.

    Returns:
        Predictions and label names by file, as ``write_submission`` takes them, and a sentence about each choice.
    """
    predictions: dict[str, list[float]] = {}
    labels: dict[str, tuple[str, ...]] = {}
    messages = []
    for task, runs in found:
        candidates = [run for run in runs if run.predictions]
        if not candidates:
            continue

        def dev_score(run: FinetuningRun, metric: str = task.metric) -> float:
            return -math.inf if math.isnan(run.scores[metric]) else run.scores[metric]

        best = max(candidates, key=dev_score)
        predictions |= best.predictions
        labels |= {name: tuple(label for _, label in task.labels) for name in best.predictions}
        messages.append(
            f"{task.name}: seed {best.seed} of {best.protocol} ({best.epochs} epochs, rate {best.learning_rate:g}), "
            f"the best of {len(candidates)} on dev with {task.metric} {best.scores[task.metric]:.3f}, "
            f"answers {', '.join(f'{name}.tsv' for name in best.predictions)}."
        )
    return predictions, labels, messages


def write_submission(
    folder: Path, predictions: Mapping[str, Sequence[float]], labels: Mapping[str, Sequence[str]]
) -> list[str]:
    """Write the 11 files and ``submission.zip`` into ``folder``, in place of older ones.

    Args:
        predictions: by file name, class ids in test order; numbers for STS-B, which are clipped to [0, 5].
        labels: by file name, label names in the order of the class ids. The names decide what is written.

    Returns:
        A sentence for each file that holds filler.
    """
    texts = {name: _file_text(name, predictions.get(name), labels.get(name, ())) for name in FILES}
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
        if name not in predictions
    ]


def check_rows(name: str, rows: int) -> None:
    if rows != FILES[name].rows:
        raise UserError(
            f"{name}.tsv takes {FILES[name].rows:,} answers, and {rows:,} are there.",
            "Use the complete test file as GLUE distributes it.",
        )


def _file_text(name: str, predictions: Sequence[float] | None, labels: Sequence[str]) -> str:
    file = FILES[name]
    values = [file.filler] * file.rows if predictions is None else _values(name, predictions, labels)
    return "".join(f"{line}\n" for line in (HEADER, *(f"{index}\t{value}" for index, value in enumerate(values))))


def _values(name: str, predictions: Sequence[float], labels: Sequence[str]) -> list[str]:
    check_rows(name, len(predictions))
    if not all(map(math.isfinite, predictions)):
        raise UserError(f"An answer for {name}.tsv is not a number.", "Fine-tune again: the model has diverged.")
    known = dict(FILES[name].values)
    if not known:
        return [f"{min(MOST, max(LEAST, value)):.3f}" for value in predictions]
    if unknown := [label for label in labels if label not in known]:
        raise UserError(
            f"{name}.tsv has no answer for the label '{unknown[0]}'.", f"Use the labels {', '.join(known)}."
        )
    return [known[labels[int(value)]] for value in predictions]


# ---------------------------------------------------------------- checking


def check_submission(path: Path | str) -> None:
    """Print every problem of the submission in ``path``, or that it has none.

    Raises:
        UserError: the submission has problems, or cannot be read.
    """
    path = Path(path)
    problems = check(path)
    for problem in problems:
        say(problem)
    if problems:
        number = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise UserError(f"'{path}' is not a valid submission: {number}.", "Correct the problems listed above.")
    say(f"'{path}' is a valid submission: 11 files, all rows present.")


def check(path: Path) -> list[str]:
    """Return the faults of a submission, a folder or a zip: sentences with file, line and remedy.

    No fault means that the server can read the files.
    """
    faults, unknown, seen = [], [], set()
    try:
        for place, content in _folder(path) if path.is_dir() else _archive(path):
            name = place.rpartition("/")[2].removesuffix(".tsv")
            if not place:
                return [str(content)]
            if name not in FILES or not place.endswith(".tsv"):
                meant = nearest(place, [f"{name}.tsv" for name in FILES])
                unknown.append(f"'{_shown(place)}' is none of the 11 files.{meant} Rename it or take it out.")
            elif name in seen:
                faults.append(f"{name}.tsv is there twice. Take one of them out.")
            else:
                seen.add(name)
                if "/" in place:
                    faults.append(f"'{_shown(place)}' lies in a folder. Put {name}.tsv at the root of the zip.")
                faults += [content] if isinstance(content, str) else file_faults(name, content)
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.", "Check the path.") from None
    if (more := len(unknown) - MAX_UNKNOWN) > 0:
        unknown[MAX_UNKNOWN:] = [f"{more} more files are none of the 11. Take them out."]
    missing = [name for name in FILES if name not in seen]
    return [
        *unknown,
        *faults,
        *(f"{name}.tsv is missing. Add it; a task that was not run needs filler." for name in missing),
    ]


def _folder(path: Path) -> Iterator[tuple[str, bytes | str]]:
    """Yield (path, content or fault) of the files of a folder and its subfolders, without ``submission.zip``."""
    below = [child for child in sorted(path.iterdir()) if child.is_dir()]
    for file in [file for folder in (path, *below) for file in sorted(folder.iterdir()) if file.is_file()]:
        if (place := file.relative_to(path).as_posix()) != ARCHIVE:
            yield place, _too_large(place) if file.stat().st_size > LARGEST else file.read_bytes()


def _archive(path: Path) -> Iterator[tuple[str, bytes | str]]:
    """Yield (path, content or fault) of the files of a zip; ("", fault) if it cannot be read."""
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        except Exception as error:  # a damaged archive raises many types
            yield "", f"'{path.name}' is not a readable zip file ({reason(error)}). Zip the 11 files again."
            return
        for entry in entries:
            place = _shown(entry.filename)
            content: bytes | str
            try:
                content = _too_large(place) if entry.file_size > LARGEST else archive.read(entry)
            except Exception as error:  # damaged, or a password
                content = f"'{place}' cannot be unpacked ({reason(error)}). Zip the 11 files again, without a password."
            yield entry.filename, content


def _too_large(place: str) -> str:
    return f"'{place}' has more than {LARGEST // 2**20} MB. Write index and prediction only."


def file_faults(name: str, content: bytes) -> list[str]:
    """Return the faults of one file; a fault of many lines appears once, with its first line."""
    file = FILES[name]
    if not content.strip():
        return [f"{name}.tsv is empty. Write '{_shown(HEADER)}' and {file.rows:,} rows."]
    if content.startswith(b"\xef\xbb\xbf"):
        return [f"{name}.tsv begins with a byte order mark, line 1. Save it as UTF-8 without one."]
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return [f"{name}.tsv, line {line}, is not UTF-8. Save it as UTF-8 without a byte order mark."]
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    by_kind: dict[str, list[str]] = {}
    faults = []
    rows = lines[1:]
    if lines[0] != HEADER:
        wrong = f"{name}.tsv, line 1: the header is '{_shown(lines[0])}'. Write '{_shown(HEADER)}'"
        faults.append(f"{wrong}, with a tab.")
        rows = lines if lines[0].partition("\t")[0] == "0" else rows
    first = len(lines) - len(rows) + 1
    for kind, number, sentence in _row_faults(file, rows, first):
        by_kind.setdefault(kind, []).append(f"{name}.tsv, line {number}: {sentence}")
    for sentences in by_kind.values():
        more = f" So it is in {len(sentences) - 1:,} more lines." if len(sentences) > 1 else ""
        faults.append(sentences[0] + more)
    if len(rows) != file.rows:
        faults.append(
            f"{name}.tsv, line {len(lines)}, is its last: {len(rows):,} row{'' if len(rows) == 1 else 's'}. "
            f"Write {file.rows:,}, one for each row of the test file."
        )
    return faults


def _row_faults(file: PredictionFile, rows: Sequence[str], first: int) -> Iterator[tuple[str, int, str]]:
    """Yield (kind of fault, line, sentence); ``first`` is the line of the first row."""
    seen: dict[str, int] = {}
    for row, line in enumerate(rows):
        number = row + first
        cells = line.split("\t")
        if len(cells) != 2:
            comma = "a comma" if "," in line and len(cells) == 1 else f"{len(cells) - 1} tabs"
            yield "columns", number, f"'{_shown(line)}' has {comma}. Put one tab between index and prediction."
            continue
        index, value = cells
        if index in seen:
            yield "twice", number, f"index '{_shown(index)}' stood in line {seen[index]} already. Give each row one."
        elif index != str(row):
            wanted = f"Number the rows 0 to {file.rows - 1} in the order of the test file"
            yield "order", number, f"the index is '{_shown(index)}' where {row} is due. {wanted}."
        seen.setdefault(index, number)
        if fault := _value_fault(file, value):
            yield fault[0], number, fault[1]


def _value_fault(file: PredictionFile, value: str) -> tuple[str, str] | None:
    """Return (kind of fault, sentence) about a value, or None."""
    shown = _shown(value)
    if not file.values:
        if not NUMBER.fullmatch(value):
            return "number", f"'{shown}' is not a number. Write one between {LEAST:g} and {MOST:g}, such as 3.250."
        if not LEAST <= float(value) <= MOST:
            return "range", f"{shown} is outside of {LEAST:g} to {MOST:g}. Clip it: the server refuses the file."
        return None
    allowed = [answer for _, answer in file.values]
    if value in allowed:
        return None
    if value in dict(file.values):
        mapped = " and ".join(f"{answer} for {name}" for name, answer in file.values)
        return "name", f"'{shown}' is the name of a label. Write {mapped}."
    return "label", f"'{shown}' is not an answer of this task. Write {' or '.join(allowed)}."


def _shown(text: str) -> str:
    """Shorten text and escape its control characters."""
    text = text if len(text) <= 40 else text[:37] + "..."
    return text.encode("unicode_escape").decode("ascii")
