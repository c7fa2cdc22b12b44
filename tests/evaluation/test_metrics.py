"""Scores equal scikit-learn's and scipy's, and constant answers have a score that is a number."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import softmax
from sklearn import metrics as reference

from daybreak.evaluation.finetune import chances
from daybreak.evaluation.metrics import METRICS, constant_answer, score

NUMBERS = st.floats(-100, 100, allow_nan=False, width=32)


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), min_size=1))
    )
)
def test_classification_equals_scikit_learn(case: tuple[int, list[tuple[int, int]]]) -> None:
    classes, pairs = case
    targets, answers = (list(side) for side in zip(*pairs))
    found = score("classification", classes, targets, answers)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(targets, answers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rows that all have one label
        expected = reference.matthews_corrcoef(targets, answers)
    assert found["mcc"] == pytest.approx(expected)
    each = reference.f1_score(targets, answers, labels=range(classes), average=None, zero_division=0)
    assert found["macro_f1"] == pytest.approx(np.mean(each))
    assert found["micro_f1"] == pytest.approx(reference.f1_score(targets, answers, average="micro"))
    assert found.get("f1") == (pytest.approx(each[1]) if classes == 2 else None)
    assert set(found) <= set(METRICS["classification"])
    assert all(map(math.isfinite, found.values()))


@given(st.lists(st.tuples(st.booleans(), NUMBERS, NUMBERS), min_size=1, max_size=50))
def test_the_area_under_the_curve_is_of_chances_not_answers(rows: list[tuple[bool, float, float]]) -> None:
    targets = [int(target) for target, _, _ in rows]
    logits = np.array([row[1:] for row in rows], dtype=np.float32)
    of_one = chances(logits)
    assert of_one is not None
    np.testing.assert_allclose(of_one, softmax(logits.astype(np.float64), axis=1)[:, 1], rtol=1e-9)
    found = score("classification", 2, targets, logits.argmax(axis=1).tolist(), of_one)
    if len(set(targets)) == 2:
        assert found["auc"] == pytest.approx(reference.roc_auc_score(targets, of_one))
    else:
        assert found["auc"] == 0.5
    assert set(found) == set(METRICS["classification"])


def test_auc_ranks_what_argmax_cannot_tell_apart() -> None:
    logits = np.array([[2.0, 0.0], [2.0, 1.0], [0.0, 20.0], [0.0, 21.0]], dtype=np.float32)
    found = score("classification", 2, [0, 1, 0, 1], logits.argmax(axis=1).tolist(), chances(logits))
    assert found["accuracy"] == 0.5
    assert found["auc"] == 0.75, "answers alone would give 0.5, chances in float32 0.625"
    assert chances(np.zeros((3, 1), dtype=np.float32)) is None
    assert chances(np.zeros((3, 4), dtype=np.float32)) is None


def test_auc_of_a_constant_answer_is_one_half() -> None:
    assert score("classification", 2, [0, 1, 1], [1, 1, 1], [1, 1, 1])["auc"] == 0.5


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=50))
def test_regression_equals_scipy_and_is_never_nan(pairs: list[tuple[float, float]]) -> None:
    targets, answers = (list(side) for side in zip(*pairs))
    found = score("regression", 0, targets, answers)
    assert set(found) == set(METRICS["regression"])
    for name, function in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        if np.ptp(targets) == 0 or np.ptp(answers) == 0:
            assert found[name] == 0.0
        elif np.std(targets) > 1e-3 and np.std(answers) > 1e-3:
            assert found[name] == pytest.approx(function(targets, answers).statistic, abs=1e-9)
        assert -1.0001 <= found[name] <= 1.0001


def test_a_constant_answer_scores_zero_where_it_is_undefined() -> None:
    assert score("classification", 2, [0, 1, 1], [1, 1, 1])["mcc"] == 0.0
    assert score("regression", 0, [0.5, 1.5], [1.0, 1.0]) == {"pearson": 0.0, "spearman": 0.0}


def test_constant_answer_is_the_commonest_label_or_the_mean() -> None:
    assert constant_answer("classification", [2, 0, 2, 1]) == 2
    assert constant_answer("regression", [1.0, 2.0, 6.0]) == 3.0
    assert constant_answer("classification", [0, 0, 1], "accuracy") == 0
    assert constant_answer("classification", [0, 0, 1], "f1") == 1, "the other constant scores 0"
