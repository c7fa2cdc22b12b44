"""Results on tasks: scores after fine-tuning, averages, and paired comparisons of two models."""

from __future__ import annotations

import html
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daybreak.core.formatting import NLL, metric_name, percent, score, signed, significant
from daybreak.core.task_pairs import TaskPair, pair_results, several_models
from daybreak.reporting.blocks import (
    UNKNOWN,
    Block,
    Inline,
    bold,
    figure,
    fold,
    join,
    many,
    note,
    records_table,
    run_name,
    section,
    small,
    styled,
    table,
)
from daybreak.reporting.charts import (
    Figure,
    Trace,
    band_layout,
    color,
    error_bars,
    key_color,
    scatter,
    series_name,
    straight_line,
)
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.studies import table as markdown_table
from daybreak.schemas.tasks import CLAIM_SEEDS, Average, Comparison, PublishedAverage, TaskResult

GAP = 0.9
"""Space between two tasks of a figure, in lanes."""
VERDICT_COLORS = {"B is better": "var(--good)", "A is better": "var(--alarm)"}


@dataclass(frozen=True)
class _Row:
    """A task of one run; ``model`` is the model's name if the run has results of several models."""

    run: int
    pair: TaskPair
    model: str

    @property
    def sides(self) -> list[TaskResult]:
        return [side for side in (self.pair.untrained, self.pair.pretrained) if side is not None]


def _rows(runs: Sequence[RunRecords]) -> list[_Row]:
    """The tasks of all runs; the runs of a task are together."""
    rows = []
    for number, run in enumerate(runs):
        pairs = pair_results(run.results)
        several = several_models(pairs)
        rows += [_Row(number, pair, pair.model_name if several else "") for pair in pairs]
    order = list(dict.fromkeys((row.pair.protocol, row.pair.task) for row in rows))
    return sorted(rows, key=lambda row: (order.index((row.pair.protocol, row.pair.task)), row.run))


# ---------------------------------------------------------------- scores


def tasks(runs: Sequence[RunRecords]) -> Block:
    """Scores after fine-tuning, with and without pretraining."""
    if not any(run.results for run in runs):
        has_model = any((run.path / "model").is_dir() for run in runs)
        advice = ": run `daybreak evaluate` on this folder" if has_model else ""
        return section("Tasks", note(f"No task has been evaluated{advice}."))
    rows, tint = _rows(runs), key_color(runs)
    key = [
        ("dot", tint, "with pretraining"), ("dot", "var(--quiet)", "without"), ("bar", tint, "mean"),
        ("dotbar", "var(--ink)", "constant answer"), ("bar", "var(--ink)", "bag of words"),
    ]  # fmt: skip
    about = "A dot is a seed; the bar is the mean, the whisker the standard deviation."
    return section(
        "Tasks",
        figure("Scores after fine-tuning", about, task_scores(runs), key, numbers=False),
        records_table([_score_row(runs, row) for row in rows], words=3),
        fold("All metrics and settings", _all_metrics(runs, rows)),
        caption="Mean and standard deviation over seeds, times 100, with the score of each seed and the median below. "
        "Bag of words: a linear model on word and character counts, fitted on the same training rows (for tags the "
        "most frequent tag of each word; none for question answering). Without pretraining: the same network, "
        "fine-tuned from random weights. Both averaged: the mean of the predictions of the pretrained encoder "
        "and of the bag of words, which shows what the encoder adds.",
    )


def task_scores(runs: Sequence[RunRecords]) -> Figure:
    """A band for each task with a lane for each result: seeds as dots, their mean as a bar, SD as a whisker."""
    bands: dict[tuple[str, str], list[tuple[_Row, TaskResult]]] = {}
    for row in _rows(runs):
        lanes = bands.setdefault((row.pair.protocol, row.pair.task), [])
        lanes += [(row, side) for side in reversed(row.sides)]
    data: list[Trace] = []
    ticks: list[float] = []
    top = 0.0
    layout = band_layout("score x 100", [_task_label(task, protocol) for protocol, task in bands])
    for lanes in bands.values():
        ticks.append(top + (len(lanes) - 1) / 2)
        span = top - 0.55, top + len(lanes) - 0.45
        for value in dict.fromkeys(side.baseline for _, side in lanes):
            straight_line(layout, "var(--ink)", x=100 * value, dash="dot", span=span)
        for value in dict.fromkeys(side.bag_of_words[side.metric] for _, side in lanes if side.bag_of_words):
            straight_line(layout, "var(--ink)", x=100 * value, dash="solid", span=span)
        for lane, (row, side) in enumerate(lanes):
            data += _lane(runs, row, side, top + lane)
        top += len(lanes) + GAP
    layout["height"] = int(90 + 30 * top)
    layout["yaxis"] |= {"tickvals": ticks, "range": [top - GAP + 0.2, -0.8]}
    return {"data": data, "layout": layout}


def _task_label(task: str, protocol: str) -> str:
    return f"<b>{html.escape(task)}</b><br>{html.escape(protocol)}"


def _lane(runs: Sequence[RunRecords], row: _Row, result: TaskResult, y: float) -> list[Trace]:
    trained = result.model == "pretrained"
    tint = color(row.run) if trained else "var(--quiet)"
    model = f"{row.model}, " if row.model else ""
    name = series_name(runs, row.run, f"{model}{'with' if trained else 'without'} pretraining")
    seeds = [100 * value for value in result.scores.get(result.metric, [])]
    mean, spread = 100 * result.mean, 100 * result.spread
    look: dict[str, Any] = {"run": row.run, "mode": "markers"}
    mark = {"symbol": "line-ns", "size": 15, "line": {"width": 3.5, "color": tint}, "color": tint}
    return [
        scatter(name, seeds, [y] * len(seeds), tint, size=10, **look, opacity=0.45, customdata=result.seeds,
                hover="%{x:.1f}, seed %{customdata}"),
        scatter(name, [mean], [y], tint, **look, customdata=[spread], marker=mark,
                error_x=error_bars([mean - spread], [mean], [mean + spread], tint),
                hover="mean %{x:.1f} &plusmn; %{customdata:.1f}"),
    ]  # fmt: skip


def _score_row(runs: Sequence[RunRecords], row: _Row) -> dict[str, Inline | None]:
    pair, result = row.pair, row.pair.either
    model = f"{row.model}; " if row.model else ""
    size = f"{result.training_size} training rows, {result.reported_rows:,} evaluation rows"
    selection = [small(text) for text in _selections(pair)]
    combined = pair.pretrained.combined if pair.pretrained else None
    return {
        "Task": join(bold(pair.task), small(f"{model}{pair.protocol}; {size}"), *selection),
        "Run": run_name(runs, row.run) if len(runs) > 1 else None,
        "Metric": metric_name(result.metric),
        "Constant answer": score(result.baseline),
        "Bag of words": _bag_of_words(pair),
        "Without pretraining": _score(pair.untrained),
        "With pretraining": _score(pair.pretrained),
        "Both averaged": _mean(combined) if combined else None,
        "Gain": None if pair.gain is None else join(signed(100 * pair.gain, 1), small(pair.verdict)),
    }


def _bag_of_words(pair: TaskPair) -> Inline | None:
    for result in (pair.pretrained, pair.untrained):
        if result is not None and result.bag_of_words:
            part = [small(result.bag_of_words_part)] if result.bag_of_words_part else []
            return join(score(result.bag_of_words[result.metric]), *part)
    return None


def _selections(pair: TaskPair) -> list[str]:
    """How settings were selected: once if both sides agree."""
    sides = [(side.model, side.selection) for side in (pair.pretrained, pair.untrained) if side is not None]
    if len({selection for _, selection in sides}) == 1:
        return [sides[0][1]]
    return [f"{model}: {selection}" for model, selection in sides]


def _score(result: TaskResult | None) -> Inline | None:
    if result is None:
        return None
    values = result.scores.get(result.metric, [])
    details = [small(", ".join(map(score, values)))]
    if len(result.seeds) > 1:
        details.append(small(f"median {score(result.median)}"))
    for part in ("mismatched", "test"):
        if other := result.scores.get(f"{part}_{result.metric}"):
            details.append(small(join(f"{part} ", _mean(other))))
    return join(_mean(values or [result.mean]), *details)


def _mean(values: Sequence[float]) -> str:
    spread = f" \u00b1 {score(statistics.stdev(values))}" if len(values) > 1 else ""
    return score(statistics.fmean(values)) + spread


def _all_metrics(runs: Sequence[RunRecords], rows: Sequence[_Row]) -> Block:
    """Each result with all its metrics, settings and hardware."""
    cells = []
    for row in rows:
        model = [small(row.model)] if row.model else []
        run = [run_name(runs, row.run)] if len(runs) > 1 else []
        for side in row.sides:
            metrics = [f"{metric_name(name)} {_amount(name, values)}" for name, values in side.scores.items()]
            settings = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in side.settings.items())
            how = [
                f"seeds {', '.join(map(str, side.seeds))}",
                settings,
                f"{side.hardware or UNKNOWN}, {side.seconds:,.0f} s",
            ]
            names = [join(bold(row.pair.task), small(row.pair.protocol)), join(*run, *model, " ", side.model)]
            cells.append([*names, join(*metrics, by="<br>"), join(*how, by="<br>")])
    return table(("Task", "Network", "Metrics", "Settings and hardware"), cells, words=4)


def _amount(metric: str, values: Sequence[float]) -> str:
    return f"{significant(statistics.fmean(values))} nats" if metric.endswith(NLL) else _mean(values)


# ---------------------------------------------------------------- averages


def averages(runs: Sequence[RunRecords]) -> Block | None:
    """Averages over tasks for each convention, or why there is none."""
    if not any(run.results for run in runs):
        return None
    groups: dict[tuple[str, str], dict[bool, list[list[Inline]]]] = {}
    published: dict[tuple[str, str], list[PublishedAverage]] = {}
    for number, run in enumerate(runs):
        sides: dict[tuple[str, str, str], dict[str, Average]] = {}
        for average, others in run.averages:
            group = average.convention, average.protocol
            sides.setdefault((*group, average.model_name), {})[average.model] = average
            published[group] = others or published.get(group, [])
        for (convention, protocol, _), both in sides.items():
            comparable = any(average.comparable for average in both.values())
            own = groups.setdefault((convention, protocol), {True: [], False: []})
            own[comparable].append(_average_row(runs, number, both))
    rows: list[list[Inline]] = []
    for group, own in groups.items():
        rows += [*own[True], *map(_published_row, published[group]), *own[False]]
    if not rows:
        words = (
            "No average over tasks: the results do not cover all tasks of a published convention under one protocol."
        )
        return note(words, "quiet")
    return section(
        "Averages",
        table(("Convention", "Without pretraining", "With pretraining"), rows),
        caption="The same scores, averaged by the conventions of different publications; averages of different "
        "conventions are not comparable. Published averages are listed only under the same convention, protocol and "
        "number of seeds.",
    )


def _published_row(model: PublishedAverage) -> list[Inline]:
    return [join(model.model, small(f"published: {model.source}")), UNKNOWN, score(model.value)]


def _average_row(runs: Sequence[RunRecords], number: int, sides: dict[str, Average]) -> list[Inline]:
    one = next(iter(sides.values()))
    run = [run_name(runs, number)] if len(runs) > 1 else []
    details = small(f"{one.what}; protocol {one.protocol}, {many(one.seeds, 'seed')} or more per task")
    values = [score(sides[model].value) if model in sides else UNKNOWN for model in ("untrained", "pretrained")]
    return [join(bold(one.convention), " ", *run, details), *values]


GLUE_COLUMNS = {
    "MNLI (acc., m)": "mnli accuracy", "MNLI (acc., mm)": "mnli mismatched_accuracy", "SST-2 (acc.)": "sst2 accuracy",
    "STS-B (Pearson)": "stsb pearson", "RTE (acc.)": "rte accuracy", "QNLI (acc.)": "qnli accuracy",
    "QQP (F1)": "qqp f1", "MRPC (F1)": "mrpc f1", "CoLA (MCC)": "cola mcc",
}  # fmt: skip
"""Columns of the eight GLUE tasks in the Cramming paper -> a task and its metric."""


def glue_table(runs: Sequence[RunRecords], published: Sequence[PublishedAverage]) -> str:
    """A Markdown table of GLUE dev scores: a row for each model of the runs and each published model.

    Args:
        published: published models; those without scores in the columns of the Cramming paper are left out.

    Returns:
        The table; empty if the runs have no result of a GLUE task. Results of other weights have a row of their own.
    """
    rows = []
    for run in runs:
        models: dict[tuple[str, str, str], dict[str, float]] = {}
        for result in run.results:
            if result.model == "pretrained":
                medians = {
                    f"{result.task} {name}": statistics.median(each) for name, each in result.scores.items() if each
                }
                models.setdefault((result.protocol, result.model_name, result.weights), {}).update(medians)
        for (protocol, model, _), numbers in models.items():
            name = f"{run.label}, {model}" if len({name for _, name, _ in models}) > 1 else run.label
            if scores := [numbers[key] for key in GLUE_COLUMNS.values() if key in numbers]:
                mean = statistics.fmean(scores) if len(scores) == len(GLUE_COLUMNS) else None
                rows.append(_glue_row(name, f"this report, protocol {protocol}", numbers, mean))
    if not rows:
        return ""
    rows += [_glue_row(each.model, each.source, each.numbers, each.value) for each in published if each.numbers]
    return markdown_table(["Model", "Source", *GLUE_COLUMNS, "Mean of 9"], rows)


def _glue_row(name: str, source: str, numbers: Mapping[str, float], mean: float | None) -> list[str]:
    cells = [score(numbers[key]) if key in numbers else UNKNOWN for key in GLUE_COLUMNS.values()]
    return [name, source, *cells, UNKNOWN if mean is None else score(mean)]


# ---------------------------------------------------------------- comparisons of two models


def line(found: Comparison) -> str:
    """A comparison for the terminal."""
    return (
        f"{found.task} ({found.protocol}), {found.model_b} (B) against {found.model_a} (A): {found.verdict}. "
        f"{found.metric} {score(found.b)} against {score(found.a)}, {_difference(found)} {_interval(found)}, "
        f"B ahead in {percent(found.better)} of resamples, {_basis(found)}"
    )


def verdicts(comparisons: Sequence[Comparison], unpaired: Sequence[str]) -> Block | None:
    """A figure and a table for each two models, with one row per task."""
    if not comparisons and not unpaired:
        return None
    blocks: list[Block] = []
    for a, b in dict.fromkeys((found.model_a, found.model_b) for found in comparisons):
        same = [found for found in comparisons if (found.model_a, found.model_b) == (a, b)]
        caption = (
            f"B is {b}, A is {a}. The bar is the 95 % interval of B - A. A claim needs an interval that excludes zero, "
            f"{CLAIM_SEEDS} seeds, and a difference larger than the standard deviation over seeds."
        )
        blocks.append(figure(f"{b} against {a}", caption, _intervals(same), numbers=False))
        head = ("Task", "Verdict", "A", "B", "B - A", "B ahead in")
        blocks.append(table(head, [_verdict_row(found) for found in same], words=2))
    single = any(len(found.seeds) == 1 for found in comparisons)
    seeds = " With one seed the interval does not contain the variance between seeds." if single else ""
    sides = {(found.model_a.split(" ")[0], found.model_b.split(" ")[0]) for found in comparisons}
    return section(
        "Effect of pretraining" if sides == {("untrained", "pretrained")} else "Paired comparison",
        *blocks,
        *(note(words, "quiet") for words in unpaired),
        caption="Paired bootstrap, scores times 100: both models predict the same rows, and the difference is computed "
        "on many resamples of rows and seeds, the same for both. The interval holds the middle 95 % of the "
        f"differences and, from {CLAIM_SEEDS} seeds on, Student's t interval over the seeds; the last column is the "
        f"fraction of resamples in which B was ahead.{seeds}",
    )


def _verdict_row(found: Comparison) -> list[Inline]:
    mark = {"B is better": "best", "A is better": "poor"}.get(found.verdict, "plain")
    return [
        join(bold(found.task), small(f"{found.protocol}; {metric_name(found.metric)}")),
        join(styled(found.verdict, mark), small(_basis(found))),
        score(found.a),
        score(found.b),
        join(_difference(found), small(_interval(found))),
        percent(found.better),
    ]


def _difference(found: Comparison) -> str:
    return signed(100 * (found.b - found.a), 1)


def _interval(found: Comparison) -> str:
    return f"[{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}]"


def _basis(found: Comparison) -> str:
    return f"{many(len(found.seeds), 'seed')}, {found.rows:,} rows"


def _intervals(comparisons: Sequence[Comparison]) -> Figure:
    """The interval of each task on a line, and a vertical line at zero."""
    data = []
    for place, found in enumerate(comparisons):
        middle, low, high = (100 * value for value in (found.b - found.a, found.low, found.high))
        tint = VERDICT_COLORS.get(found.verdict, "var(--quiet)")
        hover = f"{found.verdict}, {_difference(found)} {_interval(found)}"
        bars = error_bars([low], [middle], [high], tint)
        name = html.escape(found.task)
        data.append(scatter(name, [middle], [place], tint, mode="markers", size=10, error_x=bars, hover=hover))
    names = [_task_label(found.task, found.protocol) for found in comparisons]
    layout = band_layout("B - A, score x 100", names)
    layout["height"] = 90 + 40 * len(names)
    layout["yaxis"] |= {"tickvals": list(range(len(names))), "range": [len(names) - 0.4, -0.6]}
    straight_line(layout, "var(--ink)", x=0, dash="dot")
    return {"data": data, "layout": layout}
