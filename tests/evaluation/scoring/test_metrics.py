"""Scores equal scikit-learn's and scipy's, and constant answers have a score that is a number."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference

from daybreak.evaluation.scoring.metrics import (
    METRICS,
    calibration_error,
    classification_scores,
    most_frequent,
    ratio,
    regression_scores,
)

NUMBERS = st.floats(-100, 100, allow_nan=False, width=32)


@settings(max_examples=40)
@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), min_size=1))
    )
)
def test_classification_equals_scikit_learn(case: tuple[int, list[tuple[int, int]]]) -> None:
    classes, pairs = case
    targets, answers = (list(side) for side in zip(*pairs))
    found = classification_scores(classes, targets, answers)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(targets, answers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rows that all have one label
        expected = reference.matthews_corrcoef(targets, answers)
    assert found["mcc"] == pytest.approx(expected)
    each = reference.f1_score(targets, answers, labels=range(classes), average=None, zero_division=0)
    assert found["macro_f1"] == pytest.approx(reference.f1_score(targets, answers, average="macro", zero_division=0))
    assert found["micro_f1"] == pytest.approx(reference.f1_score(targets, answers, average="micro"))
    assert found.get("f1") == (pytest.approx(each[1]) if classes == 2 else None)
    assert set(found) <= set(METRICS["classification"])
    assert all(map(math.isfinite, found.values()))


def test_labels_that_do_not_occur_do_not_lower_the_macro_f1() -> None:
    assert classification_scores(3, [0, 1, 1], [0, 1, 1])["macro_f1"] == 1.0


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), NUMBERS), min_size=1, max_size=50))
def test_the_area_under_the_curve_is_of_what_orders_the_rows(rows: list[tuple[bool, float]]) -> None:
    targets, leads = [int(target) for target, _ in rows], [lead for _, lead in rows]
    found = classification_scores(2, targets, [int(lead > 0) for lead in leads], leads)
    if len(set(targets)) == 2:
        assert found["auc"] == pytest.approx(reference.roc_auc_score(targets, leads))
    else:
        assert found["auc"] == 0.5
    assert set(found) == set(METRICS["classification"])


def test_a_ratio_is_zero_where_its_denominator_is() -> None:
    assert ratio(np.array([1.0, 0.25, 2.0, 0.0]), np.array([2.0, 0.5, 0.0, 0.0])).tolist() == [0.5, 0.5, 0.0, 0.0]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=50))
def test_regression_equals_scipy_and_is_never_nan(pairs: list[tuple[float, float]]) -> None:
    targets, answers = (list(side) for side in zip(*pairs))
    found = regression_scores(targets, answers)
    assert set(found) == set(METRICS["regression"])
    for name, function in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        if np.ptp(targets) == 0 or np.ptp(answers) == 0:
            assert found[name] == 0.0
        elif np.std(targets) > 1e-3 and np.std(answers) > 1e-3:
            assert found[name] == pytest.approx(function(targets, answers).statistic, abs=1e-9)
        assert -1.0001 <= found[name] <= 1.0001


def test_a_constant_answer_scores_zero_where_it_is_undefined() -> None:
    assert classification_scores(2, [0, 1, 1], [1, 1, 1])["mcc"] == 0.0
    assert regression_scores([0.5, 1.5], [1.0, 1.0]) == {"pearson": 0.0, "spearman": 0.0}


def test_a_constant_answer_is_the_most_frequent_label_but_for_f1() -> None:
    assert most_frequent([2, 0, 2, 1]) == 2
    assert most_frequent([1, 0, 0, 1], "accuracy") == 0
    assert most_frequent([0, 0, 1], "f1") == 1, "the other constant scores 0"


# Two bins that are merged by mistake cancel: one is right and one wrong. Upper ends belong to their bin.
@example([((place + 0.5) / 15, place % 2 == 0) for place in range(15)])
@example([(place / 15, place % 2 == 0) for place in range(1, 16)])
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_calibration_error_equals_its_definition(rows: list[tuple[float, bool]]) -> None:
    """Guo et al. 2017, equation 5, bin by bin: bin m holds the confidences in ((m - 1) / 15, m / 15]."""
    expected = 0.0
    for place in range(15):
        inside = [(c, r) for c, r in rows if min(max(math.ceil(c * 15), 1), 15) == place + 1]
        if inside:
            accuracy = sum(right for _, right in inside) / len(inside)
            confidence = sum(c for c, _ in inside) / len(inside)
            expected += len(inside) / len(rows) * abs(accuracy - confidence)
    confidences, right = (np.array(side) for side in zip(*rows))
    assert calibration_error(confidences.astype(float), right) == pytest.approx(expected, abs=1e-12)
