"""Labels and numbers for sequences: judged rows say all that the metrics need, from any resample of them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.special import softmax
from sklearn import metrics as reference
from torch.nn import functional

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.classifier import load_tokenizer
from daybreak.evaluation.finetuning.jobs import DIGITS
from daybreak.evaluation.scoring.metrics import METRICS
from daybreak.evaluation.tasks.batches import EncodedRows
from daybreak.evaluation.tasks.kinds import KINDS
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows

CLASSES, NUMBERS = KINDS["classification"], KINDS["regression"]


def encoded(targets: list[float]) -> EncodedRows:
    """Rows of which only the targets matter."""
    return EncodedRows({}, targets, [1] * len(targets), LabeledRows([("",)] * len(targets), targets))


@st.composite
def labeled_logits(draw: st.DrawFn) -> tuple[list[int], np.ndarray]:
    classes, rows = draw(st.integers(2, 4)), draw(st.integers(1, 30))
    targets = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    return targets, draw(arrays(np.float32, (rows, classes), elements=st.floats(-40, 40, width=32)))


@given(labeled_logits(), st.integers(0, 99))
def test_two_classifiers_are_averaged_by_their_probabilities(case, seed) -> None:  # type: ignore[no-untyped-def]
    targets, logits = case
    labels = [str(label) for label in range(logits.shape[1])]
    other = np.random.default_rng(seed).normal(0, 3, logits.shape)
    rows = [CLASSES.evaluate(encoded(targets), list(each), labels) for each in (logits, other)]
    mean = CLASSES.mean_prediction(*rows, labels)
    assert mean is not None and mean[:, 0].tolist() == targets
    chances = (softmax(logits.astype(np.float64), axis=1) + softmax(other, axis=1)) / 2
    assert np.allclose(chances[np.arange(len(targets)), mean[:, 1].astype(int)], chances.max(axis=1))
    assert np.allclose(mean[:, 3], chances.max(axis=1))
    assert np.allclose(mean[:, 4], -np.log(chances[np.arange(len(targets)), targets]), atol=1e-6)


def test_two_regressions_are_averaged() -> None:
    rows = [NUMBERS.evaluate(encoded([1.0, 2.0]), [np.array([a]), np.array([b])], []) for a, b in ((1, 4), (3, 0))]
    mean = NUMBERS.mean_prediction(*rows, [])
    assert mean is not None and mean.tolist() == [[1.0, 2.0], [2.0, 2.0]]


@settings(max_examples=40)
@given(labeled_logits(), st.randoms(use_true_random=False))
def test_classes_are_scored_as_scikit_learn_does(case, chance) -> None:  # type: ignore[no-untyped-def]
    targets, logits = case
    labels = [str(label) for label in range(logits.shape[1])]
    judged = CLASSES.evaluate(encoded(targets), list(logits), labels)
    own = 0 if len(labels) == 2 else len(labels)
    assert judged.shape == (len(targets), len(CLASSES.columns) + own) and judged.dtype == np.float64
    chances = softmax(logits.astype(np.float64), axis=1)
    answers = chances.argmax(axis=1)
    found = CLASSES.score(judged, labels)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(targets, answers))
    wide = torch.from_numpy(logits).double()
    assert found["nll"] == pytest.approx(functional.cross_entropy(wide, torch.tensor(targets)).item(), abs=1e-9)
    if len(labels) == 2 and len(set(targets)) == 2:
        lead = logits[:, 1].astype(np.float64) - logits[:, 0]
        assert found["auc"] == pytest.approx(reference.roc_auc_score(targets, lead))
    again = judged[[chance.randrange(len(targets)) for _ in targets]]
    assert all(map(math.isfinite, CLASSES.score(again, labels).values()))


def test_sure_answers_keep_their_order_in_a_cell() -> None:
    logits = np.array([[2.0, 0.0], [2.0, 1.0], [0.0, 40.0], [0.0, 41.0]], dtype=np.float32)
    judged = CLASSES.evaluate(encoded([0, 1, 0, 1]), list(logits), ["a", "b"])
    for kept in (judged, np.round(judged, DIGITS)):
        found = CLASSES.score(kept, ["a", "b"])
        assert (found["accuracy"], found["auc"]) == (0.5, 0.75), "chances of the sure ones are all 1"


@given(arrays(np.float64, st.tuples(st.integers(1, 30), st.just(2)), elements=st.floats(-50, 50, width=32)))
def test_numbers_are_scored_as_scipy_does(table: np.ndarray) -> None:
    judged = NUMBERS.evaluate(encoded(table[:, 0].tolist()), list(table[:, 1:].astype(np.float32)), [])
    np.testing.assert_array_equal(judged, table)
    found = NUMBERS.score(judged, [])
    assert set(found) == set(METRICS["regression"])
    assert all(map(math.isfinite, found.values()))
    if table.std(axis=0).min() > 1e-3:
        assert found["pearson"] == pytest.approx(stats.pearsonr(*table.T).statistic, abs=1e-9)
        assert found["spearman"] == pytest.approx(stats.spearmanr(*table.T).statistic, abs=1e-9)


def rows_of(kind: str, metric: str, train: list[float], dev: list[float]) -> TaskRows:
    task = Task(name="t", train=Path("t"), dev=None, text=("a",), label="b", kind=kind, metric=metric)
    both = [LabeledRows([("",)] * len(targets), targets) for targets in (train, dev)]
    return TaskRows(task, ("no", "yes"), both[0], both[1], test=None, mismatched=None, skipped=0)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", {"accuracy": 0.75, "micro_f1": 0.75, "macro_f1": 3 / 7, "mcc": 0.0, "f1": 0.0, "auc": 0.5}),
        ("f1", {"accuracy": 0.25, "micro_f1": 0.25, "macro_f1": 0.2, "mcc": 0.0, "f1": 0.4, "auc": 0.5}),
    ],
)
def test_a_constant_answer_has_the_documented_scores(metric: str, expected: dict[str, float]) -> None:
    data = rows_of("classification", metric, [0, 0, 0, 1], [0, 1, 0, 0])
    assert CLASSES.score(CLASSES.constant(data, data.dev), data.labels) == pytest.approx(expected)


def test_the_mean_is_the_constant_answer_of_numbers() -> None:
    data = rows_of("regression", "pearson", [1.0, 2.0, 6.0], [1.0, 4.0])
    judged = NUMBERS.constant(data, data.dev)
    np.testing.assert_array_equal(judged, [[1.0, 3.0], [4.0, 3.0]])
    assert NUMBERS.score(judged, []) == {"pearson": 0.0, "spearman": 0.0}


def test_pairs_keep_their_specials_when_they_are_cut(encoder: Path) -> None:
    tokenizer = load_tokenizer(encoder)
    rows = LabeledRows([("sun " * 50, "rain rain"), ("sun", "rain")], [0, 1])
    found = CLASSES.encode(tokenizer, rows, 12, 200)
    assert tokenizer.convert_ids_to_tokens(found.features["input_ids"][0]) == [
        "[CLS]", *["sun"] * 7, "[SEP]", "rain", "rain", "[SEP]",
    ]  # fmt: skip
    assert found.lengths == [12, 5]
    assert set(found.features) == {"input_ids", "attention_mask"}


def test_ids_outside_the_model_are_refused(encoder: Path) -> None:
    with pytest.raises(UserError, match="but the model knows only 10 tokens"):
        CLASSES.encode(load_tokenizer(encoder), LabeledRows([("sun",)], [0]), 12, 10)


@given(labeled_logits())
def test_losses_equal_their_definitions(case: tuple[list[int], np.ndarray]) -> None:
    targets, logits = case
    rows = encoded(targets)
    everyone = range(len(targets))
    outputs = SimpleNamespace(logits=torch.from_numpy(logits))
    found = CLASSES.loss(outputs, CLASSES.targets(rows, everyone, 1)).item()
    judged = CLASSES.evaluate(rows, CLASSES.answers(outputs), [])
    assert found == pytest.approx(judged[:, 4].mean(), rel=1e-4, abs=1e-5)
    numbers = SimpleNamespace(logits=outputs.logits[:, :1])
    found = NUMBERS.loss(numbers, NUMBERS.targets(rows, everyone, 1)).item()
    expected = functional.mse_loss(numbers.logits[:, 0], torch.tensor(targets, dtype=torch.float32)).item()
    assert found == pytest.approx(expected)
