"""Runs beside each other: one row a run, and what continuing was worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daybreak.core.formatting import count, percent, signed
from daybreak.core.terminal import duration
from daybreak.reporting.headline import budget_words, judged_apart
from daybreak.reporting.markup import Markup, join, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.sections import NOTHING, UNKNOWN, run_name
from daybreak.schemas.run import ValidationRecord


def comparison(runs: Sequence[RunRecords]) -> Markup:
    """The table of an overlay: a row a run, the best loss and accuracy marked."""
    found = [run.validation for run in runs if run.validation is not None]
    ranked = [] if judged_apart(runs) else found
    least = min((record.loss for record in ranked), default=None)
    most = max((record.accuracy for record in ranked), default=None)
    nexts = any(record.next_accuracy is not None for record in found)
    rows = [_row(runs, number, least, most, nexts) for number, run in enumerate(runs) if run.pretrained_here]
    head = (
        "Run",
        "Parameters",
        "Steps",
        "Tokens",
        "Held-out loss",
        "from unigram",
        "On the plateau",
        "Accuracy",
        *(["Next sentence"] if nexts else []),
        "Time",
    )
    marked = "the lowest loss and the highest accuracy are marked" if ranked else "they are not comparable here"
    caption = (
        f"Losses in nats per token on held-out masked positions; {marked}. "
        "On the plateau: no better than knowing how frequent each token is."
    )
    return section("Side by side", table(head, rows), caption=caption)


def _row(
    runs: Sequence[RunRecords], number: int, least: float | None, most: float | None, nexts: bool
) -> list[Markup | str]:
    run, summary = runs[number], runs[number].summary
    recipe = [tag("small", run.name)] if run.name != run.label else []
    rate = [tag("small", f"{count(summary.tokens_per_second)} a second")] if summary else []
    ended = f"of {budget_words(run)}" if summary else f"of {budget_words(run)}, not ended"
    steps = summary.steps if summary else max((step.step for step in run.steps[-1:]), default=0)
    return [
        join(run_name(runs, number), *recipe),
        count(summary.parameters) if summary else UNKNOWN,
        f"{steps:,}" if steps else UNKNOWN,
        join(count(run.tokens), *rate) if run.tokens else UNKNOWN,
        *_judged(run.validation, least, most, nexts),
        join(duration(run.elapsed), tag("small", ended)),
    ]


def _judged(
    record: ValidationRecord | None, least: float | None, most: float | None, nexts: bool
) -> list[Markup | str]:
    if record is None:
        return [UNKNOWN] * (5 if nexts else 4)
    plateau = tag("span", "yes", class_="poor") if record.on_plateau else "no"
    told = UNKNOWN if record.next_accuracy is None else percent(record.next_accuracy)
    return [
        _marked(f"{record.loss:.3f}", record.loss == least),
        signed(record.loss - record.unigram_loss, 3),
        plateau,
        _marked(percent(record.accuracy), record.accuracy == most),
        *([told] if nexts else []),
    ]


def _marked(words: str, best: bool) -> Markup:
    return tag("span", words, class_="best" if best else "plain")


def worth(runs: Sequence[RunRecords]) -> Markup:
    """What continued pretraining won on the run's own text, and cost on general text."""
    rows: list[list[Any]] = []
    for number, run in enumerate(runs):
        found = run.summary.forgetting if run.summary else None
        if found is None:
            continue
        texts = {text: f"{before:.3f} -> {after:.3f}" for text, before, after in found.texts}
        changes = {text: signed(after - before, 3) for text, before, after in found.texts}
        cells = [
            join(texts[text], tag("small", changes[text])) if text in texts else UNKNOWN
            for text in ("Own text", "General text")
        ]
        parent = run.summary.parent if run.summary else ""
        rows.append([run_name(runs, number), parent or UNKNOWN, *cells])
    if not rows:
        return NOTHING
    caption = "Held-out loss before and after continuing, nats per masked token; a rise on general text is forgetting."
    return section(
        "Was it worth it",
        table(("Run", "Continued from", "Own text", "General text"), rows, words=2),
        caption=caption,
    )
