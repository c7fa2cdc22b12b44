"""The paired bootstrap: its metrics are those of the libraries, its interval covers, and it is fair to both sides."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from small_tasks import run

from daybreak.core.errors import UserError
from daybreak.evaluation.scoring import resampling
from daybreak.evaluation.scoring.metrics import METRICS, classification_scores, regression_scores
from daybreak.evaluation.scoring.resampling import _differences, compare, recount
from daybreak.evaluation.tasks.kinds import KINDS
from daybreak.evaluation.tasks.questions import Questions
from daybreak.evaluation.tasks.token_labels import TokenLabels

TAGS = ("B-dose", "B-drug", "I-dose", "I-drug", "O")


def cells(tables, part="dev"):
    """One cell a seed."""
    return [run(seed=n, scored_rows={part: np.asarray(table, float).tolist()}) for n, table in enumerate(tables)]


def compared(a, b, **ask):
    return compare(a, b, "A", "B", **ask)


def drawn_rows(chance, rows):
    """A few resamples, as row numbers and as counts: float64[rows, 3]."""
    places = chance.integers(0, rows, (3, rows))
    return places, np.stack([np.bincount(each, minlength=rows) for each in places], axis=1).astype(float)


def answers(chance, rows, classes, right=0.6):
    """Targets, answers and chances of label 1, with many equal ones."""
    targets = chance.integers(0, classes, rows)
    given = np.where(chance.random(rows) < right, targets, chance.integers(0, classes, rows))
    return np.stack([targets, given, np.round(chance.random(rows), 1)], axis=1)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40), classes=st.integers(2, 4))
def test_classification_is_counted_again_as_scikit_learn_counts(seed, rows, classes):
    chance = np.random.default_rng(seed)
    table = answers(chance, rows, classes)
    places, counts = drawn_rows(chance, rows)
    for metric in METRICS["classification"]:
        if metric in ("f1", "auc") and classes > 2:
            continue
        found = recount("classification", metric, table, classes)(counts)
        wanted = []
        for each in places:
            targets, given, chances = table[each].T.tolist()
            wanted.append(classification_scores(classes, targets, given, chances if classes == 2 else None)[metric])
        assert found == pytest.approx(wanted, abs=1e-12), metric


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40), digits=st.integers(0, 6), shift=st.sampled_from([0, 90])
)
def test_correlations_are_counted_again_as_scipy_counts(seed, rows, digits, shift):
    chance = np.random.default_rng(seed)
    x = chance.normal(size=rows)
    table = np.round(np.stack([x, x + chance.normal(size=rows)], axis=1), digits) + shift
    places, counts = drawn_rows(chance, rows)
    for metric in METRICS["regression"]:
        found = recount("regression", metric, table)(counts)
        wanted = [regression_scores(*table[each].T.tolist())[metric] for each in places]
        assert found == pytest.approx(wanted, abs=1e-9), metric


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 20))
def test_tokens_and_questions_are_counted_again_as_their_kinds_count(seed, rows):
    chance = np.random.default_rng(seed)
    parts = chance.integers(0, 3, (rows, 2, 2, 3))
    correct = np.minimum(parts[..., 1], parts[..., 2]) * (parts[..., :1].squeeze(-1) > 0)
    tokens = np.concatenate([correct[..., None], parts[..., 1:]], axis=-1).reshape(rows, 12).astype(float)
    exact = chance.integers(0, 2, rows)
    questions = np.stack([exact, np.maximum(exact, chance.random(rows))], axis=1)
    places, counts = drawn_rows(chance, rows)
    for kind, table, labels in ((TokenLabels(), tokens, TAGS), (Questions(), questions, ())):
        for metric in kind.metrics:
            found = recount(kind.name, metric, table)(counts)
            assert found == pytest.approx([kind.score(table[each], labels)[metric] for each in places], abs=1e-12)


def test_every_metric_of_every_kind_can_be_counted_again():
    for kind in KINDS.values():
        for metric in kind.metrics:
            assert callable(recount(kind.name, metric, np.zeros((4, 6)), 2)), (kind.name, metric)


@pytest.mark.parametrize("metric", ["accuracy", "mcc", "macro_f1", "auc"])
def test_a_model_is_no_better_than_itself(metric):
    tables = [answers(np.random.default_rng(seed), 120, 2) for seed in range(3)]
    for table in tables:
        table[:, 0] = tables[0][:, 0]
    found = compared(cells(tables), cells(tables), kind="classification", metric=metric, classes=2)
    assert found.a == found.b and (found.low, found.high, found.better) == (0.0, 0.0, 0.5)
    assert found.verdict == "no difference shown"


def test_to_swap_the_sides_is_to_mirror_the_answer():
    chance = np.random.default_rng(4)
    targets = chance.integers(0, 3, 150)
    a, b = (
        [np.stack([targets, np.where(chance.random(150) < right, targets, 0)], axis=1) for _ in range(3)]
        for right in (0.7, 0.4)
    )
    ask = {"kind": "classification", "metric": "mcc", "classes": 3}
    one, other = compare(cells(a), cells(b), "x", "y", **ask), compare(cells(b), cells(a), "y", "x", **ask)
    assert (one.a, one.b, one.model_a, one.model_b) == (other.b, other.a, other.model_b, other.model_a)
    assert (one.low, one.high, one.better) == pytest.approx((-other.high, -other.low, 1 - other.better), abs=1e-12)
    assert one.high < 0 and one.verdict == "A is better" and other.verdict == "B is better"
    assert one == compare(cells(a), cells(b), "x", "y", **ask), "the same question has the same answer"


def test_a_difference_within_the_spread_over_seeds_makes_no_claim():
    def answered(right):
        """2,000 rows, the first ``right`` of them answered correctly."""
        return [[1.0, float(row < right), 0.5] for row in range(2000)]

    a, b = ([answered(right) for right in side] for side in ((1200, 1240, 1280), (1220, 1260, 1300)))
    found = compared(cells(a), cells(b), kind="classification", metric="accuracy", classes=2)
    assert (found.a, found.b, found.spread) == pytest.approx((0.62, 0.63, 0.02))
    assert found.low > 0 and found.verdict == "B is ahead by no more than the standard deviation, no claim"


def test_seeds_that_cancel_leave_a_difference_of_exactly_zero():
    """+1, +1 and -2 rows of 20: a third of each adds up to 0 only up to rounding."""

    def answered(right):
        return [[1.0, float(row < right), 0.5] for row in range(20)]

    a, b = ([answered(right) for right in side] for side in ((10, 10, 12), (11, 11, 10)))
    counts = [[recount("classification", "accuracy", np.array(table), 2) for table in side] for side in (a, b)]
    found = _differences(counts, 20)
    assert not ((found != 0) & (abs(found) < 1e-9)).any() and (found == 0).any()


def simulated(chance, rows, seeds, spread, ability):
    """Rows differ in how hard they are, for both models alike; models differ in ability, and each seed a little."""
    hard = chance.normal(size=rows)
    sides = []
    for middle in ability:
        able = middle + spread * chance.normal(size=seeds)
        right = hard + chance.normal(size=(seeds, rows)) < math.sqrt(2) * able[:, None]
        sides.append([np.stack([np.zeros(rows), ~each], axis=1) for each in right])
    return sides


@pytest.mark.parametrize(("spread", "least", "most"), [(0.0, 0.95, 1.0), (0.12, 0.93, 1.0), (0.6, 0.9, 1.0)])
def test_the_interval_covers_the_true_difference(monkeypatch, spread, least, most):
    """Three seeds that are alike, that move the accuracy of 300 rows as much as the rows do, and that decide it."""
    monkeypatch.setattr(resampling, "RESAMPLES", 300)
    chance = np.random.default_rng(5)
    ability = (0.3, 0.5)
    low, high = (norm.cdf(each / math.sqrt(1 + spread**2)) for each in ability)
    covered = []
    for _ in range(120):
        a, b = simulated(chance, 300, 3, spread, ability)
        found = compared(cells(a), cells(b), kind="classification", metric="accuracy", classes=2)
        covered.append(found.low <= high - low <= found.high)
    assert least <= np.mean(covered) <= most


def test_common_seeds_and_the_named_part_are_compared():
    tables = [answers(np.random.default_rng(1), 50, 2)] * 3
    found = compared(
        cells(tables, "test"), cells(tables, "test")[1:], kind="classification", metric="test_accuracy", classes=2
    )
    assert found.seeds == [1, 2] and found.rows == 50 and found.metric == "test_accuracy"


def test_what_is_no_pair_is_refused():
    table = answers(np.random.default_rng(1), 50, 2)
    other = np.column_stack([1 - table[:, 0], table[:, 1:]])
    ask = {"kind": "classification", "metric": "accuracy", "classes": 2}
    for b, said in (
        ([dataclasses.replace(cells([table])[0], seed=9)], "no seed in common"),
        (cells([table[:40]]), "different numbers of rows, 40 and 50"),
        (cells([other]), "different targets"),
        (cells([table], part="test"), "keep no dev rows"),
    ):
        with pytest.raises(UserError, match=said):
            compared(cells([table]), b, **ask)
    with pytest.raises(UserError, match="cannot be computed on resampled rows"):
        compared(cells([table]), cells([table]), kind="classification", metric="nll", classes=2)
