"""Compare two models with a paired bootstrap over rows and seeds.

Both models predict the same rows, so the difficulty of a row cancels in the difference (Koehn 2004; Berg-Kirkpatrick
et al. 2012). Each resample draws rows and seeds with replacement and computes the metric again. Both models get the
same rows and seeds, and all seeds of a resample the same rows. This gives the percentile interval (Efron and
Tibshirani 1993, ch. 13).

A bootstrap of three seeds cannot leave the range of their differences, which misses the true difference in a quarter of
all cases if rows hardly matter. From CLAIM_SEEDS seeds on, the interval therefore also contains that of Student's t
over the differences of the seeds.

Limits: with one seed the interval covers only the rows. If seeds hardly differ it is too wide, because noise in single
predictions is drawn with rows and with seeds (Owen 2007, the pigeonhole bootstrap). It treats the rows as a sample of
the task's texts and says nothing about other tasks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from daybreak.core.errors import UserError
from daybreak.evaluation.scoring.metrics import ratio
from daybreak.schemas.tasks import CLAIM_SEEDS, Comparison, FinetuningRun, spread

RESAMPLES = 2000
SEED = 0
"""Seed of the resamples."""
CONFIDENCE = 0.95
DIGITS = 12
"""Decimals of a difference. Equal scores must give 0 exactly, because the verdict asks whether the interval holds 0."""
AT_ONCE = 50_000
"""Entries of the largest array (rows x resamples): 0.4 MB, which fits a CPU cache."""

Recount = Callable[[np.ndarray], np.ndarray]
"""Maps how often each of R rows was drawn in each of B resamples, float64[R, B], to the metric, float64[B]."""


def compare(
    a: Sequence[FinetuningRun],
    b: Sequence[FinetuningRun],
    model_a: str,
    model_b: str,
    *,
    kind: str,
    metric: str,
    classes: int = 0,
) -> Comparison:
    """Compare model B with model A on one task and protocol, on the seeds that both have.

    Args:
        a, b: one run per seed, each with one setting.
        model_a, model_b: names of the models.
        kind: kind of the task, a name of ``kinds.KINDS``.
        metric: as in ``TaskResult.metric``: a prefix ``test_`` or ``mismatched_`` names the part of the task.
        classes: number of the task's labels.

    Raises:
        UserError: there is no common seed, the models were evaluated on different rows, or rows do not give the metric.
    """
    first, second = ({run.seed: run for run in runs} for runs in (a, b))
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        raise UserError(
            "The two models have no seed in common, so they cannot be compared in pairs.",
            "Evaluate both with the same --seeds.",
        )
    part, name = _part(metric)
    tables = [[_table(side[seed], part) for seed in seeds] for side in (first, second)]
    _check_same_rows(kind, [table for side in tables for table in side])
    counts = [[recount(kind, name, table, classes) for table in side] for side in tables]
    rows = len(tables[0][0])
    whole = np.ones((rows, 1))
    here, there = ([float(count(whole)[0]) for count in side] for side in counts)
    differences = _differences(counts, rows)
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    if len(seeds) >= CLAIM_SEEDS and (ends := t_interval([after - before for before, after in zip(here, there)])):
        low, high = min(low, ends[0]), max(high, ends[1])
    sample = first[seeds[0]]
    return Comparison(
        task=sample.task,
        protocol=sample.protocol,
        metric=metric,
        model_a=model_a,
        model_b=model_b,
        seeds=seeds,
        rows=rows,
        a=float(np.mean(here)),
        b=float(np.mean(there)),
        spread=max(spread(here), spread(there)),
        low=float(low),
        high=float(high),
        better=float(np.mean(differences > 0) + np.mean(differences == 0) / 2),
    )


def lead_interval(
    runs: Sequence[FinetuningRun], baseline: list[list[float]], *, kind: str, metric: str, classes: int = 0
) -> list[float]:
    """Return both ends of the 95 % interval by which runs are above a baseline without seeds, as ``compare`` finds it.

    Args:
        runs, kind, metric, classes: as for ``compare``.
        baseline: the values of each row as in ``FinetuningRun.scored_rows``.
    """
    part, _ = _part(metric)
    against = [replace(run, scored_rows={part: baseline}) for run in runs]
    found = compare(against, runs, "baseline", "encoder", kind=kind, metric=metric, classes=classes)
    return [found.low, found.high]


def t_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of differences, by Student's t; None for fewer than two of them.

    Its factor is 12.7 for two differences, 4.3 for three and 2.8 for five.
    """
    if len(differences) < 2:
        return None
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1) * spread(differences) / math.sqrt(len(differences))
    middle = statistics.fmean(differences)
    return float(middle - reach), float(middle + reach)


def _differences(counts: list[list[Recount]], rows: int) -> np.ndarray:
    """Return float64[RESAMPLES]: mean of B minus mean of A over the drawn seeds, on the drawn rows."""
    rng = np.random.default_rng(SEED)
    seeds = len(counts[0])
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds
    found = []
    step = max(1, AT_ONCE // rows)
    for start in range(0, RESAMPLES, step):
        weights = _row_counts(rng, min(step, RESAMPLES - start), rows)
        by_seed = np.stack([there(weights) - here(weights) for here, there in zip(*counts)], axis=1)
        found.append((by_seed * drawn[start : start + step]).sum(axis=1))
    return np.round(np.concatenate(found), DIGITS)


def _row_counts(rng: np.random.Generator, resamples: int, rows: int) -> np.ndarray:
    """Return float64[rows, resamples]: how often each row was drawn in each resample."""
    places = rng.integers(0, rows, (rows, resamples)) * resamples + np.arange(resamples)
    return np.bincount(places.ravel(), minlength=rows * resamples).reshape(rows, resamples).astype(np.float64)


def _part(metric: str) -> tuple[str, str]:
    for part in ("test", "mismatched"):
        if metric.startswith(f"{part}_"):
            return part, metric.removeprefix(f"{part}_")
    return "dev", metric


def _table(run: FinetuningRun, part: str) -> np.ndarray:
    if not run.scored_rows.get(part):
        raise UserError(f"The runs of {run.task} keep no {part} rows of {run.model_name}.", "Evaluate it again.")
    return np.asarray(run.scored_rows[part], dtype=np.float64)


def _check_same_rows(kind: str, tables: Sequence[np.ndarray]) -> None:
    if len({len(table) for table in tables}) > 1:
        sizes = " and ".join(f"{size:,}" for size in sorted({len(table) for table in tables}))
        raise UserError(
            f"The two models were evaluated on different numbers of rows, {sizes}.", "Evaluate both on the same files."
        )
    first, *others = (_targets(kind, table) for table in tables)
    if any(not np.array_equal(other, first) for other in others):
        raise UserError(
            "The two models were evaluated on rows with different targets.", "Evaluate both on the same files."
        )


def _targets(kind: str, table: np.ndarray) -> np.ndarray:
    """Return the columns that do not depend on the model; none for question answering, which keeps only scores."""
    if kind == "qa":
        return table[:, :0]
    return table[:, 2::3] if kind == "tokens" else table[:, 0]


def recount(kind: str, metric: str, table: np.ndarray, classes: int = 0) -> Recount:
    """Return the function that computes ``metric`` on any resample of ``table`` (columns as in ``Kind.columns``)."""
    targets, answers = table[:, 0], table[:, 1]
    match kind, metric:
        case "regression", "pearson":
            return _pearson(targets, answers)
        case "regression", "spearman":
            return _spearman(targets, answers)
        case "classification", "auc":
            return _area(targets, table[:, 2])
        case ("classification", "accuracy" | "micro_f1") | ("choice", "accuracy"):
            return _mean(targets == answers)
        case "classification", "f1" | "macro_f1" | "mcc":
            return _from_counts(_FROM_COUNTS[metric], targets.astype(int), answers.astype(int), classes)
        case "tokens", "span_f1" | "span_precision" | "span_recall" | "token_macro_f1":
            return _of_tokens(metric, table)
        case "qa", "exact" | "f1":
            return _mean(table[:, ("exact", "f1").index(metric)])
    raise UserError(
        f"The metric {metric} of a task of the kind {kind} cannot be computed on resampled rows.",
        "Compare the scores in the table of results.",
    )


def _mean(values: np.ndarray) -> Recount:
    return lambda drawn: values.astype(np.float64) @ drawn / len(values)


def _from_counts(
    value: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    targets: np.ndarray,
    answers: np.ndarray,
    classes: int,
) -> Recount:
    """Return a metric of three counts per class, float64[C, B]: target, predicted, and both."""
    every = np.eye(classes)
    gold, given = every[:, targets], every[:, answers]
    both = gold * given
    return lambda drawn: value(gold @ drawn, given @ drawn, both @ drawn)


def _positive_f1(gold: np.ndarray, given: np.ndarray, both: np.ndarray) -> np.ndarray:
    return ratio(2 * both[1], gold[1] + given[1])


def _macro_f1(gold: np.ndarray, given: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Return the mean over the classes that occur on either side."""
    return ratio(ratio(2 * both, gold + given).sum(axis=0), (gold + given > 0).sum(axis=0))


def _matthews(gold: np.ndarray, given: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Return the correlation for any number of classes (Gorodkin 2004); 0 where either side is constant."""
    rows = gold.sum(axis=0)
    shared = both.sum(axis=0) * rows - (gold * given).sum(axis=0)
    own = (rows**2 - (gold**2).sum(axis=0)) * (rows**2 - (given**2).sum(axis=0))
    return ratio(shared, np.sqrt(own))


_FROM_COUNTS = {"f1": _positive_f1, "macro_f1": _macro_f1, "mcc": _matthews}


def _of_tokens(metric: str, table: np.ndarray) -> Recount:
    """Compute from the sums of correct, predicted and gold spans, or of words by type."""
    types = table.shape[1] // 6
    columns = np.ascontiguousarray(table.T)

    def count(drawn: np.ndarray) -> np.ndarray:
        sums = (columns @ drawn).reshape(types, 2, 3, -1)
        if metric == "token_macro_f1":
            correct, predicted, gold = sums[:, 1].swapaxes(0, 1)
            return np.asarray(ratio(2 * correct, predicted + gold).mean(axis=0))
        correct, predicted, gold = sums[:, 0].sum(axis=0)
        pairs = {"span_precision": (correct, predicted), "span_recall": (correct, gold)}
        return ratio(*pairs.get(metric, (2 * correct, predicted + gold)))

    return count


def _pearson(x: np.ndarray, y: np.ndarray) -> Recount:
    x, y = x - x.mean(), y - y.mean()
    columns = np.stack([x, y, x * x, y * y, x * y])

    def count(drawn: np.ndarray) -> np.ndarray:
        mean_x, mean_y, square_x, square_y, product = columns @ drawn / len(x)
        own_x, own_y = square_x - mean_x**2, square_y - mean_y**2
        # A constant has a variance near 0 because of rounding.
        own = np.where((own_x > 1e-12 * square_x) & (own_y > 1e-12 * square_y), own_x * own_y, 0)
        return ratio(product - mean_x * mean_y, np.sqrt(own))

    return count


def _spearman(x: np.ndarray, y: np.ndarray) -> Recount:
    rank_x, rank_y = _ranks(x), _ranks(y)
    middle = (len(x) + 1) / 2

    def count(drawn: np.ndarray) -> np.ndarray:
        by_x, by_y = rank_x(drawn) - middle, rank_y(drawn) - middle
        own = _dot(drawn * by_x, by_x) * _dot(drawn * by_y, by_y)
        return ratio(_dot(drawn * by_x, by_y), np.sqrt(own))

    return count


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("rb,rb->b", a, b))


def _ranks(values: np.ndarray) -> Recount:
    """Ranks of the rows within each resample, equal ones sharing their mean rank: float64[R, B].

    How often each row was drawn is enough to know its rank, so no resample is sorted.
    """
    order = np.argsort(values, kind="stable")
    distinct, group = np.unique(values, return_inverse=True)
    starts = np.searchsorted(values[order], distinct)

    def count(drawn: np.ndarray) -> np.ndarray:
        alike = np.add.reduceat(drawn[order], starts, axis=0)
        return np.asarray((alike.cumsum(axis=0) - (alike - 1) / 2)[group])

    return count


def _area(targets: np.ndarray, leads: np.ndarray) -> Recount:
    """Area under the ROC curve (Mann and Whitney 1947); 0.5 where all rows drawn have one label."""
    ranks = _ranks(leads)

    def count(drawn: np.ndarray) -> np.ndarray:
        positive = drawn * targets[:, None]
        many = positive.sum(axis=0)
        pairs = many * (len(targets) - many)
        above = _dot(positive, ranks(drawn)) - many * (many + 1) / 2
        return np.divide(above, pairs, out=np.full(len(pairs), 0.5), where=pairs > 0)

    return count
