"""Extractive question answering, as in SQuAD: the answer is a span of the context."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.batches import EncodedRows, Padding, check_ids, padded
from daybreak.evaluation.tasks.squad import Answer, read_questions, score_answer
from daybreak.evaluation.tasks.task import LabelledRows, Task, TaskRows, assembled
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
        read = {path: _read(task, path) for path in task.files.values()}
        rows = {path: found for path, (found, _) in read.items()}
        data = assembled(task, (), rows, sum(skipped for _, skipped in read.values()))
        if not any(data.train.targets):
            raise UserError(f"No question in '{task.train}' has an answer.", "Give training rows with answers.")
        return data if all(data.train.targets) else dataclasses.replace(data, labels=(NO_ANSWER,))

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        """Set two outputs per token: start and end."""
        config.num_labels = 2

    def encode(self, tokenizer: Any, rows: LabelledRows, length: int, vocabulary: int) -> EncodedRows:
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

    def _encode_some(
        self, tokenizer: Any, rows: LabelledRows, chosen: range, length: int, encoded: EncodedRows
    ) -> None:
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

    def constant(self, data: TaskRows, rows: LabelledRows) -> np.ndarray:
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
        The sum and the two positions; the earliest of equal ones.
    """
    beyond = np.full(LONGEST_ANSWER - 1, -np.inf, dtype=logits.dtype)
    ends = np.lib.stride_tricks.sliding_window_view(np.concatenate([logits[1], beyond]), LONGEST_ANSWER)
    sums = logits[0] + ends.max(axis=1)
    start = int(sums.argmax())
    return float(sums[start]), start, start + int(ends[start].argmax())


def _read(task: Task, path: Path) -> tuple[LabelledRows, int]:
    found, skipped = read_questions(path, (*task.text, task.label), task.format)
    return LabelledRows([(row.question, row.context) for row in found], [row.answers for row in found]), skipped


def _cut(tokenizer: Any, questions: list[str], limit: int) -> list[str]:
    """Truncate the questions to ``limit`` tokens."""
    found = tokenizer(questions, add_special_tokens=False, truncation=False, return_offsets_mapping=True)
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
