"""Spans and their counts equal seqeval's, on sound and on malformed sequences of tags."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from sklearn.metrics import f1_score

from daybreak.evaluation.tasks.spans import in_iob2, rates, span_counts, spans, word_counts

TYPES = ["Gene", "a-b", "x"]
TAGS = st.sampled_from(["O", *(f"{mark}-{kind}" for mark in "BI" for kind in TYPES)])
PAIRS = st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=12), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-x I-x O", [("x", 1, 2)]),
        ("I-x I-x", [("x", 0, 1)]),
        ("B-x B-x I-x", [("x", 0, 0), ("x", 1, 2)]),
        ("B-x I-y I-y", [("x", 0, 0), ("y", 1, 2)]),
        ("O O", []),
        ("B-a-b I-a-b I-a", [("a-b", 0, 1), ("a", 2, 2)]),
    ],
)
def test_spans_are_read_leniently(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert spans(tags.split()) == expected


@given(st.lists(TAGS))
def test_spans_equal_seqeval(tags: list[str]) -> None:
    assert spans(tags) == get_entities(tags)


@given(st.lists(TAGS))
def test_the_same_spans_are_written_in_iob2(tags: list[str]) -> None:
    written = in_iob2(tags)
    assert spans(written) == spans(tags)
    assert sum(tag.startswith("B") for tag in written) == len(spans(tags))
    assert [tag[2:] for tag in written] == [tag[2:] for tag in tags]
    assert in_iob2(written) == written


@given(PAIRS)
def test_rates_equal_seqeval_in_all_and_by_type(sentences: list[list[tuple[str, str]]]) -> None:
    gold, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    counts = np.sum([span_counts(g, p, TYPES) for g, p in zip(gold, predicted)], axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about types without a span
        expected = [f(gold, predicted) for f in (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)]
        each = precision_recall_fscore_support(gold, predicted, average=None)
    assert [float(rate) for rate in rates(counts.sum(axis=0))] == pytest.approx(expected)
    seen = sorted({kind for sentence in gold + predicted for kind, _, _ in spans(sentence)})
    by_type = rates(np.array([counts[TYPES.index(kind)] for kind in seen]).reshape(-1, 3))
    for rate, reference in zip(by_type, each):
        np.testing.assert_allclose(rate, reference)
    assert [counts[TYPES.index(kind), 2] for kind in seen] == list(each[3])
    absent = [counts[TYPES.index(kind)].tolist() for kind in TYPES if kind not in seen]
    assert absent == [[0, 0, 0]] * len(absent)


@given(PAIRS)
def test_rates_of_words_equal_scikit_learn(sentences: list[list[tuple[str, str]]]) -> None:
    gold, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    counts = np.sum([word_counts(g, p, TYPES) for g, p in zip(gold, predicted)], axis=0)
    flat = [[tag[2:] for sentence in side for tag in sentence] for side in (gold, predicted)]
    expected = f1_score(*flat, labels=TYPES, average=None, zero_division=0)
    np.testing.assert_allclose(rates(counts)[2], expected)


def test_nothing_to_divide_by_is_zero() -> None:
    for counts in ([0, 0, 0], [0, 3, 0], [0, 0, 3]):
        assert [float(rate) for rate in rates(np.array(counts))] == [0.0, 0.0, 0.0]
