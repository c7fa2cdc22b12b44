"""Is one model better than another? A paired bootstrap over the judged rows and seeds that cells keep.

Both models answered the same rows, so most of what makes a row hard is common to both and cancels in the difference
(the paired bootstrap of Koehn 2004 and of Berg-Kirkpatrick et al. 2012). Each resample draws as many rows as there are,
with replacement, the same for both models and all seeds, and as many seeds as there are, the same for both; each metric
is counted again on what was drawn. The interval is the percentile one (Efron and Tibshirani 1993, chapter 13).

Three limits. A bootstrap sees no more seeds than were run: with one, the interval speaks of the rows alone; with three
whose own spread is as large as that of the rows, it covers the true difference about 90 times in 100, not 95 (simulated
for a test). Where seeds hardly differ it is wider than it need be, since the chance in single answers is drawn twice,
with rows and with seeds (Owen 2007, the pigeonhole bootstrap). And the rows are taken for a sample of the task's texts;
of another task nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from daybreak.core.errors import UserError
from daybreak.schemas.tasks import Cell, Comparison

RESAMPLES = 2000
SEED = 0
"""Draws rows and seeds: the same question has the same answer."""
INTERVAL = (0.025, 0.975)
AT_ONCE = 50_000
"""Entries of the largest array (rows x resamples) in memory: 0.4 MB, which stays in a cache."""

Recount = Callable[[np.ndarray], np.ndarray]
"""float64[R, B]: how often each of R rows was drawn in each of B resamples -> the metric, float64[B]."""


def compare(
    a: Sequence[Cell], b: Sequence[Cell], model_a: str, model_b: str, *, kind: str, metric: str, classes: int = 0
) -> Comparison:
    """Model B against model A on one task and protocol, on the seeds that both have.

    Args:
        a, b: one cell a seed, of one setting each.
        model_a, model_b: names of the models, for the answer.
        kind: of the task, a name of ``kinds.KINDS``.
        metric: as in ``TaskResult.metric``: a prefix ``test_`` or ``mismatched_`` names the part that is judged.
        classes: number of the task's labels.

    Raises:
        UserError: no seed is common, the models were not judged on the same rows, or the metric cannot be recounted.
    """
    first, second = ({cell.seed: cell for cell in cells} for cells in (a, b))
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
    here, there = (float(np.mean([count(whole)[0] for count in side])) for side in counts)
    differences = _differences(counts, rows)
    low, high = np.quantile(differences, INTERVAL)
    sample = first[seeds[0]]
    return Comparison(
        task=sample.task,
        protocol=sample.protocol,
        metric=metric,
        model_a=model_a,
        model_b=model_b,
        seeds=seeds,
        rows=rows,
        a=here,
        b=there,
        low=float(low),
        high=float(high),
        better=float(np.mean(differences > 0) + np.mean(differences == 0) / 2),
    )


def _differences(counts: list[list[Recount]], rows: int) -> np.ndarray:
    """float64[RESAMPLES]: mean of B less mean of A, over the seeds drawn, on the rows drawn."""
    chance = np.random.default_rng(SEED)
    seeds = len(counts[0])
    drawn = chance.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds
    found = []
    step = max(1, AT_ONCE // rows)
    for start in range(0, RESAMPLES, step):
        weights = _row_counts(chance, min(step, RESAMPLES - start), rows)
        by_seed = np.stack([there(weights) - here(weights) for here, there in zip(*counts)], axis=1)
        found.append((by_seed * drawn[start : start + step]).sum(axis=1))
    return np.concatenate(found)


def _row_counts(chance: np.random.Generator, resamples: int, rows: int) -> np.ndarray:
    """float64[rows, resamples]: how often each row comes in each resample."""
    places = chance.integers(0, rows, (rows, resamples)) * resamples + np.arange(resamples)
    return np.bincount(places.ravel(), minlength=rows * resamples).reshape(rows, resamples).astype(np.float64)


def _part(metric: str) -> tuple[str, str]:
    for part in ("test", "mismatched"):
        if metric.startswith(f"{part}_"):
            return part, metric.removeprefix(f"{part}_")
    return "dev", metric


def _table(cell: Cell, part: str) -> np.ndarray:
    if not cell.judged.get(part):
        raise UserError(
            f"The cells of {cell.task} keep no judged {part} rows of {cell.model_name}.", "Evaluate it again."
        )
    return np.asarray(cell.judged[part], dtype=np.float64)


def _check_same_rows(kind: str, tables: Sequence[np.ndarray]) -> None:
    if len({len(table) for table in tables}) > 1:
        sizes = " and ".join(f"{size:,}" for size in sorted({len(table) for table in tables}))
        raise UserError(
            f"The two models were judged on different numbers of rows, {sizes}.", "Evaluate both on the same files."
        )
    first, *others = (_asked(kind, table) for table in tables)
    if any(not np.array_equal(other, first) for other in others):
        raise UserError(
            "The two models were judged on rows with different targets.", "Evaluate both on the same files."
        )


def _asked(kind: str, table: np.ndarray) -> np.ndarray:
    """What does not hang on the model; of answers to questions nothing is kept but how good they are."""
    if kind == "qa":
        return table[:, :0]
    return table[:, 2::3] if kind == "tokens" else table[:, 0]


def recount(kind: str, metric: str, judged: np.ndarray, classes: int = 0) -> Recount:
    """How ``metric`` is counted from any resample of ``judged`` (columns as ``Kind.judged`` of that kind has them).

    Raises:
        UserError: this metric of this kind has no way to be counted from rows.
    """
    targets, answers = judged[:, 0], judged[:, 1]
    match kind, metric:
        case "regression", "pearson":
            return _pearson(targets, answers)
        case "regression", "spearman":
            return _spearman(targets, answers)
        case "classification", "auc":
            return _area(targets, judged[:, 2])
        case ("classification", "accuracy" | "micro_f1") | ("choice", "accuracy"):
            return _mean(targets == answers)
        case "classification", "f1" | "macro_f1" | "mcc":
            return _from_counts(_FROM_COUNTS[metric], targets.astype(int), answers.astype(int), classes)
        case "tokens", "span_f1" | "span_precision" | "span_recall" | "token_macro_f1":
            return _of_tokens(metric, judged)
        case "qa", "exact" | "f1":
            return _mean(judged[:, ("exact", "f1").index(metric)])
    raise UserError(
        f"The metric {metric} of a task of the kind {kind} cannot be counted again from resampled rows.",
        "Compare by the table of results.",
    )


def _mean(values: np.ndarray) -> Recount:
    return lambda drawn: values.astype(np.float64) @ drawn / len(values)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where nothing is below."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _from_counts(
    value: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    targets: np.ndarray,
    answers: np.ndarray,
    classes: int,
) -> Recount:
    """A metric that hangs on three counts of each class, float64[C, B]: rows that have it, were given it, and both."""
    every = np.eye(classes)
    gold, given = every[:, targets], every[:, answers]
    both = gold * given
    return lambda drawn: value(gold @ drawn, given @ drawn, both @ drawn)


def _positive_f1(gold: np.ndarray, given: np.ndarray, both: np.ndarray) -> np.ndarray:
    return _ratio(2 * both[1], gold[1] + given[1])


def _macro_f1(gold: np.ndarray, given: np.ndarray, both: np.ndarray) -> np.ndarray:
    return np.asarray(_ratio(2 * both, gold + given).mean(axis=0))


def _matthews(gold: np.ndarray, given: np.ndarray, both: np.ndarray) -> np.ndarray:
    """For any number of classes (Gorodkin 2004); 0 where either side is constant."""
    rows = gold.sum(axis=0)
    shared = both.sum(axis=0) * rows - (gold * given).sum(axis=0)
    own = (rows**2 - (gold**2).sum(axis=0)) * (rows**2 - (given**2).sum(axis=0))
    return _ratio(shared, np.sqrt(own))


_FROM_COUNTS = {"f1": _positive_f1, "macro_f1": _macro_f1, "mcc": _matthews}


def _of_tokens(metric: str, judged: np.ndarray) -> Recount:
    """From the sums of correct, predicted and gold spans, or of such words type by type."""
    types = judged.shape[1] // 6
    columns = np.ascontiguousarray(judged.T)

    def count(drawn: np.ndarray) -> np.ndarray:
        sums = (columns @ drawn).reshape(types, 2, 3, -1)
        if metric == "token_macro_f1":
            correct, predicted, gold = sums[:, 1].swapaxes(0, 1)
            return np.asarray(_ratio(2 * correct, predicted + gold).mean(axis=0))
        correct, predicted, gold = sums[:, 0].sum(axis=0)
        pairs = {"span_precision": (correct, predicted), "span_recall": (correct, gold)}
        return _ratio(*pairs.get(metric, (2 * correct, predicted + gold)))

    return count


def _pearson(x: np.ndarray, y: np.ndarray) -> Recount:
    x, y = x - x.mean(), y - y.mean()
    columns = np.stack([x, y, x * x, y * y, x * y])

    def count(drawn: np.ndarray) -> np.ndarray:
        mean_x, mean_y, square_x, square_y, product = columns @ drawn / len(x)
        own_x, own_y = square_x - mean_x**2, square_y - mean_y**2
        # What rounding leaves of the variance of a constant is none.
        own = np.where((own_x > 1e-12 * square_x) & (own_y > 1e-12 * square_y), own_x * own_y, 0)
        return _ratio(product - mean_x * mean_y, np.sqrt(own))

    return count


def _spearman(x: np.ndarray, y: np.ndarray) -> Recount:
    rank_x, rank_y = _ranks(x), _ranks(y)
    middle = (len(x) + 1) / 2

    def count(drawn: np.ndarray) -> np.ndarray:
        by_x, by_y = rank_x(drawn) - middle, rank_y(drawn) - middle
        own = _dot(drawn * by_x, by_x) * _dot(drawn * by_y, by_y)
        return _ratio(_dot(drawn * by_x, by_y), np.sqrt(own))

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


def _area(targets: np.ndarray, chances: np.ndarray) -> Recount:
    """Area under the ROC curve (Mann and Whitney 1947); 0.5 where all rows drawn have one label."""
    ranks = _ranks(chances)

    def count(drawn: np.ndarray) -> np.ndarray:
        positive = drawn * targets[:, None]
        many = positive.sum(axis=0)
        pairs = many * (len(targets) - many)
        above = _dot(positive, ranks(drawn)) - many * (many + 1) / 2
        return np.divide(above, pairs, out=np.full(len(pairs), 0.5), where=pairs > 0)

    return count
