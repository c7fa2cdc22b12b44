"""Scores after fine-tuning, each with protocol, metric, seeds, spread and selection; averages where complete."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from daybreak.core.formatting import score, signed, significant
from daybreak.core.task_pairs import TaskPair, pair_results, several_models
from daybreak.reporting import figures
from daybreak.reporting.markup import Markup, escape, figure, fold, join, legend, note, section, table, tag
from daybreak.reporting.runs import Published, RunRecords
from daybreak.reporting.sections import NOTHING, UNKNOWN, run_name
from daybreak.reporting.task_figure import task_scores
from daybreak.schemas.tasks import Average, TaskResult

NATS = ("nll",)
"""Metrics that are no shares, so that times 100 would mislead."""


def tasks(runs: Sequence[RunRecords]) -> Markup:
    """Scores after fine-tuning, with and without pretraining."""
    if not any(run.results for run in runs):
        return section("Tasks", note("No task has been evaluated: run `daybreak evaluate` on this folder."))
    found = [(number, pair) for number, run in enumerate(runs) for pair in pair_results(run.results)]
    order = list(dict.fromkeys((pair.protocol, pair.task) for _, pair in found))
    found.sort(key=lambda entry: (order.index((entry[1].protocol, entry[1].task)), entry[0]))
    named = {number: several_models(pair for at, pair in found if at == number) for number in range(len(runs))}
    head = (
        "Task",
        *(["Run"] if len(runs) > 1 else []),
        "Metric",
        "Constant answer",
        "Bag of words",
        "Without pretraining",
        "With pretraining",
        "Gain",
    )
    tint = figures.colour(0) if len(runs) == 1 else "var(--ink)"
    key = legend(
        ("dot", tint, "with pretraining"),
        ("dot", "var(--quiet)", "without"),
        ("bar", tint, "mean"),
        ("dotbar", "var(--ink)", "constant answer"),
        ("bar", "var(--ink)", "bag of words"),
    )
    return section(
        "Tasks",
        figure(
            "Scores after fine-tuning",
            "One dot a seed; the bar is their mean, the whisker their standard deviation.",
            task_scores(runs),
            key,
            numbers=False,
        ),
        table(head, [_row(runs, number, pair, named[number]) for number, pair in found], words=len(head) - 5),
        fold("Every metric", _every_metric(runs, found, named)),
        fold("Settings and hardware", _settings(runs, found, named)),
        caption="Mean and standard deviation over seeds, times 100; the seeds' own values and their median below it. "
        "Bag of words: word and character counts with a linear model, fitted on the same training rows (for tags the "
        "most frequent tag of each word; question answering has none). Without pretraining: the same network, "
        "fine-tuned from random weights.",
    )


def _row(runs: Sequence[RunRecords], number: int, pair: TaskPair, named: bool) -> list[Markup | str]:
    result, gain = pair.either, pair.gain
    model = f"{pair.model_name}; " if named else ""
    rows = f"{model}{pair.protocol}; {result.train_rows:,} rows to learn from, {result.reported_rows:,} to evaluate"
    chosen = [tag("small", words) for words in _selections(pair)]
    name = join(tag("b", pair.task), tag("small", rows), *chosen)
    gained = join(signed(100 * gain, 1), tag("small", pair.verdict)) if gain is not None else UNKNOWN
    run = [run_name(runs, number)] if len(runs) > 1 else []
    return [
        name,
        *run,
        result.metric.replace("_", " "),
        score(result.baseline),
        _bag_of_words(pair),
        _score(pair.untrained),
        _score(pair.pretrained),
        gained,
    ]


def _bag_of_words(pair: TaskPair) -> Markup | str:
    """Of the side that has it: ``--no-baselines`` may have left it out of the other."""
    for result in (pair.pretrained, pair.untrained):
        if result is not None and result.bag_of_words:
            part = result.bag_of_words_part
            return join(score(result.bag_of_words[result.metric]), *([tag("small", part)] if part else []))
    return UNKNOWN


def _selections(pair: TaskPair) -> list[str]:
    """How the numbers were chosen: once where both sides agree."""
    sides = [(side.model, side.selection) for side in (pair.pretrained, pair.untrained) if side is not None]
    if len({selection for _, selection in sides}) == 1:
        return [sides[0][1]]
    return [f"{model}: {selection}" for model, selection in sides]


def _score(result: TaskResult | None) -> Markup:
    if result is None:
        return escape(UNKNOWN)
    values = ", ".join(score(value) for value in result.scores.get(result.metric, []))
    seeds = ", ".join(str(seed) for seed in result.seeds)
    under = [tag("small", values, title=f"seeds {seeds}")]
    if len(result.seeds) > 1:
        under.append(tag("small", f"median {score(result.median)}"))
    if other := result.scores.get(f"mismatched_{result.metric}"):
        under.append(tag("small", "mismatched ", _mean(other)))
    return join(_mean(result.scores.get(result.metric) or [result.mean]), *under)


def _mean(values: Sequence[float]) -> Markup:
    spread = Markup(f" &plusmn; {score(statistics.stdev(values))}") if len(values) > 1 else NOTHING
    return join(score(statistics.fmean(values)), spread)


_Found = Sequence[tuple[int, TaskPair]]


def _sides(runs: Sequence[RunRecords], found: _Found, named: dict[int, bool]) -> list[tuple[list[Markup], TaskResult]]:
    """The results, each with the cells that say which it is."""
    return [
        (
            [
                join(tag("b", pair.task), tag("small", pair.protocol)),
                join(
                    run_name(runs, number) if len(runs) > 1 else NOTHING,
                    *([tag("small", pair.model_name)] if named[number] else []),
                    side.model,
                ),
            ],
            side,
        )
        for number, pair in found
        for side in (pair.untrained, pair.pretrained)
        if side is not None
    ]


def _every_metric(runs: Sequence[RunRecords], found: _Found, named: dict[int, bool]) -> Markup:
    rows = []
    for names, result in _sides(runs, found, named):
        for metric, values in result.scores.items():
            nats = metric.rpartition("_")[2] in NATS
            middle = significant(statistics.fmean(values)) + " nats" if nats else _mean(values)
            each = ", ".join(significant(value) if nats else score(value) for value in values)
            rows.append([*names, metric.replace("_", " "), middle, each])
    words = "Calibration error: mean distance between confidence and accuracy. Surprise: mean loss. Less is better."
    return join(table(("Task", "Network", "Metric", "Mean", "Seeds"), rows, words=3), note(words, "quiet"))


def _settings(runs: Sequence[RunRecords], found: _Found, named: dict[int, bool]) -> Markup:
    rows = []
    for names, result in _sides(runs, found, named):
        told = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in result.settings.items())
        seeds = ", ".join(str(seed) for seed in result.seeds)
        rows.append([*names, told, seeds, result.hardware or UNKNOWN, f"{result.seconds:,.0f} s"])
    return table(("Task", "Network", "Settings", "Seeds", "Hardware", "Time"), rows, words=5)


def averages(runs: Sequence[RunRecords]) -> Markup:
    """Averages over tasks, convention by convention, or why there is none."""
    if not any(run.results for run in runs):
        return NOTHING
    groups: dict[tuple[str, str], list[list[Markup | str]]] = {}
    published: dict[tuple[str, str], list[Published]] = {}
    for number, run in enumerate(runs):
        beside: dict[tuple[str, str, str], dict[str, Average]] = {}
        for average, others in run.averages:
            group = average.convention, average.protocol
            beside.setdefault((*group, average.model_name), {})[average.model] = average
            published[group] = others or published.get(group, [])
        for (convention, protocol, _), sides in beside.items():
            groups.setdefault((convention, protocol), []).append(_average_row(runs, number, sides))
    rows = [row for group, own in groups.items() for row in (*own, *map(_published_row, published[group]))]
    if not rows:
        return note(
            "No average over tasks is shown: none of the published ways of counting has all its tasks here under one "
            "protocol.",
            "quiet",
        )
    return section(
        "Averages",
        table(("Convention", "Without pretraining", "With pretraining"), rows),
        caption="The same scores, averaged as different publications do: numbers under different names do not compare. "
        "Published ones stand here only under the same convention, protocol and number of seeds.",
    )


def _published_row(found: Published) -> list[Markup | str]:
    return [join(found.model, tag("small", f"published: {found.source}")), UNKNOWN, score(found.value)]


def _average_row(runs: Sequence[RunRecords], number: int, sides: dict[str, Average]) -> list[Markup | str]:
    one = next(iter(sides.values()))
    run = [run_name(runs, number)] if len(runs) > 1 else []
    seeds = f"{one.seeds} seed{'s' if one.seeds > 1 else ''} or more a task"
    name = join(tag("b", one.convention), " ", *run, tag("small", f"{one.what}; protocol {one.protocol}, {seeds}"))
    values = [score(sides[model].value) if model in sides else UNKNOWN for model in ("untrained", "pretrained")]
    return [name, *values]
