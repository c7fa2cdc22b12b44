"""Spans of tagged words, and what is counted from them, as conlleval and seqeval (in its default mode) do.

A tag is ``O`` or ``B-x`` or ``I-x``, where x is the type of the span. A span begins at a ``B``, and at an ``I`` that
does not go on with a span of its type; so IOB1, IOB2 and the malformed sequences of a model are all read, and no
predicted span is lost for its form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

OUTSIDE = "O"


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, last word) of each span of one sentence, from left to right."""
    found: list[tuple[str, int, int]] = []
    for place, tag in enumerate(in_iob2(tags)):
        if tag.startswith("B"):
            found.append((tag[2:], place, place))
        elif tag != OUTSIDE:
            found[-1] = (tag[2:], found[-1][1], place)
    return found


def in_iob2(tags: Sequence[str]) -> list[str]:
    """Tags for the same spans, in which each span begins with a ``B`` and only with it."""
    written, before = [], OUTSIDE
    for tag in tags:
        begins = tag != OUTSIDE and (tag.startswith("B") or tag[2:] != before[2:])
        written.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return written


def span_counts(targets: Sequence[str], answers: Sequence[str], types: Sequence[str]) -> np.ndarray:
    """int64[types, 3]: correct, predicted and gold spans of one sentence. Correct has type, first and last word."""
    gold, predicted = set(spans(targets)), set(spans(answers))
    return _by_type([[kind for kind, _, _ in each] for each in (gold & predicted, predicted, gold)], types)


def word_counts(targets: Sequence[str], answers: Sequence[str], types: Sequence[str]) -> np.ndarray:
    """int64[types, 3]: words of one sentence that are rightly, at all, and truly within a span of the type."""
    gold, predicted = [tag[2:] for tag in targets], [tag[2:] for tag in answers]
    return _by_type([[p for p, g in zip(predicted, gold) if p == g], predicted, gold], types)


def _by_type(found: Sequence[Sequence[str]], types: Sequence[str]) -> np.ndarray:
    return np.array([[column.count(kind) for column in found] for kind in types], dtype=np.int64).reshape(-1, 3)


def rates(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1, each float64[...], of counts[..., 3]; 0.0 where there is nothing to divide by."""
    correct, predicted, gold = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    return _share(correct, predicted), _share(correct, gold), _share(2 * correct, predicted + gold)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
