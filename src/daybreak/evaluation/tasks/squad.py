"""Read files in the format of SQuAD (Rajpurkar et al. 2016, 2018), and compute its exact match and F1.

A row whose answer is not in the context at the stated position is skipped and counted. A file with too many such rows,
or with another structure, is refused.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest
from daybreak.evaluation.tasks.tables import MANY, check_skipped, parquet_of, readable, shown

FORM = "Give the file the form of SQuAD, or name its format."
ROW_FORM = 'Give each row {"text": [...], "answer_start": [...]}, empty lists where there is no answer.'


@dataclass(frozen=True)
class Answer:
    """A part of the context: ``context[start : start + len(text)] == text``."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    question: str
    context: str
    answers: tuple[Answer, ...]
    """All correct answers; empty if the context holds no answer."""


def read_questions(path: Path, columns: Sequence[str | int], format: str) -> tuple[list[Question], int]:
    """Return the usable rows of a file, in file order, and the number of skipped rows.

    Args:
        columns: question, context and answers by name, for jsonl and parquet.
        format: squad (SQuAD's .json, version 1.1 or 2), jsonl or parquet.

    Raises:
        UserError: the file is missing, has another structure, or too many unusable rows.
    """
    with readable(path):
        if format == "squad":
            found = list(_squad_rows(path, _parsed(path.read_text(encoding="utf-8-sig"), path, "")))
        else:
            rows = _parquet_rows(path, columns) if format == "parquet" else _json_rows(path)
            found = [_row(path, place, row, list(map(str, columns))) for place, row in rows]
    if not found:
        raise UserError(f"'{path}' holds no questions.", "Give a file with at least one.")
    usable = [row for row in found if _is_usable(row)]
    skipped = len(found) - len(usable)
    check_skipped(
        len(usable),
        skipped,
        f"questions in '{path}' are empty, or have an answer that is not at the stated position",
        "Count an answer's start in characters of the context, from 0.",
    )
    return usable, skipped


def _is_usable(row: Question) -> bool:
    found = all(answer.text.strip() and row.context.startswith(answer.text, answer.start) for answer in row.answers)
    return bool(found and row.question.strip() and row.context.strip())


def _parsed(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where or 'The text'} of '{path}' is not JSON: {reason(error)}.", "Correct the file."
        ) from None


def _squad_rows(path: Path, content: Any) -> Iterator[Question]:
    for article, part in _listed(path, "", content, "data"):
        for paragraph, inner in _listed(path, article, part, "paragraphs"):
            context = _text(path, paragraph, inner, "context")
            for place, item in _listed(path, paragraph, inner, "qas"):
                question = _text(path, place, item, "question")
                impossible = item.get("is_impossible", False)
                if not isinstance(impossible, bool):
                    raise _unfit(path, f"{place}.is_impossible is neither true nor false", FORM)
                answers = [
                    Answer(_text(path, where, answer, "text"), _start(path, where, answer.get("answer_start")))
                    for where, answer in _listed(path, place, item, "answers")
                ]
                # Version 2 lists the plausible answers of an impossible question elsewhere, but not every copy does.
                yield Question(question, context, () if impossible else tuple(answers))


def _listed(path: Path, place: str, holder: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of the list ``key`` with their paths in the file."""
    where = f"{place}.{key}".lstrip(".")
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        raise _unfit(path, f"{where} is no list", FORM)
    for number, item in enumerate(holder[key]):
        if not isinstance(item, dict):
            raise _unfit(path, f"{where}[{number}] is no object", FORM)
        yield f"{where}[{number}]", item


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"line {number}", _parsed(line, path, f"Line {number}")


def _parquet_rows(path: Path, columns: Sequence[str | int]) -> Iterator[tuple[str, Any]]:
    with parquet_of(path) as file:
        # _row reports a missing column.
        there = [str(column) for column in columns if column in file.schema_arrow.names]
        number = 0
        for batch in file.iter_batches(columns=there):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row


def _row(path: Path, place: str, row: Any, columns: Sequence[str]) -> Question:
    if not isinstance(row, dict):
        raise _unfit(path, f"{place} is no object", "Write one object a line.")
    for column in columns:
        if column not in row:
            names = ", ".join(map(shown, list(row)[:MANY]))
            raise _unfit(
                path, f"{place} has no {shown(column)}, it holds {names}", f"Correct it.{nearest(column, row)}"
            )
    question, context, label = columns
    answers = row[label] if isinstance(row[label], dict) else {}
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise _unfit(path, f"{place} has answers that are no two lists of the same length", ROW_FORM)
    found = [
        Answer(_text(path, place, {"text": text}, "text"), _start(path, place, start))
        for text, start in zip(texts, starts)
    ]
    return Question(_text(path, place, row, question), _text(path, place, row, context), tuple(found))


def _text(path: Path, place: str, holder: dict[str, Any], key: str) -> str:
    """Return a string; half of a surrogate pair is refused because tokenizers refuse it."""
    value = holder.get(key)
    if not isinstance(value, str) or re.search("[\ud800-\udfff]", value):
        raise _unfit(path, f"{place} has a '{key}' that is no text", "Give each of them as text.")
    return value


def _start(path: Path, place: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _unfit(path, f"{place} has an answer whose start is not a character offset", ROW_FORM)
    return value


def _unfit(path: Path, fault: str, remedy: str) -> UserError:
    return UserError(f"'{path}' cannot be used: {fault}.", remedy)


def normalised(text: str) -> str:
    """Return lower-case text without ASCII punctuation and articles, with single spaces, as the official scripts do."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def score_answer(given: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return (exact match, F1 of words) in [0, 1], each the best over ``answers``, as the script of SQuAD 2 does.

    Answers that are empty after normalization do not count; if none is left, the empty answer is correct.
    """
    right = [normalised(answer) for answer in answers if normalised(answer)] or [""]
    prediction = normalised(given)
    exact = max(float(prediction == answer) for answer in right)
    return exact, max(_f1(prediction.split(), answer.split()) for answer in right)


def _f1(prediction: list[str], answer: list[str]) -> float:
    if not prediction or not answer:
        return float(prediction == answer)
    common = (Counter(prediction) & Counter(answer)).total()
    return 2 * common / (len(prediction) + len(answer))
