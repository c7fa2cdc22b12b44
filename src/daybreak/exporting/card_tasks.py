"""The card's scores: each under its protocol, with metric, seeds, spread and selection; averages by convention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from daybreak.core.formatting import score, signed
from daybreak.core.task_pairs import TaskPair, baseline_sentence, pair_results, several_models
from daybreak.exporting.card_text import line, table
from daybreak.schemas.tasks import Average, TaskResult


def tasks_block(results: Sequence[TaskResult]) -> str:
    """A table a protocol; empty without results."""
    pairs = pair_results(results)
    blocks = [_protocol(protocol, pairs) for protocol in dict.fromkeys(pair.protocol for pair in pairs)]
    if not blocks:
        return ""
    lead = (
        "Scores times 100 after fine-tuning: mean and standard deviation over seeds, with the value of each seed. "
        '"Bag of words" is a linear model on word and character counts, fitted on the same training rows. '
        '"Without pretraining" is the same network from random weights.'
    )
    return "\n\n".join(["## Tasks", f"{baseline_sentence(results)} {lead}".strip(), *blocks])


def _protocol(protocol: str, pairs: Sequence[TaskPair]) -> str:
    named = several_models(pairs)
    these = [pair for pair in pairs if pair.protocol == protocol]
    head = ["Task", "Metric", "Constant answer", "Bag of words", "Without pretraining", "With pretraining", "Gain"]
    rows = []
    for pair in these:
        gain = "-" if pair.gain is None else f"{signed(100 * pair.gain, 1)} ({pair.verdict})"
        result = pair.either
        task = f"{pair.task}, {pair.model_name}" if named else pair.task
        metric = f"{result.metric.replace('_', ' ')}, {result.reported_rows:,} {result.reported} rows"
        scores = [score(result.baseline), _bag_of_words(pair), _score(pair.untrained), _score(pair.pretrained)]
        rows.append([task, metric, *scores, gain])
    told = [_told_once("Selection", these, lambda result: result.selection)]
    told.append(_told_once("Settings", these, _settings))
    told.append(_told_once("Hardware", these, lambda result: result.hardware))
    return f"Protocol `{line(protocol)}`. {' '.join(filter(None, told))}\n\n{table(head, rows)}"


def _bag_of_words(pair: TaskPair) -> str:
    for result in (pair.pretrained, pair.untrained):
        if result is not None and result.bag_of_words:
            part = f" ({result.bag_of_words_part})" if result.bag_of_words_part else ""
            return score(result.bag_of_words[result.metric]) + part
    return "-"


def _told_once(what: str, pairs: Sequence[TaskPair], of: Callable[[TaskResult], str]) -> str:
    """Something about the results, said once for all tasks of which it is true; nothing where nothing is known."""
    found: dict[str, dict[str, None]] = {}
    for pair in pairs:
        for result in (pair.pretrained, pair.untrained):
            if result is not None and of(result):
                found.setdefault(of(result), {})[pair.task] = None
    if len(found) == 1:
        return f"{what}: {line(next(iter(found)))}."
    return " ".join(f"{what} on {line(', '.join(tasks))}: {line(words)}." for words, tasks in found.items())


def _settings(result: TaskResult) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in result.settings.items())


def _score(result: TaskResult | None) -> str:
    if result is None:
        return "-"
    values = result.scores[result.metric]
    seeds = ", ".join(f"{seed}: {score(value)}" for seed, value in zip(result.seeds, values))
    spread = f" +- {score(result.spread)}, median {score(result.median)}" if len(result.seeds) > 1 else ""
    other = result.scores.get(f"mismatched_{result.metric}", [])
    mismatched = f"; mismatched {score(sum(other) / len(other))}" if other else ""
    return f"{score(result.mean)}{spread} (seed {seeds}){mismatched}"


def averages_block(averages: Sequence[Average]) -> str:
    """One row a convention; empty where none is complete."""
    if not averages:
        return ""
    names = {(average.model_name, average.model) for average in averages}
    rows = []
    for average in averages:
        network = f"{average.model_name}, {average.model}" if len({name for name, _ in names}) > 1 else average.model
        how = f"{average.what}; {average.seeds} seed{'s' if average.seeds > 1 else ''} or more a task"
        rows.append([average.convention, average.protocol, network, score(average.value), how])
    lead = "The same scores, averaged as different publications do: numbers under different names do not compare."
    return f"### Averages\n\n{lead}\n\n{table(['Convention', 'Protocol', 'Network', 'Average', 'How it counts'], rows)}"
