"""Token classification, such as named entity recognition: one tag per word, in files in the format of CoNLL.

A tag is ``O``, ``B-x`` or ``I-x``, where x is the type of the span. A span begins at a ``B``, and at an ``I`` that does
not continue a span of its type. This reads IOB1, IOB2 and the malformed sequences of a model.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
import torch
from torch.nn import functional

from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.evaluation.scoring.metrics import ratio
from daybreak.evaluation.tasks.batches import EncodedRows, check_ids
from daybreak.evaluation.tasks.tables import nfc, readable
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows, assembled
from daybreak.evaluation.tasks.task_kind import Kind

OUTSIDE = "O"
IGNORED = -100
"""Target of tokens that have no tag."""


@dataclass(frozen=True)
class FirstTokens:
    """The first token of each word of a sample; W words have a token within its length."""

    words: np.ndarray
    """int64[W], rising: indices of the words in the sentence."""
    places: np.ndarray
    """int64[W]: positions in the padded row, negative (from the end) if the tokenizer pads on the left."""


class TokenLabels(Kind):
    """A row is a sentence: its texts are words, its target is a class id per word.

    The first token of a word carries its tag (Devlin et al. 2018, arXiv:1810.04805, section 5.3); other tokens are
    ignored. The prediction for a word without a token (truncated, or dropped by the tokenizer) is O.
    """

    name: ClassVar[str] = "tokens"
    metrics = ("span_f1", "span_precision", "span_recall", "token_macro_f1")
    """The first three count the spans of all types together, like seqeval's f1_score; the last is the macro F1 of words
    over types, whatever their spans."""
    headline = "span_f1"
    head = "ForTokenClassification"

    def load(self, task: Task) -> TaskRows:
        """Read CoNLL files. The labels are O and the IOB2 tags of every type in the training file."""
        word, tag = task.text[0], task.label
        assert isinstance(word, int) and isinstance(tag, int)
        read = {path: read_sentences(path, word, tag) for path in task.files.values()}
        types = sorted({kind for sentence in read[task.train] for kind, _, _ in spans(sentence.tags)})
        if not types:
            raise UserError(
                f"Every tag in '{task.train}' is O.", "Give training sentences with at least one span, or its column."
            )
        labels = (OUTSIDE, *(f"{mark}-{kind}" for mark in "BI" for kind in types))
        return assembled(task, labels, {path: _rows(task, path, found, labels) for path, found in read.items()})

    def encode(self, tokenizer: Any, rows: LabeledRows, length: int, vocabulary: int) -> EncodedRows:
        """Tokenize the words joined by single spaces, and find the words again by character offsets.

        Tokenizing words one by one would lose the space that is part of a token in byte-level vocabularies.
        """
        if not tokenizer.is_fast:
            raise UserError(
                "The model's tokenizer does not give the word of each token.",
                "Put a tokenizer.json into the model's folder, or use another model.",
            )
        texts = [" ".join(words) for words in rows.texts]
        features = dict(tokenizer(texts, truncation=True, max_length=length, return_offsets_mapping=True))
        offsets, ids = features.pop("offset_mapping"), features["input_ids"]
        check_ids(ids, vocabulary)
        left = tokenizer.padding_side == "left"
        notes = [_first_tokens(words, tokens, left) for words, tokens in zip(rows.texts, offsets)]
        return EncodedRows(features, list(rows.targets), [len(row) for row in ids], rows, notes)

    def targets(self, rows: EncodedRows, indices: Sequence[int], width: int) -> torch.Tensor:
        """Return int64[len(indices), width] with IGNORED where no word begins."""
        table = np.full((len(indices), width), IGNORED, dtype=np.int64)
        for row, index in zip(table, indices):
            first = rows.notes[index]
            row[first.places] = np.asarray(rows.targets[index])[first.words]
        return torch.from_numpy(table)

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over words; 0 for a batch in which no word has a token."""
        logits = outputs.logits.float().flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return total / (targets != IGNORED).sum().clamp(min=1)

    def evaluate(self, rows: EncodedRows, answers: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
        """Return float64[R, 6 T] for T types in alphabetical order.

        For each type: correct, predicted and gold spans; correct, predicted and gold words.
        """
        decided = []
        for target, first, answer in zip(rows.targets, rows.notes, answers, strict=True):
            ids = np.full(len(target), labels.index(OUTSIDE))
            ids[first.words] = answer[first.places].argmax(axis=1)
            decided.append(ids.tolist())
        return _counted(rows.targets, decided, labels)

    def constant(self, data: TaskRows, rows: LabeledRows) -> np.ndarray:
        """Predict O for every word; every score is 0."""
        outside = data.labels.index(OUTSIDE)
        return _counted(rows.targets, [[outside] * len(target) for target in rows.targets], data.labels)

    def score(self, scored: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
        totals = scored.sum(axis=0).reshape(len(_types(labels)), 2, 3)
        precision, recall, f1 = rates(totals[:, 0].sum(axis=0))
        _, _, of_words = rates(totals[:, 1])
        return dict(zip(self.metrics, (float(f1), float(precision), float(recall), float(of_words.mean()))))


def _rows(task: Task, path: Path, sentences: Sequence[Sentence], labels: Sequence[str]) -> LabeledRows:
    known = {label: index for index, label in enumerate(labels)}
    targets = []
    for sentence in sentences:
        tags = in_iob2(sentence.tags)
        for line, tag in enumerate(tags, start=sentence.line):
            if tag not in known:
                raise UserError(
                    f"Line {line} of '{path}' has the type '{tag[2:]}', which no span of '{task.train}' has."
                    f"{nearest(tag[2:], _types(labels))}",
                    "Correct the tag, or add training sentences that have it.",
                )
        targets.append([known[tag] for tag in tags])
    return LabeledRows([sentence.words for sentence in sentences], targets)


def _first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]], left: bool) -> FirstTokens:
    """Args: the words of the text, joined by spaces; (begin, end) in it of each token, where special ones are empty."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    begin, end = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    tokens = np.flatnonzero(end > begin)
    # A token belongs to the word in which it ends; the space before a word, if it is a token of its own, to that word.
    found, first = np.unique(np.searchsorted(ends, end[tokens]), return_index=True)
    return FirstTokens(found, tokens[first] - (len(offsets) if left else 0))


def _types(labels: Sequence[str]) -> list[str]:
    return sorted({label[2:] for label in labels if label != OUTSIDE})


def _counted(targets: Sequence[Sequence[int]], decided: Sequence[Sequence[int]], labels: Sequence[str]) -> np.ndarray:
    types = _types(labels)
    table = np.zeros((len(targets), len(types), 2, 3))
    for row, gold, answer in zip(table, targets, decided, strict=True):
        tags = [labels[index] for index in gold], [labels[index] for index in answer]
        row[:, 0], row[:, 1] = span_counts(*tags, types), word_counts(*tags, types)
    return table.reshape(len(targets), -1)


# ---------------------------------------------------------------- files in the format of CoNLL

DOCUMENT = "-DOCSTART-"
BLANK = " \t\r\n"
TAG = re.compile("O|[BI]-.+")


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, their tags as in the file, and the 1-based line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


def read_sentences(path: Path, word: int, tag: int) -> list[Sentence]:
    """Read the columns ``word`` and ``tag`` (0-based) of a CoNLL file, in NFC. A byte order mark is dropped.

    A line holds one word with columns separated by tabs, or by spaces if the line has no tab. A blank line ends a
    sentence; ``-DOCSTART-`` lines separate documents. Other schemes of tags, such as BIOES, are refused.
    """
    # Only line feeds end lines: a stray carriage return must not split a word.
    with readable(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        found = list(_sentences(file, path, word, tag))
    if not found:
        raise UserError(f"'{path}' holds no sentence.", "Give a CoNLL file with at least one tagged word.")
    return found


def _sentences(file: TextIO, path: Path, word: int, tag: int) -> Iterator[Sentence]:
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(itertools.chain(file, [""]), start=1):  # a blank line ends the last sentence
        line = nfc(line.strip(BLANK) and line.strip(" \r\n"))  # a tab at the start follows an empty column
        if line and not line.startswith(DOCUMENT):
            pairs.append(_word_and_tag(line, path, number, word, tag))
        elif pairs:
            words, tags = zip(*pairs)
            yield Sentence(words, tags, number - len(pairs))
            pairs = []


def _word_and_tag(line: str, path: Path, number: int, word: int, tag: int) -> tuple[str, str]:
    columns = [cell.strip(BLANK) for cell in line.split("\t")] if "\t" in line else re.split(" +", line)
    lacking = [column for column in (word, tag) if column >= len(columns) or not columns[column]]
    if line.startswith("# ") and "\t" not in line and (lacking or not TAG.fullmatch(columns[tag])):
        raise UserError(
            f"Line {number} of '{path}' is a comment, as files in the format of CoNLL-U have them.",
            "Remove the lines that begin with '# '.",
        )
    if lacking:
        raise UserError(
            f"Line {number} of '{path}' has nothing in column {lacking[0]}: its columns are 0 to {len(columns) - 1}.",
            "Correct the line or the 0-based number of the column.",
        )
    if not TAG.fullmatch(columns[tag]):
        raise UserError(
            f"Line {number} of '{path}' has '{columns[tag]}' in column {tag}, which is not a tag.",
            "Write O, B-type or I-type, or correct the 0-based number of the column.",
        )
    return columns[word], columns[tag]


# ---------------------------------------------------------------- spans, and their precision, recall and F1


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return (type, first word, last word) of each span of one sentence."""
    found: list[tuple[str, int, int]] = []
    for place, tag in enumerate(in_iob2(tags)):
        if tag.startswith("B"):
            found.append((tag[2:], place, place))
        elif tag != OUTSIDE:
            found[-1] = (tag[2:], found[-1][1], place)
    return found


def in_iob2(tags: Sequence[str]) -> list[str]:
    """Return tags of the same spans in IOB2, where ``B`` marks the first word of each span."""
    written, before = [], OUTSIDE
    for tag in tags:
        begins = tag != OUTSIDE and (tag.startswith("B") or tag[2:] != before[2:])
        written.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return written


def span_counts(targets: Sequence[str], answers: Sequence[str], types: Sequence[str]) -> np.ndarray:
    """Return int64[types, 3]: correct, predicted and gold spans. A correct span has the right type and both ends."""
    gold, predicted = set(spans(targets)), set(spans(answers))
    return _by_type([[kind for kind, _, _ in each] for each in (gold & predicted, predicted, gold)], types)


def word_counts(targets: Sequence[str], answers: Sequence[str], types: Sequence[str]) -> np.ndarray:
    """Return int64[types, 3]: words of one sentence that are correctly, predicted and gold in a span of the type."""
    gold, predicted = [tag[2:] for tag in targets], [tag[2:] for tag in answers]
    return _by_type([[p for p, g in zip(predicted, gold) if p == g], predicted, gold], types)


def _by_type(found: Sequence[Sequence[str]], types: Sequence[str]) -> np.ndarray:
    return np.array([[column.count(kind) for column in found] for kind in types], dtype=np.int64).reshape(-1, 3)


def rates(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and F1, each float64[...], of counts[..., 3]; 0.0 for a zero denominator."""
    correct, predicted, gold = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    return ratio(correct, predicted), ratio(correct, gold), ratio(2 * correct, predicted + gold)
