"""Spans of tagged words and their precision, recall and F1, as conlleval and seqeval (default mode) compute them.

A tag is ``O``, ``B-x`` or ``I-x``, where x is the type of the span. A span begins at a ``B``, and at an ``I`` that does
not continue a span of its type. This reads IOB1, IOB2 and the malformed sequences of a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

OUTSIDE = "O"


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
    return (
        _ratio(correct, predicted),
        _ratio(correct, gold),
        _ratio(2 * correct, predicted + gold),
    )


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
