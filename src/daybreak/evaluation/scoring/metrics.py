"""Metrics of predictions from scikit-learn and scipy; constant predictions never give NaN."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, roc_auc_score

TWO_LABELS = ("f1", "auc")
"""Metrics for two labels only; label id 1 is the positive one."""
METRICS = {
    "classification": ("accuracy", "macro_f1", "micro_f1", "mcc", *TWO_LABELS),
    "regression": ("pearson", "spearman"),
}
"""Metrics by kind of task. With one label per row, ``micro_f1`` equals accuracy; papers use both names."""


def classification_scores(
    classes: int, targets: Sequence[float], answers: Sequence[float], leads: Sequence[float] | None = None
) -> dict[str, float]:
    """Return every metric of classification, by name.

    Args:
        classes: number of labels.
        targets, answers: class ids, one per row, at least one row.
        leads: for two labels, a score of label id 1 per row, such as its probability; required for ``auc``.

    Returns:
        Fractions in [0, 1]. ``macro_f1`` is the mean over the labels that occur among targets or answers, as in
        scikit-learn; ``mcc`` (Matthews 1975) in [-1, 1], 0.0 if either side is constant. ``auc``, the area under
        the ROC curve, is 0.5 if all rows have one label.
    """
    scores = {
        "accuracy": float(accuracy_score(targets, answers)),
        "macro_f1": float(f1_score(targets, answers, average="macro", zero_division=0)),
        "micro_f1": float(f1_score(targets, answers, labels=range(classes), average="micro", zero_division=0)),
        "mcc": _matthews(targets, answers),
    }
    if classes == 2:
        scores["f1"] = float(f1_score(targets, answers, labels=[0, 1], pos_label=1, zero_division=0))
        if leads is not None:
            scores["auc"] = float(roc_auc_score(targets, leads)) if len(set(targets)) == 2 else 0.5
    return scores


def regression_scores(targets: Sequence[float], answers: Sequence[float]) -> dict[str, float]:
    """Return both correlations, in [-1, 1]; 0.0 if either side is constant."""
    return {
        "pearson": _correlation(stats.pearsonr, targets, answers),
        "spearman": _correlation(stats.spearmanr, targets, answers),
    }


def _matthews(targets: Sequence[float], answers: Sequence[float]) -> float:
    # scikit-learn also returns 0.0 here, with a warning.
    if len(set(targets)) < 2 or len(set(answers)) < 2:
        return 0.0
    return float(matthews_corrcoef(targets, answers))


def _correlation(function, targets: Sequence[float], answers: Sequence[float]) -> float:  # type: ignore[no-untyped-def]
    if len(set(targets)) < 2 or len(set(answers)) < 2:
        return 0.0
    with warnings.catch_warnings():
        # Nearly constant predictions are a property of the model, not an error in the input.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        value = float(function(targets, answers).statistic)
    return value if np.isfinite(value) else 0.0


def most_frequent(targets: Sequence[int], metric: str = "") -> int:
    """Return the best constant class id: the most frequent one (ties: the lowest).

    For the metric f1 it is label id 1, because any other constant scores 0.
    """
    return 1 if metric == "f1" else int(np.bincount(targets).argmax())


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return the ratio; 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


BINS = 15


def bin_of(confidences: np.ndarray) -> np.ndarray:
    """Return int64[N]: the bin of each value, of BINS bins of equal width over [0, 1]; upper ends are included."""
    return np.clip(np.ceil(confidences * BINS).astype(int) - 1, 0, BINS - 1)


def calibration_error(confidences: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error (Guo et al. 2017, arXiv:1706.04599, equation 5) over BINS bins.

    Args:
        confidences: float[rows] in [0, 1], the probability of the prediction.
        right: bool[rows], whether the prediction is correct.

    Returns:
        The mean distance between confidence and accuracy within a bin, weighted by rows, in [0, 1].
    """
    gaps = np.bincount(bin_of(confidences), confidences - right, BINS)
    return float(np.abs(gaps).sum() / len(confidences))
