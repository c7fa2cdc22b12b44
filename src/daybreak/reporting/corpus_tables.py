"""Rows of numbers about a text: its steps, its sources, evaluation text in it, tokenizers for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from daybreak.core.formatting import count, percent, significant
from daybreak.reporting.corpus_figures import clipped, dropped, spoken
from daybreak.reporting.markup import Markup, fold, join, note, table, tag
from daybreak.reporting.sections import NOTHING, UNKNOWN
from daybreak.schemas.corpus import Contamination, CorpusReport, SourceReport, StepReport, TokenizerQuality

REASONS_SHOWN = 6
ROWS_SHOWN = 12
ROWS_FOLDED = 200
"""Further rows of a long table, behind a title; what comes after them is only counted."""
NAME_LENGTH = 80


def many(number: int, word: str) -> str:
    """``1 document``, ``2.31 million documents``."""
    return f"{count(number)} {word}{'' if number == 1 else 's'}"


def share(part: float, whole: float) -> str:
    """A percentage in which little differs from nothing; a dash of nothing."""
    if whole <= 0 or not math.isfinite(part / whole):
        return UNKNOWN
    return percent(part / whole) if part == 0 or abs(part) >= 0.0005 * whole else "< 0.1 %"


def steps_table(report: CorpusReport) -> Markup:
    """A row a step; nothing without steps."""
    if not report.steps:
        return NOTHING
    head = ("Step", "Why documents were left out", "Left out", "Share", "Of the characters", "Documents that go on")
    return table(head, [_step_row(step) for step in report.steps], words=2)


def _step_row(step: StepReport) -> list[Markup | str]:
    documents, characters = dropped(step)
    again = ["", "; reads the text once more", f"; reads the text {step.passes} times more"][
        min(2, max(0, step.passes))
    ]
    most = sorted(step.reasons.items(), key=lambda pair: -pair[1])
    told = [tag("div", f"{clipped(reason, NAME_LENGTH)}: {number:,}") for reason, number in most[:REASONS_SHOWN]]
    rest = most[REASONS_SHOWN:]
    if rest:
        told.append(tag("div", f"{many(len(rest), 'further reason')}: {sum(number for _, number in rest):,}"))
    return [
        join(spoken(step.name), tag("small", step.why.rstrip("."), again)),
        join(*told) if told else UNKNOWN,
        f"{documents:,}",
        share(documents, step.documents_in),
        share(characters, step.characters_in),
        f"{step.documents_out:,}",
    ]


def sources_table(report: CorpusReport) -> Markup:
    """A row an input; nothing without any."""
    found = report.sources
    if not found:
        return NOTHING
    with_epochs = any(source.epochs != 1 for source in found)
    weights = [source.kept_characters * source.epochs if math.isfinite(source.epochs) else 0.0 for source in found]
    whole = math.fsum(weights)
    head = ["Source", "Documents read", "Left out", "Characters read", "Left out"]
    head += ["Epochs"] if with_epochs else []
    head += ["Share of the training text"]
    rows = []
    for name, source, weight in zip(short_names([source.path for source in found]), found, weights):
        row = [clipped(name, NAME_LENGTH), f"{source.documents:,}", _lost(source, "documents")]
        row += [count(source.characters), _lost(source, "characters")]
        row += [significant(source.epochs)] if with_epochs else []
        rows.append([*row, share(weight, whole)])
    return _long_table(head, rows)


def _lost(source: SourceReport, what: str) -> str:
    read, kept = (
        (source.documents, source.kept_documents)
        if what == "documents"
        else (source.characters, source.kept_characters)
    )
    return share(max(0, read - kept), read)


def _long_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    more, rest = rows[ROWS_SHOWN : ROWS_SHOWN + ROWS_FOLDED], len(rows) - ROWS_SHOWN - ROWS_FOLDED
    folded = [fold(f"{len(rows) - ROWS_SHOWN:,} more", table(head, more))] if more else []
    return join(
        table(head, rows[:ROWS_SHOWN]), *folded, *([note(f"and {rest:,} not shown", "quiet")] if rest > 0 else [])
    )


def short_names(paths: Sequence[str]) -> list[str]:
    """The ends of the paths, as long as it takes to tell them apart: a page is passed on, a home folder need not be."""
    paths = ["standard input" if path == "-" else path for path in paths]
    names = paths
    for depth in range(1, 6):
        names = [path if "://" in path else "/".join(path.rstrip("/").split("/")[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def contamination_table(found: Sequence[Contamination]) -> Markup:
    """A row an evaluation text."""
    head = ("Evaluation text", "What was done", "Items looked for", "Found", "Share", "Documents they are in")
    names = short_names([one.path for one in found])
    return table(head, [_contamination_row(name, one) for name, one in zip(names, found)], words=2)


def _contamination_row(name: str, one: Contamination) -> list[Markup | str]:
    done = "documents removed" if one.removed else "only reported"
    if one.items_found == 0:
        done = "nothing to do"
    kind = "best" if one.removed or one.items_found == 0 else "poor"
    return [
        clipped(name, NAME_LENGTH),
        tag("b", done, class_=kind),
        f"{one.items:,}",
        f"{one.items_found:,}",
        share(one.items_found, one.items),
        f"{one.documents:,}",
    ]


def tokenizer_table(report: CorpusReport) -> Markup:
    """A row for the tokenizer of the data, and one for each size that was tried; nothing without any."""
    own, advice = report.tokenizer, report.advice
    rows = [_quality_row("this tokenizer", own)] if own else []
    if advice is not None:
        by_size = sorted(advice.sizes, key=lambda one: one.vocabulary)
        rows += [
            _quality_row("recommended" if o.vocabulary == advice.recommended else "another size", o) for o in by_size
        ]
    head = (
        "Tokenizer",
        "Pieces",
        "Characters per token",
        "Tokens per word",
        "Whole words",
        "Unknown tokens",
        "Words covered",
    )
    return table(head, rows) if rows else NOTHING


def _quality_row(name: str, one: TokenizerQuality) -> list[Markup | str]:
    return [
        tag("b", name),
        f"{one.vocabulary:,}",
        _number(one.characters_per_token),
        _number(one.tokens_per_word),
        share(one.whole_words, 1),
        share(one.unknown_tokens, 1),
        share(one.covered_words, 1),
    ]


def _number(value: float) -> str:
    return significant(value) if math.isfinite(value) else UNKNOWN
