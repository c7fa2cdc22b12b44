"""Extractive question answering, as in SQuAD (Rajpurkar et al. 2016, 2018): the answer is a span of the context."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest
from daybreak.evaluation.tasks.batches import EncodedRows, Padding, check_ids, padded
from daybreak.evaluation.tasks.tables import MANY, check_skipped, nfc, parquet_of, readable, shown
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows, assembled
from daybreak.evaluation.tasks.task_kind import Kind

NO_ANSWER = "no answer"
OVERLAP = 128
"""Tokens of context that neighbouring windows share; at most a third of the length."""
LONGEST_QUESTION = 64
"""Most tokens of a question (Devlin et al. 2018's code); at most a third of the room in a sequence."""
LONGEST_ANSWER = 30
"""Most tokens of a predicted answer (Devlin et al. 2018's code)."""
SHORTEST_LENGTH = 32
ENCODED_AT_ONCE = 1_000
"""Rows per call of the tokenizer: the offsets of all of SQuAD as Python objects would fill a small memory."""


@dataclass(frozen=True)
class Answer:
    """A part of the context: ``context[start : start + len(text)] == text``."""

    text: str
    start: int


Question = tuple[str, str, tuple[Answer, ...]]
"""Question, context, and all correct answers; none if the context holds no answer."""


@dataclass(frozen=True)
class Window:
    """A part of a row's context as one sample."""

    row: int
    first: int
    """Position in the sample of the window's first token of context."""
    spans: np.ndarray
    """int32[tokens of context, 2]: start and end of each token in characters of the context."""


class Questions(Kind):
    """The loss is the mean cross-entropy over positions of the first and the last token of the answer.

    A long context is split into several windows. In a window without the complete answer the target is the first
    token, as for a question without an answer (Devlin et al. 2018, section 4.3). The prediction is the best span of at
    most LONGEST_ANSWER tokens over all windows of a row.

    If some training rows have no answer, the task's labels are (NO_ANSWER,), and the prediction is empty if the
    lowest score of the first token over the windows is higher than that of every span.
    """

    name: ClassVar[str] = "qa"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "exact")
    headline = "f1"
    head = "ForQuestionAnswering"
    columns = ("exact", "f1")

    def load(self, task: Task) -> TaskRows:
        columns = [*map(str, task.text), str(task.label)]
        data = assembled(task, (), {path: read_questions(path, columns, task.format) for path in task.files.values()})
        if not any(data.train.targets):
            raise UserError(f"No question in '{task.train}' has an answer.", "Give training rows with answers.")
        return data if all(data.train.targets) else dataclasses.replace(data, labels=(NO_ANSWER,))

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        """Set two outputs per token: start and end."""
        config.num_labels = 2

    def encode(self, tokenizer: Any, rows: LabeledRows, length: int, vocabulary: int) -> EncodedRows:
        """Truncate questions to LONGEST_QUESTION tokens, and split long contexts into windows."""
        if not tokenizer.is_fast:
            raise UserError(
                "The model's tokenizer does not give the character offsets of its tokens.",
                "Use a model with a tokenizer.json.",
            )
        if length < SHORTEST_LENGTH:
            raise UserError(
                f"Question answering needs {SHORTEST_LENGTH} tokens a sequence, and here {length} are allowed.",
                "Use a model or a protocol that takes longer ones.",
            )
        # Left truncation, which some tokenizers ask for, would count the windows from the context's end.
        tokenizer.truncation_side = "right"
        encoded = EncodedRows({}, [], [], rows)
        for start in range(0, len(rows), ENCODED_AT_ONCE):
            self._encode_some(tokenizer, rows, range(start, min(start + ENCODED_AT_ONCE, len(rows))), length, encoded)
        check_ids(encoded.features["input_ids"], vocabulary)
        return encoded

    def _encode_some(self, tokenizer: Any, rows: LabeledRows, chosen: range, length: int, encoded: EncodedRows) -> None:
        """Append the windows of the ``chosen`` rows to ``encoded``."""
        limit = min(LONGEST_QUESTION, (length - tokenizer.num_special_tokens_to_add(pair=True)) // 3)
        overlap = min(OVERLAP, length // 3)
        found = tokenizer(
            _cut(tokenizer, [rows.texts[index][0] for index in chosen], limit),
            [rows.texts[index][1] for index in chosen],
            truncation="only_second",
            max_length=length,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        of, offsets = found.pop("overflow_to_sample_mapping"), found.pop("offset_mapping")
        windows = []
        for number, spans in enumerate(offsets):
            places = [place for place, part in enumerate(found.sequence_ids(number)) if part == 1]
            first, last = (places[0], places[-1]) if places else (0, -1)
            spans = np.array(spans[first : last + 1], dtype=np.int32).reshape(-1, 2)
            windows.append(Window(chosen[of[number]], first, spans))
        for name, sequences in found.items():
            encoded.features.setdefault(name, []).extend(sequences)
        encoded.notes.extend(windows)
        encoded.lengths.extend(map(len, found["input_ids"]))
        for index, own in itertools.groupby(windows, lambda window: window.row):
            encoded.targets.extend(_targets(list(own), rows.targets[index], overlap))

    def collate(self, padding: Padding, rows: EncodedRows, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Pad on the right, because targets and predictions are positions from the left."""
        return {
            name: padded([values[index] for index in indices], padding.values.get(name, 0))
            for name, values in rows.features.items()
        }

    def targets(self, rows: EncodedRows, indices: Sequence[int], width: int) -> torch.Tensor:
        """Return int64[samples, 2]: first and last token."""
        return torch.tensor([rows.targets[index] for index in indices])

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        start = functional.cross_entropy(outputs.start_logits.float(), targets[:, 0])
        return (start + functional.cross_entropy(outputs.end_logits.float(), targets[:, 1])) / 2

    def answers(self, outputs: Any) -> list[np.ndarray]:
        """Return float32[2, longest] per sample: start and end logits."""
        return list(torch.stack([outputs.start_logits, outputs.end_logits], dim=1).float().cpu().numpy())

    def evaluate(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
        given = self.given(rows, answers, labels)
        right = ([answer.text for answer in target] for target in rows.rows.targets)
        return np.array([score_answer(text, texts) for text, texts in zip(given, right)], dtype=np.float64)

    def given(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> list[str]:
        """Return the predicted answer of each row, a part of its context; empty for no answer."""
        best = [(-np.inf, "")] * len(rows.rows)
        none = [np.inf] * len(rows.rows)
        for window, logits in zip(rows.notes, answers, strict=True):
            none[window.row] = min(none[window.row], float(logits[0, 0] + logits[1, 0]))
            if len(window.spans):
                sure, begins, ends = best_span(logits[:, window.first : window.first + len(window.spans)])
                if sure > best[window.row][0]:
                    text = rows.rows.texts[window.row][1][window.spans[begins, 0] : window.spans[ends, 1]]
                    best[window.row] = (sure, text)
        may_have_none = NO_ANSWER in labels
        return ["" if may_have_none and empty > sure else text for empty, (sure, text) in zip(none, best)]

    def constant(self, data: TaskRows, rows: LabeledRows) -> np.ndarray:
        """Score the empty answer."""
        right = ([answer.text for answer in target] for target in rows.targets)
        return np.array([score_answer("", texts) for texts in right], dtype=np.float64)

    def score(self, scored: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        return {"f1": float(scored[:, 1].mean()), "exact": float(scored[:, 0].mean())}


def best_span(logits: np.ndarray) -> tuple[float, int, int]:
    """Return the span of at most LONGEST_ANSWER tokens with the largest sum of start and end logit.

    Args:
        logits: float[2, n], start and end logits, n at least 1.

    Returns:
        The sum and the two positions. Of several spans with this sum, the earliest.
    """
    beyond = np.full(LONGEST_ANSWER - 1, -np.inf, dtype=logits.dtype)
    ends = np.lib.stride_tricks.sliding_window_view(np.concatenate([logits[1], beyond]), LONGEST_ANSWER)
    sums = logits[0] + ends.max(axis=1)
    start = int(sums.argmax())
    return float(sums[start]), start, start + int(ends[start].argmax())


def _cut(tokenizer: Any, questions: list[str], limit: int) -> list[str]:
    """Truncate the questions to ``limit`` tokens."""
    found = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [
        question if len(spans) <= limit else question[: spans[limit - 1][1]]
        for question, spans in zip(questions, found["offset_mapping"])
    ]


def _targets(windows: Sequence[Window], answers: Sequence[Answer], overlap: int) -> Iterator[tuple[int, int]]:
    """Yield for each window of a row the first and last token of its first answer, or (0, 0) if it is incomplete."""
    # All tokens of the context, each once.
    parts = [window.spans[overlap if number else 0 :] for number, window in enumerate(windows)]
    spans = np.concatenate(parts)
    begins, ends = -1, -1
    if answers:
        start, end = answers[0].start, answers[0].start + len(answers[0].text)
        touched = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < end))
        begins, ends = (int(touched[0]), int(touched[-1])) if len(touched) else (-1, -1)
    before = 0
    for window in windows:
        inside = before <= begins and ends < before + len(window.spans)
        yield (window.first + begins - before, window.first + ends - before) if inside else (0, 0)
        before += len(window.spans) - overlap


# ---------------------------------------------------------------- files in the format of SQuAD

FORM = "Give the file the form of SQuAD, or name its format."
ROW_FORM = 'Give each row {"text": [...], "answer_start": [...]}, empty lists where there is no answer.'


def read_questions(path: Path, columns: Sequence[str], format: str) -> LabeledRows:
    """Return (question, context) and the correct answers of the usable rows of a file, in file order and in NFC.

    A row whose answer is not in the context at the stated position is skipped. A file with too many such rows, or with
    another structure, is refused.

    Args:
        columns: question, context and answers by name, for jsonl and parquet.
        format: squad (SQuAD's .json, version 1.1 or 2), jsonl or parquet.
    """
    with readable(path):
        if format == "squad":
            found = list(_squad_rows(path, _parsed(path.read_text(encoding="utf-8-sig"), path, "")))
        else:
            rows = _parquet_rows(path, columns) if format == "parquet" else _json_rows(path)
            found = [_row(path, place, row, columns) for place, row in rows]
    if not found:
        raise UserError(f"'{path}' holds no questions.", "Give a file with at least one.")
    usable = [row for row in map(_normalized, found) if _is_usable(row)]
    skipped = len(found) - len(usable)
    check_skipped(
        len(usable),
        skipped,
        f"questions in '{path}' are empty, or have an answer that is not at the stated position",
        "Count an answer's start in characters of the context, from 0.",
    )
    return LabeledRows([row[:2] for row in usable], [answers for _, _, answers in usable], skipped)


def _normalized(row: Question) -> Question:
    """Return the row in Unicode NFC, with the positions of the answers in the normalized context."""
    question, context, answers = row
    moved = tuple(Answer(nfc(answer.text), len(nfc(context[: answer.start]))) for answer in answers)
    return nfc(question), nfc(context), moved


def _is_usable(row: Question) -> bool:
    question, context, answers = row
    found = all(answer.text.strip() and context.startswith(answer.text, answer.start) for answer in answers)
    return bool(found and question.strip() and context.strip())


def _parsed(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = f"{where or 'The text'} of '{path}' is not JSON: {reason(error)}."
        raise UserError(fault, "Correct the file.") from None


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
                yield question, context, () if impossible else tuple(answers)


def _listed(path: Path, place: str, holder: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of the list ``key`` with their paths in the file."""
    where = f"{place}.{key}".lstrip(".")
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        raise _unfit(path, f"{where} is not a list", FORM)
    for number, item in enumerate(holder[key]):
        if not isinstance(item, dict):
            raise _unfit(path, f"{where}[{number}] is not an object", FORM)
        yield f"{where}[{number}]", item


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"line {number}", _parsed(line, path, f"Line {number}")


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    with parquet_of(path) as file:
        # _row reports a missing column.
        there = [column for column in columns if column in file.schema_arrow.names]
        rows = (row for batch in file.iter_batches(columns=there) for row in batch.to_pylist())
        yield from ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _row(path: Path, place: str, row: Any, columns: Sequence[str]) -> Question:
    if not isinstance(row, dict):
        raise _unfit(path, f"{place} is not an object", "Write one object per line.")
    for column in columns:
        if column not in row:
            names = ", ".join(map(shown, list(row)[:MANY]))
            fault = f"{place} has no {shown(column)}, it holds {names}"
            raise _unfit(path, fault, f"Correct it.{nearest(column, row)}")
    question, context, label = columns
    answers = row[label] if isinstance(row[label], dict) else {}
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise _unfit(path, f"{place} has answers that are not two lists of the same length", ROW_FORM)
    found = [
        Answer(_text(path, place, {"text": text}, "text"), _start(path, place, start))
        for text, start in zip(texts, starts)
    ]
    return _text(path, place, row, question), _text(path, place, row, context), tuple(found)


def _text(path: Path, place: str, holder: dict[str, Any], key: str) -> str:
    """Return a string; half of a surrogate pair is refused because tokenizers refuse it."""
    value = holder.get(key)
    if not isinstance(value, str) or re.search("[\ud800-\udfff]", value):
        raise _unfit(path, f"{place} has a '{key}' that is not text", "Give each of them as text.")
    return value


def _start(path: Path, place: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _unfit(path, f"{place} has an answer whose start is not a character offset", ROW_FORM)
    return value


def _unfit(path: Path, fault: str, remedy: str) -> UserError:
    return UserError(f"'{path}' cannot be used: {fault}.", remedy)


# ---------------------------------------------------------------- SQuAD's exact match and F1


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
