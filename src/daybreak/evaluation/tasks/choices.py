"""Multiple choice, as in SWAG (Zellers et al. 2018, arXiv:1808.05326)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from daybreak.evaluation.scoring.metrics import most_frequent
from daybreak.evaluation.tasks.batches import EncodedRows, Padding, check_ids
from daybreak.evaluation.tasks.sequences import OneOfSeveral, confidence_of, confidence_scores
from daybreak.evaluation.tasks.tables import read_table
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows, assembled, labeled_rows


class Choice(OneOfSeveral):
    """The index of the right choice, from 0; the head gives one score per choice.

    A row's texts are its context and its choices; every row has the same number of choices. With two context columns,
    the second is the start of every choice, as in SWAG: (first, second + " " + choice).
    """

    name: ClassVar[str] = "choice"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    headline = "accuracy"
    head = "ForMultipleChoice"
    columns = ("target", "answer", "confidence", "nll")
    """The confidence is the probability of the prediction; nll is the negative log-likelihood of the target in nats."""

    def load(self, task: Task) -> TaskRows:
        return assembled(task, (), {path: _read(task, path) for path in task.files.values()})

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        """Do nothing: the head does not depend on the number of choices."""

    def encode(self, tokenizer: Any, rows: LabeledRows, length: int, vocabulary: int) -> EncodedRows:
        """Truncate the context; if a choice alone is too long, truncate the longer of the two texts first.

        A sample holds one sequence per choice.
        """
        pairs = [(texts[0], choice) for texts in rows.texts for choice in texts[1:]]
        room = length - tokenizer.num_special_tokens_to_add(pair=True)
        alone = tokenizer([choice for _, choice in pairs], add_special_tokens=False, verbose=False)["input_ids"]
        features: dict[str, list[list[int]]] = {}
        for way, leaves_room in (("only_first", True), ("longest_first", False)):
            chosen = [index for index, ids in enumerate(alone) if (len(ids) < room) is leaves_room]
            if not chosen:
                continue
            columns = zip(*(pairs[index] for index in chosen))
            found = dict(tokenizer(*map(list, columns), truncation=way, max_length=length))
            for name, sequences in found.items():
                kept = features.setdefault(name, [[]] * len(pairs))
                for index, sequence in zip(chosen, sequences):
                    kept[index] = sequence
        ids = features["input_ids"]
        check_ids(ids, vocabulary)
        count = len(rows.texts[0]) - 1
        starts = range(0, len(pairs), count)
        return EncodedRows(
            {name: [values[start : start + count] for start in starts] for name, values in features.items()},
            list(rows.targets),
            [max(map(len, ids[start : start + count])) for start in starts],
            rows,
        )

    def collate(self, padding: Padding, rows: EncodedRows, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return each input as int64[samples, choices, longest]."""
        found = {}
        for name, values in rows.features.items():
            flat = [sequence for index in indices for sequence in values[index]]
            found[name] = padding.pad(name, flat).unflatten(0, (len(indices), -1))
        return found

    def evaluate(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
        columns = (rows.targets, *confidence_of(np.stack(answers).astype(np.float64), rows.targets))
        return np.stack(columns, axis=1).astype(np.float64)

    def constant(self, data: TaskRows, rows: LabeledRows) -> np.ndarray:
        table = np.full((len(rows), len(self.columns)), np.nan)
        table[:, 0], table[:, 1] = rows.targets, most_frequent(data.train.targets)
        return table

    def score(self, scored: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        """Return the metrics; with probabilities also ``calibration_error`` and ``nll``, where less is better."""
        accuracy = float((scored[:, 0] == scored[:, 1]).mean())
        return {"accuracy": accuracy, **confidence_scores(*scored.T)}


def _read(task: Task, path: Path) -> LabeledRows:
    """Return rows of the context and each choice with its start."""
    columns = (*task.text, *task.choices, task.label)
    cells = read_table(path, columns, format=task.format_of(path), header=task.header)
    known = {str(number): number for number in range(len(task.choices))}
    rows = labeled_rows(path, cells, known, "Give the number of the right choice, counted from 0.")
    contexts = len(task.text)
    texts = []
    for row in rows.texts:
        begins = " ".join((*row[1:contexts], ""))
        texts.append((row[0], *(begins + choice for choice in row[contexts:])))
    return replace(rows, texts=texts)
